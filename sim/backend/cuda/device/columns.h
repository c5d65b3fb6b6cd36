// The columns of sim/backend/columns.h word by word: cleared, merged, by as many threads as there are.
//
// Maths: sums of integers, extremes of ordered keys. Of two ExtremeMargins the smaller magnitude is
//   kept, then the smaller key. So the order of merging does not matter.
// Errors: none. Threads: a word belongs to one thread; barriers are the caller's.
// Cost: loops over columns are called, not inlined. A text compiles faster that way, and they run
//   once per slot, behind a window of steps.
#pragma once

#include "sim/backend/cuda/kernel_abi.h"

namespace simgrad::sim::cuda::device {

using precision::BitsOf;

// Integers that sort as doubles do, -0 below +0.
SIMGRAD_HD constexpr unsigned long long OrderedKey(double x) {
  const uint64_t bits = BitsOf(x);
  return (bits >> 63) != 0 ? ~bits : bits | (uint64_t{1} << 63);
}
inline constexpr unsigned long long kNoMinimum = 0xFFF0000000000000u;  // of +inf
inline constexpr unsigned long long kNoMaximum = 0x000FFFFFFFFFFFFFu;  // of -inf
inline constexpr uint64_t kNoMargin = ~uint64_t{0};

struct ClearWord {
  template <class T>
  SIMGRAD_HD void Sum(T& to, const T&) const {
    to = 0;
  }
  template <class T>
  SIMGRAD_HD void Least(T& to, const T&, T none) const {
    to = none;
  }
  template <class T>
  SIMGRAD_HD void Most(T& to, const T&, T none) const {
    to = none;
  }
  SIMGRAD_HD void Nearest(ExtremeMargin& to, const ExtremeMargin&) const {
    to = {kNoMargin, kNoMargin};
  }
};

struct CopyWord {
  template <class T>
  SIMGRAD_HD void Sum(T& to, const T& from) const {
    to = from;
  }
  template <class T>
  SIMGRAD_HD void Least(T& to, const T& from, T) const {
    to = from;
  }
  template <class T>
  SIMGRAD_HD void Most(T& to, const T& from, T) const {
    to = from;
  }
  SIMGRAD_HD void Nearest(ExtremeMargin& to, const ExtremeMargin& from) const { to = from; }
};

struct MergeWord {
  template <class T>
  SIMGRAD_HD void Sum(T& to, const T& from) const {
    if (from != 0) to += from;  // most words of histograms are 0: no traffic
  }
  template <class T>
  SIMGRAD_HD void Least(T& to, const T& from, T) const {
    to = from < to ? from : to;
  }
  template <class T>
  SIMGRAD_HD void Most(T& to, const T& from, T) const {
    to = from > to ? from : to;
  }
  SIMGRAD_HD void Nearest(ExtremeMargin& to, const ExtremeMargin& from) const {
    const bool nearer =
        from.magnitude < to.magnitude || (from.magnitude == to.magnitude && from.key < to.key);
    if (nearer) to = from;
  }
};

// One word of the partials of all blocks, of which `from` is the first; the next lies `stride` bytes behind.
struct MergeAllWord {
  int64_t blocks, stride;

  template <class T>
  SIMGRAD_HD const T& Of(const T& first, int64_t block) const {
    return *reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(&first) +
                                       block * stride);
  }
  template <class T>
  SIMGRAD_HD void Sum(T& to, const T& from) const {
    T sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += Of(from, b);
    to = sum;
  }
  template <class T>
  SIMGRAD_HD void Least(T& to, const T& from, T none) const {
    T least = none;
    for (int64_t b = 0; b < blocks; ++b) least = Of(from, b) < least ? Of(from, b) : least;
    to = least;
  }
  template <class T>
  SIMGRAD_HD void Most(T& to, const T& from, T none) const {
    T most = none;
    for (int64_t b = 0; b < blocks; ++b) most = Of(from, b) > most ? Of(from, b) : most;
    to = most;
  }
  SIMGRAD_HD void Nearest(ExtremeMargin& to, const ExtremeMargin& from) const {
    ExtremeMargin nearest = {kNoMargin, kNoMargin};
    for (int64_t b = 0; b < blocks; ++b) MergeWord{}.Nearest(nearest, Of(from, b));
    to = nearest;
  }
};

// How many words a column has, and one of them under an action.
SIMGRAD_HD constexpr int WordsOf(const TerminationColumn&) {
  return 12 + kReasons + kMarginBucketCount + kIterationBucketCount;
}
SIMGRAD_HD constexpr int WordsOf(const EventColumn&) { return 6; }
SIMGRAD_HD constexpr int WordsOf(const StateColumn&) { return 7; }
SIMGRAD_HD constexpr int WordsOf(const BackwardColumn&) { return 2 + kExponentBucketCount; }

