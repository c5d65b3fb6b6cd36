#include "sim/engine/births.h"

#include <algorithm>
#include <utility>

namespace simgrad::sim {
namespace {

// Row `row` of a tensor over instances.
Tensor RowOf(const Tensor& tensor, size_t row) {
  Tensor part;
  part.dtype = tensor.dtype;
  part.shape = tensor.shape;
  const size_t bytes = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
  part.shape[0] = 1;
  const auto begin = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(row * bytes);
  part.bytes.assign(begin, begin + static_cast<std::ptrdiff_t>(bytes));
  return part;
}

}  // namespace

Births::Births(Run& run, const Batch& batch, int32_t limit, WorkMeter::StopCallback stop)
    : run_(run),
      batch_(batch),
      limit_(static_cast<size_t>(std::max(limit, 0))),
      stop_(std::move(stop)) {}

void Births::BeforeChunk(int64_t first_step, std::shared_ptr<const void> saved) {
  if (limit_ == 0) return;
  chunk_start_ = first_step;
  before_ = nullptr;
  if (first_step > 0) before_ = saved ? std::move(saved) : run_.SaveState();
}

void Births::AfterChunk() {
  if (limit_ == 0) return;
  const std::vector<InstanceHealth>& health = run_.Health();
  std::vector<size_t> born;
  for (size_t row = 0; row < health.size() && born.size() < limit_; ++row) {
    if (!health[row].ok && health[row].step >= chunk_start_) born.push_back(row);
  }
  if (born.empty() || before_ == nullptr) {
    before_ = nullptr;
    return;
  }
  const std::shared_ptr<const void> after = run_.SaveState();
  if (after == nullptr) return;  // stopped
  run_.RestoreState(before_);
  std::vector<Tensor> states;
  for (int32_t input : batch_.program->program.InputsOf(InputKind::kState)) {
    states.push_back(run_.State(input));
  }
  const std::vector<double> costs = run_.Values();
  for (size_t row : born) {
    ReplayStart& start = starts_[row];
    start.step = chunk_start_;
    if (!costs.empty()) start.cost = costs[row];
    for (const Tensor& state : states) start.states.push_back(RowOf(state, row));
  }
  while (starts_.size() > limit_) starts_.erase(std::prev(starts_.end()));
  run_.RestoreState(after);
  before_ = nullptr;
}

absl::StatusOr<std::vector<BirthCertificate>> Births::Write(
    const std::vector<InstanceHealth>& health, double seed_scale) const {
  std::vector<BirthCertificate> certificates;
  size_t taken = 0;
  for (size_t row = 0; row < health.size() && taken < limit_; ++row) {
    if (health[row].ok) continue;
    ++taken;
    const auto start = starts_.find(row);
    const bool forward = health[row].phase != Phase::kAdjoint;
    const auto birth =
        WriteCertificate(batch_, static_cast<int64_t>(row), health[row], seed_scale,
                         forward && start != starts_.end() ? &start->second : nullptr, stop_);
    if (absl::IsCancelled(birth.status())) return birth.status();
    if (birth.ok() && birth->has_value()) certificates.push_back(**birth);
  }
  return certificates;
}

}  // namespace simgrad::sim
