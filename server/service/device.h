// Where simulations run: the executor that a --device flag names.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sim/engine.h"

namespace simgrad::server::service {

struct Device {
  std::string kind;  // cpu
  std::string name;
  std::string instruction_set;
  int threads = 1;
  int64_t memory_bytes = 0;
  std::map<std::string, std::string> formats;  // format: native or emulated
  std::string note;                            // why this device, for the log; may be empty
  std::shared_ptr<const sim::Engine> engine;

  // "cpu (AMD EPYC, avx2, 8 threads)".
  std::string Text() const;
};

// `flag`: auto, cpu, cuda, cuda:N; `threads` 0: all cores.
// Errors: FAILED_PRECONDITION for a device that this build does not have.
absl::StatusOr<Device> OpenDevice(const std::string& flag, int threads);

}  // namespace simgrad::server::service