template <class Action>
SIMGRAD_HD inline void OnWord(TerminationColumn& to, const TerminationColumn& from, int word,
                              const Action& action) {
  constexpr int kHistogram = 12 + kReasons;
  constexpr int kIterations = kHistogram + kMarginBucketCount;
  if (word >= kIterations) {
    return action.Sum(to.iterations[word - kIterations], from.iterations[word - kIterations]);
  }
  if (word >= kHistogram) {
    return action.Sum(to.histogram[word - kHistogram], from.histogram[word - kHistogram]);
  }
  switch (word) {
    case 0:
      return action.Sum(to.runs, from.runs);
    case 1:
      return action.Sum(to.iterations_sum, from.iterations_sum);
    case 2:
      return action.Sum(to.checks, from.checks);
    case 3:
      return action.Sum(to.near_stopped, from.near_stopped);
    case 4:
      return action.Sum(to.near_continued, from.near_continued);
    case 5:
      return action.Sum(to.nan_margins, from.nan_margins);
    case 6:
      return action.Least(to.tested_min, from.tested_min, kNoMinimum);
    case 7:
      return action.Most(to.tested_max, from.tested_max, kNoMaximum);
    case 8:
      return action.Nearest(to.absolute, from.absolute);
    case 9:
      return action.Nearest(to.ulps, from.ulps);
    case 10:
      return action.Least(to.iterations_min, from.iterations_min, ~uint32_t{0});
    case 11:
      return action.Most(to.iterations_max, from.iterations_max, uint32_t{0});
    default:
      return action.Sum(to.reasons[word - 12], from.reasons[word - 12]);
  }
}

template <class Action>
SIMGRAD_HD inline void OnWord(EventColumn& to, const EventColumn& from, int word,
                              const Action& action) {
  switch (word) {
    case 0:
      return action.Sum(to.checks, from.checks);
    case 1:
      return action.Sum(to.count, from.count);
    case 2:
      return action.Sum(to.changes, from.changes);
    case 3:
      return action.Sum(to.nan_margins, from.nan_margins);
    case 4:
      return action.Nearest(to.absolute, from.absolute);
    default:
      return action.Nearest(to.ulps, from.ulps);
  }
}

template <class Action>
SIMGRAD_HD inline void OnWord(StateColumn& to, const StateColumn& from, int word,
                              const Action& action) {
  switch (word) {
    case 0:
      return action.Least(to.min, from.min, kNoMinimum);
    case 1:
      return action.Most(to.max, from.max, kNoMaximum);
    case 2:
      return action.Least(to.smallest, from.smallest, kNoMinimum);
    case 3:
      return action.Sum(to.subnormals, from.subnormals);
    case 4:
      return action.Sum(to.zeros, from.zeros);
    case 5:
      return action.Sum(to.nans, from.nans);
    default:
      return action.Sum(to.infinities, from.infinities);
  }
}

template <class Action>
SIMGRAD_HD inline void OnWord(BackwardColumn& to, const BackwardColumn& from, int word,
                              const Action& action) {
  if (word == 0) return action.Most(to.largest, from.largest, 0ull);
  if (word == 1) return action.Sum(to.nonfinite, from.nonfinite);
  action.Sum(to.exponents[word - 2], from.exponents[word - 2]);
}

// All words of `count` columns, shared by the threads of the block.
template <class Column, class Action>
__device__ __noinline__ void OnColumns(Column* to, const Column* from, int64_t count,
                                       const Action& action) {
  const unsigned words = count > 0 ? static_cast<unsigned>(WordsOf(*to)) : 1;
  const unsigned all = static_cast<unsigned>(count) * words;
  for (unsigned i = threadIdx.x; i < all; i += blockDim.x) {
    OnWord(to[i / words], from[i / words], static_cast<int>(i % words), action);
  }
}

// Column blockIdx.x of every block's partials, merged. partial: [blocks][columns][each].
template <class Column>
__device__ __noinline__ void MergeBlocks(Column* merged, const Column* partial, int64_t blocks,
                                         int64_t columns, int64_t each) {
  if (partial == nullptr || each == 0 || blockIdx.x >= columns) return;
  const int words = WordsOf(*partial);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * each;
  const MergeAllWord all = {blocks, columns * each * static_cast<int64_t>(sizeof(Column))};
  for (int64_t i = threadIdx.x; i < each * words; i += blockDim.x) {
    const int64_t place = first + i / words;
    OnWord(merged[place], partial[place], static_cast<int>(i % words), all);
  }
}

}  // namespace simgrad::sim::cuda::device
