// The instances that count in sums over instances, and their weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/work_meter.h"

namespace simgrad::sim {

struct InstanceWeights {
  std::vector<size_t> rows;      // of those that count, in ascending order of their ids
  std::vector<uint64_t> ids;     // theirs, ascending
  uint64_t first = 0, last = 0;  // ids of all instances, those that do not count too
  std::vector<double> weights;   // by row, of all instances
};
// Throws StopRequested. `weights` empty: ones. `leave_out`: by row, instances that do not count (empty: all count).
InstanceWeights WeightsOf(const std::vector<uint64_t>& instance_ids,
                          const std::vector<double>& weights, const std::vector<bool>& leave_out,
                          WorkMeter& meter);

}  // namespace simgrad::sim
