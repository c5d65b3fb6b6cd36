// The device of simulations: the executor that a --device flag names.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/server_config.h"
#include "server/service/compile_reports.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/host_executor.h"
#include "sim/engine.h"

namespace simgrad::server::service {

struct Gpu {
  int index = 0;
  std::string uuid;
  std::string name;
  std::shared_ptr<sim::cuda::Device> device;
};

struct Device {
  std::string kind;  // cpu, cuda
  std::string name;
  std::string instruction_set;  // of a GPU: its architecture
  int threads = 1;
  int64_t memory_bytes = 0;
  std::map<std::string, std::string> formats;  // format: native or emulated
  std::string note;       // for the log: why this device, what it cannot do; may be empty
  std::vector<Gpu> gpus;  // that are used
  std::shared_ptr<const sim::Engine> engine;
  std::shared_ptr<const sim::HostExecutor> host;  // of the engine; null: GPUs
  std::shared_ptr<CompileReports> compiles;       // of the engine; null: nothing is compiled

  // "cpu (AMD EPYC, avx2, 8 threads)".
  std::string Text() const;
  // A sticky error: nothing runs any more.
  bool IsLost() const;
};

// The formats of every device that there is, as Device::formats: see conversion::ExecutionOf.
std::map<std::string, std::string> FormatExecutions();

// config.device: auto (all GPUs that can be used, else the CPU), cpu, cuda (all GPUs that can be
// used), cuda:N.
// Errors: FAILED_PRECONDITION for a device that this build or this machine does not have.
absl::StatusOr<Device> OpenDevice(const config::ServerConfig& config);

// Bytes of memory that this process may use: the machine's, or its container's where that is less.
int64_t HostMemoryBytes();

// Bytes of all admitted requests where no flag says so: half of the device's memory. On GPUs, where
// work that does not fit goes to the host's memory, at most three quarters of `host_memory_bytes`.
int64_t DefaultMemoryBudget(const Device& device, int64_t host_memory_bytes);

// The most that it can be with `config.device`, before that is opened.
int64_t MostMemoryBudget(const config::ServerConfig& config, int64_t host_memory_bytes);

// Compiles the built-in worlds in their default configuration, forward and gradient, for the GPUs.
absl::Status Warm(const Device& device);

}  // namespace simgrad::server::service
