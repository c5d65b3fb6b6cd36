#include "sim/engine/checkpoints.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace simgrad::sim {
namespace {

// More steps than any run has, and few enough to add to.
constexpr int64_t kLongestInterval = int64_t{1} << 61;

absl::Status Exhausted(int64_t needed, int64_t budget) {
  return absl::ResourceExhaustedError(absl::StrCat("the adjoint needs ", needed,
                                                   " bytes for checkpoints and tapes; the budget"
                                                   " has ",
                                                   budget));
}

}  // namespace

Checkpoints::Checkpoints(Run& run, int64_t interval, const ReversalBudget& budget,
                         ReserveCallback reserve)
    : run_(run),
      chosen_(interval <= 0),
      interval_(interval > 0 ? std::min(interval, kLongestInterval) : budget.interval),
      budget_(budget),
      reserve_(std::move(reserve)),
      saved_bytes_(run.SavedBytes()) {}

absl::Status Checkpoints::CheckLeast() const {
  const std::optional<MemoryNeed> need = run_.NeedOf({1, 1});
  const int64_t least = need ? need->tape_once : 0;
  if (least + saved_bytes_ <= budget_.most) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the adjoint of a step needs ", least, " bytes for its tape, and ", saved_bytes_,
                   " for a checkpoint; the budget has ", budget_.most,
                   ": fewer instances at a time or a smaller step would need less"));
}

int64_t Checkpoints::NextDue(int64_t step) const {
  return (step + interval_ - 1) / interval_ * interval_;
}

absl::Status Checkpoints::Visit(int64_t step) {
  if (step % interval_ != 0) return absl::OkStatus();
  while (chosen_ && step > 0 && step % interval_ == 0 &&
         HeldBytes() + saved_bytes_ > budget_.checkpoints) {
    interval_ *= 2;
    counted_ -= static_cast<int64_t>(std::erase_if(
        saved_, [this](const Held& held) { return held.saved.step % interval_ != 0; }));
  }
  if (step % interval_ != 0) return absl::OkStatus();
  if (HeldBytes() + saved_bytes_ > budget_.held && !Grow(HeldBytes() + saved_bytes_)) {
    return Exhausted(HeldBytes() + saved_bytes_, budget_.held);
  }
  Save(step);
  return absl::OkStatus();
}

void Checkpoints::Save(int64_t step) {
  saved_.push_back({{step, run_.SaveState()}});
  ++counted_;
}

void Checkpoints::DropLast() {
  if (saved_.back().counts) --counted_;
  saved_.pop_back();
}

std::shared_ptr<const void> Checkpoints::StateAt(int64_t step) const {
  const bool is_last = !saved_.empty() && saved_.back().saved.step == step;
  return is_last ? saved_.back().saved.state : nullptr;
}

std::vector<SavedState> Checkpoints::Saved() const {
  std::vector<SavedState> saved;
  for (const Held& held : saved_) saved.push_back(held.saved);
  return saved;
}

void Checkpoints::Adopt(const std::vector<SavedState>& saved) {
  saved_.clear();
  counted_ = 0;
  for (const SavedState& state : saved) saved_.push_back({state, false});
}

// Makes the budget hold `bytes`.
bool Checkpoints::Grow(int64_t bytes) {
  if (bytes <= budget_.held) return true;
  if (bytes > budget_.most || (reserve_ && !reserve_(bytes - budget_.held))) return false;
  budget_.held = bytes;
  return true;
}

absl::Status Checkpoints::CheckReversal(int64_t steps, WorkMeter& meter) {
  constexpr int64_t kStepWork = 64;  // of a look at its bytes, in element-operations
  int64_t step = 0;
  int64_t tape = 0;
  const absl::Status looked = UntilStopped([&] {
    for (int64_t t = 0; t < steps; ++t) {
      meter.Add(kStepWork);
      const int64_t bytes = run_.AdjointBytes(t, 1);
      if (bytes > tape) step = t;
      tape = std::max(tape, bytes);
    }
  });
  if (!looked.ok()) return looked;
  if (Grow(std::min(budget_.most, HeldBytes() + tape)) && tape + saved_bytes_ <= budget_.held) {
    return absl::OkStatus();
  }
  if (Grow(tape + saved_bytes_)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the adjoint of step ", step, " needs ", tape,
      " bytes for the tape of the iterations that ran, and ", saved_bytes_,
      " for a checkpoint; the budget has ", budget_.most,
      tape + saved_bytes_ > budget_.most ? "" : ", but so much is not free now",
      ": fewer instances at a time, a smaller max_iter or a larger tolerance would need less"));
}

absl::StatusOr<int64_t> Checkpoints::RangeBefore(int64_t end, int64_t limit) {
  while (saved_.size() > 1 && saved_.back().saved.step >= end) DropLast();
  int64_t first = end - 1;
  const int64_t smallest = run_.AdjointBytes(first, 1);
  while (saved_.size() > 1 && HeldBytes() + smallest > budget_.held) DropLast();
  const int64_t floor = std::max(saved_.back().saved.step, end - limit);
  const int64_t room = budget_.held - HeldBytes();
  if (smallest > room) return Exhausted(HeldBytes() + smallest, budget_.held);
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
  while (at > 0 && StepOf(at) > step) --at;
  run_.RestoreState(saved_[at].saved.state);
  return StepOf(at);
}

int64_t Checkpoints::NextInReverse(int64_t from, int64_t to, int64_t end, int64_t reserved) const {
  const int64_t room = std::min(budget_.checkpoints, budget_.held - reserved) - HeldBytes();
  const int64_t range = end - to;
  const double ranges = std::ceil(static_cast<double>(end - from) / static_cast<double>(range));
  const double places = 1 + std::floor(static_cast<double>(room) /
                                       static_cast<double>(std::max<int64_t>(saved_bytes_, 1)));
  if (places < 2) return to;
  double times = 0;
  for (double reached = 1; reached < ranges; reached *= (places + times) / times) ++times;
  const double skipped = std::max(1.0, std::floor(ranges * times / (places + times)));
  return std::min(to, from + range * static_cast<int64_t>(skipped));
}

}  // namespace simgrad::sim
