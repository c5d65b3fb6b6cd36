#include "server/service/device.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "precision/format.h"
#include "server/conversion/policy.h"
#include "server/service/container_limits.h"
#include "sim/backend/cuda/driver/cuda_device.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"

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

int Threads(int wanted) {
  if (wanted > 0) return wanted;
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::min(processors, ContainerProcessors());
}

Device OpenCpu(const config::ServerConfig& config) {
  Device device;
  device.kind = "cpu";
  device.name = CpuName();
  device.threads = Threads(config.threads);
  device.memory_bytes = HostMemoryBytes();
  device.formats = FormatExecutions();
  device.compiles = std::make_shared<CompileReports>();
  const std::shared_ptr<sim::HostExecutor> host =
      sim::MakeHostExecutor({.kernel_folder = config.kernel_cache, .watch = device.compiles});
  device.instruction_set = host->instruction_set();
  device.note = host->note();
  device.host = host;
  device.engine = std::make_shared<const sim::Engine>(host);
  return device;
}

// `only` -1: every GPU of the machine that can be used; the note says which cannot.
absl::StatusOr<Device> OpenGpus(const config::ServerConfig& config, int only) {
  const auto found = sim::cuda::ListCudaDevices();
  if (!found.ok()) return found.status();
  Device device;
  device.kind = "cuda";
  device.compiles = std::make_shared<CompileReports>();
  device.threads = Threads(config.threads);
  device.formats = FormatExecutions();
  std::vector<std::shared_ptr<sim::cuda::Device>> opened;
  std::vector<std::string> unusable;
  std::vector<std::string> notes;
  for (int index = 0; index < std::max(static_cast<int>(found->size()), only + 1); ++index) {
    if (only >= 0 && index != only) continue;
    auto gpu = sim::cuda::OpenCudaDevice({index, config.kernel_cache, device.compiles});
    if (!gpu.ok() && only >= 0) return gpu.status();
    if (!gpu.ok()) {
      unusable.push_back(absl::StrCat("GPU ", index, ": ", std::string(gpu.status().message())));
      continue;
    }
    if ((*gpu)->limits().launch_time == sim::cuda::LaunchTime::kWatched) {
      notes.push_back(
          absl::StrCat("GPU ", index, ": long launches may be stopped by the display's watchdog"));
    }
    const sim::cuda::CudaDeviceInfo& info = (*found)[static_cast<size_t>(index)];
    device.name = info.name;
    device.instruction_set = info.architecture;
    device.memory_bytes += info.memory_bytes;
    opened.push_back(*gpu);
    device.gpus.push_back({index, info.uuid, info.name, *std::move(gpu)});
  }
  const std::string without = absl::StrJoin(unusable, "; ");
  if (opened.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("no GPU can be used: ", without));
  }
  if (!unusable.empty()) notes.push_back(absl::StrCat("GPUs that cannot be used: ", without));
  device.note = absl::StrJoin(notes, "; ");
  device.engine = std::make_shared<const sim::Engine>(std::shared_ptr<sim::Executor>(
      sim::MakeCudaExecutor(std::move(opened), {.watch = device.compiles})));
  return device;
}

// A part of the host's memory: the rest holds the process, its caches and the compiler of kernels.
int64_t MostBesideGpus(int64_t host_memory_bytes) { return host_memory_bytes / 4 * 3; }

}  // namespace

std::map<std::string, std::string> FormatExecutions() {
  std::map<std::string, std::string> executions;
  for (int i = 0; i < precision::kFormatCount; ++i) {
    const auto format = static_cast<precision::Format>(i);
    executions[std::string(precision::FormatName(format))] = conversion::ExecutionOf(format);
  }
  return executions;
}

std::string Device::Text() const {
  if (!gpus.empty())
    return absl::StrCat(kind, " (", gpus.size(), " x ", name, ", ", instruction_set, ")");
  return absl::StrCat(kind, " (", name, ", ", instruction_set, ", ", threads, " threads)");
}

bool Device::IsLost() const {
  return std::any_of(gpus.begin(), gpus.end(),
                     [](const Gpu& gpu) { return gpu.device->Use().lost; });
}

absl::StatusOr<Device> OpenDevice(const config::ServerConfig& config) {
  const std::string& flag = config.device;
  if (flag == "cpu") return OpenCpu(config);
  const int only = flag.rfind("cuda:", 0) == 0 ? std::stoi(flag.substr(5)) : -1;
  absl::StatusOr<Device> gpus = OpenGpus(config, only);
  if (gpus.ok()) return gpus;
  const std::string why(gpus.status().message());
  if (flag != "auto") {
    return absl::FailedPreconditionError(
        absl::StrCat("--device=", flag, ": ", why, "; use --device=cpu or --device=auto"));
  }
  Device device = OpenCpu(config);
  const std::string also = device.note.empty() ? "" : absl::StrCat("; ", device.note);
  device.note = absl::StrCat("--device=auto runs on the CPU: ", why, also);
  return device;
}

int64_t HostMemoryBytes() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(machine, ContainerMemoryBytes());
}

int64_t DefaultMemoryBudget(const Device& device, int64_t host_memory_bytes) {
  const int64_t half = device.memory_bytes / 2;
  return device.gpus.empty() ? half : std::min(half, MostBesideGpus(host_memory_bytes));
}

int64_t MostMemoryBudget(const config::ServerConfig& config, int64_t host_memory_bytes) {
  return config.device == "cpu" ? host_memory_bytes / 2 : MostBesideGpus(host_memory_bytes);
}

absl::Status Warm(const Device& device) {
  std::vector<std::shared_ptr<sim::cuda::Device>> devices;
  for (const Gpu& gpu : device.gpus) devices.push_back(gpu.device);
  if (devices.empty()) return absl::OkStatus();
  const auto policy = std::get<precision::Policy>(precision::Resolve({}));
  for (const sim::WorldSchema& schema : sim::BuiltInWorlds()) {
    const auto world = sim::BuildWorld(schema.name, {});
    if (!world.ok()) return world.status();
    sim::AdjointSpec spec;
    spec.objective = world->objectives.empty() ? "" : world->objectives.front().name;
    for (const sim::Input& input : world->inputs) {
      spec.wanted.push_back(sim::IsDifferentiable(*world, input));
    }
    const auto forward = sim::Lower(*world, policy, "", std::nullopt);
    if (!forward.ok()) return forward.status();
    const auto gradient = sim::Lower(*world, policy, spec.objective, spec);
    if (!gradient.ok()) return gradient.status();
    for (const auto* program : {&*forward, &*gradient}) {
      if (absl::Status status = sim::WarmKernels(devices, *program); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace simgrad::server::service
