// The smallest rollout, run inside the process: one ball, one step.
//
// It ends when the engine does, with whatever result: only an engine that never returns is worth
// telling. It runs on the thread that asks, not on a worker.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/engine.h"

namespace simgrad::server::service {

absl::StatusOr<sim::Work> SmallestRollout();

// Errors: of SmallestRollout.
absl::StatusOr<std::function<absl::Status()>> RolloutProbe(
    std::shared_ptr<const sim::Engine> engine);

}  // namespace simgrad::server::service
