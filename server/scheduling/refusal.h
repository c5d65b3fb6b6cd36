// Why a request is not taken, as data: the service makes a status of it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace simgrad::server::scheduling {

enum class RefusalReason : uint8_t {
  kFull,      // as many wait as may
  kMemory,    // it does not fit now
  kTooLarge,  // it needs more memory than the server has
  kDeadline,  // it had passed already
  kDraining,
  kInFlight,  // the caller's own limit of requests at once
  kRate,      // the caller's own limit of instance-steps per second
  kShare,     // the caller's own limit of memory
  kLength,    // it is longer than a request may be
};

// When a caller whom a server that drains has sent away may find another.
inline constexpr absl::Duration kElsewhereAfter = absl::Seconds(1);

struct Refusal {
  RefusalReason reason = RefusalReason::kFull;
  std::string message;
  absl::Duration retry_after;  // zero: never as it is
};

}  // namespace simgrad::server::scheduling
