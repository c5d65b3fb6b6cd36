#include "sim/backend/instance_weights.h"

#include <algorithm>

namespace simgrad::sim {

InstanceWeights WeightsOf(const std::vector<uint64_t>& instance_ids,
                          const std::vector<double>& weights, const std::vector<bool>& leave_out,
                          WorkMeter& meter) {
  InstanceWeights made;
  const size_t n = instance_ids.size();
  made.weights = weights.empty() ? std::vector<double>(n, 1.0) : weights;
  for (size_t row = 0; row < n; ++row) {
    if (leave_out.empty() || !leave_out[row]) made.rows.push_back(row);
  }
  SortInPieces(meter, made.rows.begin(), made.rows.end(),
               [&](size_t a, size_t b) { return instance_ids[a] < instance_ids[b]; });
  for (size_t row : made.rows) made.ids.push_back(instance_ids[row]);
  if (n > 0) {
    const auto [first, last] = std::minmax_element(instance_ids.begin(), instance_ids.end());
    made.first = *first;
    made.last = *last;
  }
  return made;
}

}  // namespace simgrad::sim
