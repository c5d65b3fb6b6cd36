// Everything that a piece of work gave, in one place and independent of how it was cut, and where
// two such answers first differ, to the bit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/engine.h"

namespace simgrad::sim::equality {

struct Observed {
  WorkResult result;
  StepDiagnostics diagnostics;          // of all steps
  std::vector<InstanceSite> sites;      // level instances
  std::vector<Tensor> first_states;     // z[0] of the recorded states
  std::vector<Tensor> states, exports;  // [instances][steps][shape]
  // Before the engine reduces them over instances.
  std::vector<std::vector<double>> instance_gradients;  // by input
  std::vector<std::vector<uint8_t>> connected;
};

// Runs the work through the engine.
absl::StatusOr<Observed> Observe(std::shared_ptr<Executor> executor, const Work& work);

// Names what differs first, with both values; nothing where all bits are equal. Times and counts of
// repeated work are no results.
std::optional<std::string> FirstDifference(const Observed& a, const Observed& b);

}  // namespace simgrad::sim::equality
