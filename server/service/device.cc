#include "server/service/device.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "precision/format.h"
#include "server/conversion/policy.h"
#include "sim/backend/cpu/cpu_executor.h"

namespace simgrad::server::service {
namespace {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "cpu";
}

// What the executor chooses by itself.
std::string BestInstructions() {
  using enum sim::CpuInstructions;
  for (const sim::CpuInstructions instructions : {kAvx512, kAvx2}) {
    if (sim::IsSupported(instructions)) return std::string(sim::CpuInstructionsName(instructions));
  }
  return std::string(sim::CpuInstructionsName(kBaseline));
}

}  // namespace

std::string Device::Text() const {
  return absl::StrCat(kind, " (", name, ", ", instruction_set, ", ", threads, " threads)");
}

absl::StatusOr<Device> OpenDevice(const std::string& flag, int threads) {
  if (flag.rfind("cuda", 0) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--device=", flag, ": this build has no CUDA; use --device=cpu or --device=auto"));
  }
  Device device;
  device.kind = "cpu";
  device.name = CpuName();
  device.threads =
      threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  device.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (int i = 0; i < precision::kFormatCount; ++i) {
    const auto format = static_cast<precision::Format>(i);
    device.formats[std::string(precision::FormatName(format))] = conversion::ExecutionOnCpu(format);
  }
  if (flag == "auto") device.note = "--device=auto: this build has no CUDA, running on the CPU";
  std::shared_ptr<sim::Executor> executor = sim::MakeCpuExecutor();
  device.instruction_set = BestInstructions();
  device.engine = std::make_shared<const sim::Engine>(std::move(executor));
  return device;
}

}  // namespace simgrad::server::service
