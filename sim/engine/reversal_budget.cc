#include "sim/engine/reversal_budget.h"

#include <algorithm>
#include <cmath>

#include "sim/engine/chunk_size.h"

namespace simgrad::sim {
namespace {

// Steps between two checkpoints where it is not known how many are reversed at once.
constexpr int64_t kUsualInterval = 32;

// Bytes of all checkpoints that are worth no thought.
double SmallBytes(const Work& work) {
  constexpr int64_t kSmall = 32 << 20;
  return static_cast<double>(std::max<int64_t>(1, std::min(kSmall, work.memory_budget_bytes / 32)));
}

// Element-operations of a step on one thread of the run.
double WorkOfThread(const Work& work) {
  const int64_t most = std::max<int64_t>(1, work.batch.instances);
  const auto threads = static_cast<double>(std::clamp<int64_t>(work.options.threads, 1, most));
  return StepWorkOf(work.batch) / threads;
}

// The interval that would be best if checkpoints cost nothing: the steps that are reversed at once,
// which are no more than a chunk has. Its length follows the clock, so this is a guess.
int64_t BestInterval(const Work& work, int64_t steps_at_once) {
  constexpr double kChunkWork = 1 << 24;  // element-operations of some 10 ms
  constexpr double kFewest = 4;
  constexpr double kMost = 128;
  const double chunk = std::clamp(kChunkWork / WorkOfThread(work), kFewest, kMost);
  return std::max<int64_t>(
      1, std::min({steps_at_once, MostStepsOfAChunk(work), static_cast<int64_t>(chunk)}));
}

int64_t LongestInterval(const Work& work, int64_t steps_at_once) {
  if (steps_at_once <= kUsualInterval) return kUsualInterval;  // without a look at the program
  return std::max(kUsualInterval, BestInterval(work, steps_at_once));
}

// The fewest steps that take longer than a chunk costs by itself, and than a state is copied in. A
// chunk that records trajectories costs a message for each.
int64_t ShortestInterval(const Work& work, int64_t saved) {
  constexpr double kOwnWork = 1 << 20;  // element-operations, of a chunk
  constexpr double kCopyWork = 16;      // of a byte
  constexpr double kMost = 8;
  const double work_of_step = WorkOfThread(work);
  const double copy = kCopyWork * static_cast<double>(saved) / work_of_step;
  const bool records = !work.options.record_states.empty() || !work.options.record_exports.empty();
  const double own = records ? kMost : kOwnWork / work_of_step;
  const double fewest = std::clamp(std::ceil(std::max(own, copy)), 1.0, kMost);
  return std::min(static_cast<int64_t>(fewest), MostStepsOfAChunk(work));
}

// The interval that is tried first where none is given. Below kUsualInterval it is at least so long
// that all checkpoints are small.
int64_t FirstInterval(const Work& work, const std::optional<MemoryNeed>& need, int64_t saved) {
  if (!need || need->steps_at_once <= 0) return kUsualInterval;
  const double all = static_cast<double>(work.batch.steps) * static_cast<double>(saved);
  const double fewest = std::ceil(all / SmallBytes(work));
  const int64_t best = BestInterval(work, need->steps_at_once);
  const int64_t longest = std::max(kUsualInterval, best);
  if (fewest > static_cast<double>(longest)) return longest;
  const int64_t shortest = std::max(ShortestInterval(work, saved), static_cast<int64_t>(fewest));
  return std::clamp(best, shortest, longest);
}

// Checkpoints that are worth their memory. Those on the way to a range are included: with log2(n) of
// them, no step of an interval of n ranges runs again more than about log2(n) / 2 times
// (checkpoints.h).
double CheckpointsOf(const Work& work, const std::optional<MemoryNeed>& need, int64_t saved,
                     int64_t first_interval) {
  const double steps = static_cast<double>(work.batch.steps);
  if (work.checkpoint_interval > 0) {
    const double interval =
        std::clamp(static_cast<double>(work.checkpoint_interval), 1.0, std::max(1.0, steps));
    // A chunk that the clock chooses may have one step. A rollout that is kept reverses nothing.
    const int64_t range = work.chunk_steps > 0 ? RangeStepsOf(work, 0).range : 1;
    const double ranges = work.keep ? 1.0 : interval / static_cast<double>(range);
    return std::ceil(steps / interval) + std::max(2.0, std::ceil(std::log2(ranges)));
  }
  constexpr double kFew = 64;
  const double every = std::ceil(steps / static_cast<double>(first_interval));
  const double few = std::max(kFew, 2 * std::ceil(std::sqrt(steps)));
  const bool is_small = need && need->steps_at_once > 0 &&
                        (every - 1) * static_cast<double>(saved) <= SmallBytes(work);
  return std::min((is_small ? every : std::min(every, few)) + 2, steps + 1);
}

}  // namespace

RangeSteps RangeStepsOf(const Work& work, int64_t steps_at_once) {
  const int64_t chunk = std::max<int64_t>(1, std::min(work.batch.steps, MostStepsOfAChunk(work)));
  const bool is_given = work.checkpoint_interval > 0;
  return {chunk, std::min(chunk, is_given ? work.checkpoint_interval
                                          : LongestInterval(work, steps_at_once))};
}

absl::StatusOr<std::optional<MemoryNeed>> NeedForItsRanges(const Work& work,
                                                           const NeedCallback& need_of) {
  const RangeSteps usual = RangeStepsOf(work, 0);
  absl::StatusOr<std::optional<MemoryNeed>> need = need_of(usual);
  if (!need.ok() || !need->has_value()) return need;
  const RangeSteps own = RangeStepsOf(work, (*need)->steps_at_once);
  return own.range == usual.range ? need : need_of(own);
}

ReversalBudget ReversalBudgetOf(const Work& work, const std::optional<MemoryNeed>& need,
                                int64_t saved) {
  ReversalBudget budget;
  budget.most = work.memory_budget_bytes;
  budget.interval = FirstInterval(work, need, saved);
  const double wanted =
      CheckpointsOf(work, need, saved, budget.interval) * static_cast<double>(saved);
  if (!need) {
    // The tape is not known, but what checkpoints are worth is.
    budget.checkpoints =
        static_cast<int64_t>(std::min(wanted, static_cast<double>(budget.most / 2)));
    budget.held = budget.most;
    return budget;
  }
  // Without `reserve` no more can be had later, so loops get what their caps need. With it they get
  // what most loops take.
  constexpr int64_t kUsual = int64_t{16} << 20;
  int64_t tape = need->tape_at_caps;
  if (work.reserve) tape = std::min(tape, std::max(kUsual, 2 * need->tape_once));
  const int64_t room = std::max(budget.most / 2, budget.most - tape);
  budget.checkpoints = static_cast<int64_t>(std::min(wanted, static_cast<double>(room)));
  budget.held = std::min(budget.most, budget.checkpoints + tape);
  return budget;
}

}  // namespace simgrad::sim
