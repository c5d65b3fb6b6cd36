// The limits of one request.
#pragma once

#include <cstdint>

namespace simgrad::server::validation {

struct RequestLimits {
  int64_t max_steps = 10'000'000;
  int64_t max_instances = int64_t{1} << 20;
  int64_t max_message_bytes = int64_t{4} << 20;
  int64_t max_arithmetic_instances = 1024;
  int64_t max_path_bytes = int64_t{4} << 30;  // of a path that is recorded
};

}  // namespace simgrad::server::validation
