// gpu_check: what has to be shown on a GPU, in one program. scripts/gpu-check runs it.
//
// usage: gpu_check --section=NAME [--triples=N] [--steps=N] [--threads=N] [--seconds=N]
//                  [--first=N] [--device=N] [--json=FILE] [--markdown=FILE] [--revision=TEXT]
//   equality   random triples against the CPU, from seed --first on; after --seconds no further
//              one is begun
//   sizes      around warps and blocks, large ones, long horizons, memory that runs out
//   speed      the demands, beside a kernel written by hand
//   sanitizer  a small set of the first two, for compute-sanitizer; none of its calls fails
// Exit codes: 0 all equal, 1 something differs or failed, 2 bad arguments, 3 no GPU, 4 no libnvrtc.
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sim/backend/cuda/compiler/nvrtc_compiler.h"
#include "sim/backend/cuda/driver/cuda_device.h"
#include "tests/gpu/sections.h"

namespace simgrad::gpu_check {
namespace {

using Arguments = std::map<std::string, std::string>;

bool Read(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (arguments.count(name) == 0) {
      std::fprintf(stderr, "gpu_check: unknown argument %s\n", argument.c_str());
      return false;
    }
    arguments[name] = equals == std::string::npos ? "true" : argument.substr(equals + 1);
  }
  return true;
}

int64_t Number(const Arguments& arguments, const std::string& name) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(arguments.at(name), &number)) {
    std::fprintf(stderr, "gpu_check: %s=%s is no number; 0 is taken\n", name.c_str(),
                 arguments.at(name).c_str());
  }
  return number;
}

// Whole or not at all: the process may be ended while it writes.
void Replace(const std::string& file, const std::string& text) {
  if (file.empty()) return;
  const std::string next = file + ".new";
  std::ofstream(next) << text;
  std::rename(next.c_str(), file.c_str());
}

struct Opened {
  int exit_code = 0;  // 3, 4: there is no device
  sim::cuda::CudaDeviceInfo info;
  std::shared_ptr<sim::cuda::Device> device;
};

Opened Refused(int exit_code, const char* what, const absl::Status& why) {
  std::fprintf(stderr, "gpu_check: %s: %s\n", what, why.ToString().c_str());
  return {exit_code, {}, nullptr};
}

Opened Open(int index) {
  const auto devices = sim::cuda::ListCudaDevices();
  if (!devices.ok()) return Refused(3, "no GPU", devices.status());
  if (const auto nvrtc = sim::cuda::NvrtcVersion(); !nvrtc.ok()) {
    return Refused(4, "there is a GPU, but no NVRTC to compile for it", nvrtc.status());
  }
  auto device = sim::cuda::OpenCudaDevice({.index = index});
  if (!device.ok()) return Refused(3, "no GPU that can be used", device.status());
  return {0, (*devices)[static_cast<size_t>(index)], *std::move(device)};
}

int Run(const Arguments& arguments) {
  const auto [exit_code, info, device] = Open(static_cast<int>(Number(arguments, "--device")));
  if (exit_code != 0) return exit_code;
  Report report;
  report.device = info.name;
  report.driver = info.driver;
  report.toolkit = sim::cuda::CudaBuildVersion();
  report.date = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  report.revision = arguments.at("--revision");
  report.section = arguments.at("--section");
  const auto keep = [&](const Report& now) {
    Replace(arguments.at("--json"), now.Json());
    Replace(arguments.at("--markdown"), now.Markdown());
  };
  report.keep = keep;
  const EqualityGoal goal = {Number(arguments, "--triples"), Number(arguments, "--steps"),
                             static_cast<int>(Number(arguments, "--threads")),
                             static_cast<double>(Number(arguments, "--seconds")),
                             static_cast<uint64_t>(Number(arguments, "--first"))};
  if (report.section == "equality") {
    CheckEquality(device, goal, report);
  } else if (report.section == "sizes") {
    CheckSizes(device, false, report);
  } else if (report.section == "speed") {
    MeasureSpeed(device, info.architecture, report);
  } else if (report.section == "sanitizer") {
    CheckEquality(device, {30, 0, 1, goal.seconds}, report);
    CheckSizes(device, true, report);
  } else {
    std::fprintf(stderr, "gpu_check: --section is equality, sizes, speed or sanitizer, not '%s'\n",
                 report.section.c_str());
    return 2;
  }
  keep(report);
  std::fputs(report.Markdown().c_str(), stdout);
  return report.failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace simgrad::gpu_check

int main(int argc, char** argv) {
  simgrad::gpu_check::Arguments arguments = {
      {"--section", ""},      {"--triples", "10000"}, {"--steps", "1000000"}, {"--threads", "8"},
      {"--seconds", "86400"}, {"--device", "0"},      {"--first", "1"},       {"--json", ""},
      {"--markdown", ""},     {"--revision", ""}};
  if (!simgrad::gpu_check::Read(argc, argv, arguments)) return 2;
  return simgrad::gpu_check::Run(arguments);
}
