#include "sim/engine/kept_run.h"

namespace simgrad::sim {

int64_t KeptBytes(const KeptRun& kept, int64_t saved_bytes) {
  // Signatures, health twice over, values, ids: a few numbers for each instance.
  constexpr int64_t kPerInstance = 128;
  constexpr int64_t kItself = 4096;
  int64_t bytes = kItself + kept.batch.instances * kPerInstance;
  if (kept.counts != nullptr) {
    bytes += kept.counts->bytes() + static_cast<int64_t>(kept.saved.size() + 1) * saved_bytes;
  }
  for (const Binding& binding : kept.batch.inputs) {
    bytes += static_cast<int64_t>(binding.tensor.bytes.size());
  }
  for (const auto& [row, start] : kept.births) {
    for (const Tensor& state : start.states) bytes += static_cast<int64_t>(state.bytes.size());
  }
  for (const std::vector<int64_t>& steps : kept.forward.first_event_steps) {
    bytes += 8 * static_cast<int64_t>(steps.size());
  }
  return bytes;
}

Work WorkOf(const KeptRun& kept) {
  Work work;
  work.batch = kept.batch;
  work.options = kept.options;
  work.arithmetic_instances = kept.arithmetic_instances;
  work.gradient.emplace();
  return work;
}

bool RunsForwardAlike(const NumericalProgram& one, const NumericalProgram& other) {
  return !one.forward_fingerprint.empty() && one.forward_fingerprint == other.forward_fingerprint;
}

}  // namespace simgrad::sim
