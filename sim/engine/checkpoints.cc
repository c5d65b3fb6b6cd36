#include "sim/engine/checkpoints.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace simgrad::sim {
namespace {

// The first interval tried where none is given; it doubles as needed.
constexpr int64_t kFirstInterval = 32;

absl::Status Exhausted(int64_t needed, int64_t budget) {
  return absl::ResourceExhaustedError(absl::StrCat("the adjoint needs ", needed,
                                                   " bytes for checkpoints and records; the budget"
                                                   " has ",
                                                   budget));
}

}  // namespace

Checkpoints::Checkpoints(Run& run, int64_t interval, int64_t budget_bytes)
    : run_(run),
      chosen_(interval <= 0),
      interval_(interval > 0 ? interval : kFirstInterval),
      budget_bytes_(budget_bytes),
      saved_bytes_(run.SavedBytes()) {}

int64_t Checkpoints::NextDue(int64_t step) const {
  return (step + interval_ - 1) / interval_ * interval_;
}

absl::Status Checkpoints::Visit(int64_t step) {
  if (step % interval_ != 0) return absl::OkStatus();
  // Half of the budget is for checkpoints, half for the records of a reversal.
  while (chosen_ && step > 0 && step % interval_ == 0 &&
         HeldBytes() + saved_bytes_ > budget_bytes_ / 2) {
    interval_ *= 2;
    std::erase_if(saved_, [this](const Saved& saved) { return saved.step % interval_ != 0; });
  }
  if (step % interval_ != 0) return absl::OkStatus();
  if (HeldBytes() + saved_bytes_ > budget_bytes_) {
    return Exhausted(HeldBytes() + saved_bytes_, budget_bytes_);
  }
  saved_.push_back({step, run_.SaveState()});
  return absl::OkStatus();
}

absl::Status Checkpoints::CheckReversal(int64_t steps) const {
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t record = run_.AdjointBytes(step, 1);
    if (record + saved_bytes_ <= budget_bytes_) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "the adjoint of step ", step, " needs ", record,
        " bytes for the record of the iterations that ran, and ", saved_bytes_,
        " for a checkpoint; the budget has ", budget_bytes_,
        ": fewer instances at a time, a smaller max_iter or a larger tolerance would need less"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Checkpoints::RangeBefore(int64_t end, int64_t limit) {
  while (saved_.size() > 1 && saved_.back().step >= end) saved_.pop_back();
  int64_t first = end - 1;
  const int64_t smallest = run_.AdjointBytes(first, 1);
  while (saved_.size() > 1 && HeldBytes() + smallest > budget_bytes_) saved_.pop_back();
  const int64_t floor = std::max(saved_.back().step, end - limit);
  const int64_t room = budget_bytes_ - HeldBytes();
  if (smallest > room) return Exhausted(HeldBytes() + smallest, budget_bytes_);
  // Twice as many steps as long as they fit; then half of the rest, and so on.
  while (first > floor) {
    int64_t wider = std::max(floor, end - 2 * (end - first));
    while (wider < first && run_.AdjointBytes(wider, end - wider) > room) {
      wider += (first - wider + 1) / 2;
    }
    if (wider == first) break;
    first = wider;
  }
  return first;
}

int64_t Checkpoints::RestoreBefore(int64_t step) {
  size_t at = saved_.size() - 1;
  while (at > 0 && saved_[at].step > step) --at;
  run_.RestoreState(saved_[at].state);
  return saved_[at].step;
}

void Checkpoints::VisitInReverse(int64_t step, int64_t reserved) {
  if (saved_.back().step >= step || HeldBytes() + saved_bytes_ > budget_bytes_ / 2) return;
  if (HeldBytes() + saved_bytes_ + reserved > budget_bytes_) return;
  saved_.push_back({step, run_.SaveState()});
}

}  // namespace simgrad::sim
