#include "tests/sim/equality/single_row.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace simgrad::sim::equality {
namespace {

// Entry `row` of `rows` equal parts of a list.
template <typename T>
std::vector<T> Part(const std::vector<T>& list, int64_t row, int64_t rows) {
  const int64_t size = static_cast<int64_t>(list.size()) / rows;
  return {list.begin() + row * size, list.begin() + (row + 1) * size};
}

Tensor RowOf(const Tensor& tensor, int64_t row, int64_t rows) {
  Tensor part = tensor;
  part.bytes = Part(tensor.bytes, row, rows);
  part.shape[0] = 1;
  return part;
}

std::vector<Tensor> RowOf(const std::vector<Tensor>& tensors, int64_t row, int64_t rows) {
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) parts.push_back(RowOf(tensor, row, rows));
  return parts;
}

void KeepRow(std::vector<std::vector<double>>& lists, int64_t row, int64_t rows) {
  for (std::vector<double>& list : lists) list = Part(list, row, rows);
}

// What belongs to one instance, in the form of an answer; sums over instances are left out.
Observed RowOf(const Observed& all, int64_t row, int64_t rows) {
  Observed one;
  one.first_states = RowOf(all.first_states, row, rows);
  one.states = RowOf(all.states, row, rows);
  one.exports = RowOf(all.exports, row, rows);
  one.instance_gradients = all.instance_gradients;
  KeepRow(one.instance_gradients, row, rows);
  for (const std::vector<uint8_t>& connected : all.connected) {
    one.connected.push_back(Part(connected, row, rows));
  }
  const WorkResult& from = all.result;
  WorkResult& to = one.result;
  to.steps_done = from.steps_done;
  to.final_states = RowOf(from.final_states, row, rows);
  to.health = Part(from.health, row, rows);
  to.halts = Part(from.halts, row, rows);
  to.path_signatures = Part(from.path_signatures, row, rows);
  for (const std::vector<int64_t>& steps : from.first_event_steps) {
    to.first_event_steps.push_back(Part(steps, row, rows));
  }
  to.values = Part(from.values, row, rows);
  for (const InstanceSite& site : all.sites) {
    InstanceSite& kept = one.sites.emplace_back();
    for (size_t i = static_cast<size_t>(row); i < site.iterations.size();
         i += static_cast<size_t>(rows)) {
      kept.iterations.push_back(site.iterations[i]);
      kept.reasons.push_back(site.reasons[i]);
      kept.value_counts.push_back(site.value_counts[i]);
    }
    kept.values = {site.values[static_cast<size_t>(row)]};
  }
  return one;
}

}  // namespace

Work AloneWork(const Work& work, int64_t row) {
  Work alone = work;
  const int64_t rows = work.batch.instances;
  alone.batch.instances = 1;
  alone.batch.instance_ids = {work.batch.instance_ids[static_cast<size_t>(row)]};
  for (Binding& binding : alone.batch.inputs) {
    if (!binding.per_instance || binding.tensor.bytes.empty()) continue;
    binding.tensor.shape = {binding.tensor.count() / rows};
    binding.tensor.bytes = Part(binding.tensor.bytes, row, rows);
  }
  KeepRow(alone.batch.cotangents.final_state, row, rows);
  KeepRow(alone.batch.cotangents.trajectory_state, row, rows);
  KeepRow(alone.batch.cotangents.trajectory_export, row, rows);
  if (!work.weights.empty()) alone.weights = Part(work.weights, row, rows);
  return alone;
}

std::optional<std::string> FirstDifferenceOfRow(const Work& work, const Observed& all, int64_t row,
                                                const Observed& alone) {
  const std::optional<std::string> difference =
      FirstDifference(RowOf(all, row, work.batch.instances), RowOf(alone, 0, 1));
  if (!difference) return std::nullopt;
  return absl::StrCat("row ", row, ": ", *difference);
}

}  // namespace simgrad::sim::equality
