// What the server is told at start, as data.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace simgrad::server::config {

struct ServerConfig {
  std::string address = "127.0.0.1";  // loopback unless told otherwise
  int port = 8001;                    // 0: a free one
  int metrics_port = 8002;            // 0: a free one
  std::string device = "auto";        // auto, cpu, cuda, cuda:N
  int threads = 0;                    // of one rollout; 0: all cores
  int workers = 0;                    // rollouts that run at once; 0: as `threads`
  int64_t queue_capacity = 64;        // requests that wait
  int64_t memory_limit_bytes = 0;     // of all admitted requests; 0: half of the machine
  absl::Duration drain_timeout = absl::Seconds(30);
  double near_band_ulps = 8.0;  // margins within are counted as near the boundary
  // 4 MiB is gRPC's own default for receiving, so a client that states nothing can talk to us.
  int64_t max_message_bytes = int64_t{4} << 20;
  int64_t max_steps = 10'000'000;
  int64_t max_instances = int64_t{1} << 20;
  int64_t program_cache_entries = 256;
  std::string kernel_cache;  // folder of compiled GPU kernels; empty: none
  bool warm = false;         // compile the kernels of the built-in worlds at start
  // How long after a fatal device error the process ends, so that whoever started it starts it
  // anew.
  absl::Duration fatal_exit_after = absl::Seconds(10);
};

// The smallest max_message_bytes: a header, a block of one step and a result fit in.
inline constexpr int64_t kSmallestMessageLimit = int64_t{64} << 10;

}  // namespace simgrad::server::config
