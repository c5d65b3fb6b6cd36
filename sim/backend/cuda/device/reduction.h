// Sums of one role in a defined order, and the other reductions, over elements named by a function.
//
// Maths: precision/reduction.h. Where the accumulator holds every operand the sum runs in the
//   accumulator's carrier (the bits are the same: every addition is rounded once either way);
//   elsewhere in double. A pairwise sum of up to 64 elements unrolls to its tree.
// Errors: none. Threads: pure, but for the Block functions: called by all threads of a block alike.
#pragma once

#include "precision/lane.h"
#include "precision/reduction.h"

namespace simgrad::sim::cuda::device {

using precision::Format;
using precision::Lane;
using precision::Order;

// Adds in the accumulator's format.
template <Format kAccumulator, Format kFrom,
          bool kInCarrier = !precision::Narrows(kFrom, kAccumulator)>
struct Adder {
  using T = typename Lane<kAccumulator>::Carrier;
  SIMGRAD_HD T operator()(T a, T b) const { return Lane<kAccumulator>::Add(a, b); }
};
template <Format kAccumulator, Format kFrom>
struct Adder<kAccumulator, kFrom, false> {
  using T = double;
  SIMGRAD_HD T operator()(T a, T b) const { return precision::Add(kAccumulator, a, b); }
};

// The largest power of two below n.
SIMGRAD_HD constexpr int LeftOf(int n) {
  int left = 1;
  while (2 * left < n) left *= 2;
  return left;
}

template <class T, int kCount, class At, class AddRounded>
SIMGRAD_HD inline T Tree(const At& at, int first, const AddRounded& add) {
  if constexpr (kCount == 1) {
    return static_cast<T>(at(first));
  } else {
    constexpr int kLeft = LeftOf(kCount);
    return add(Tree<T, kLeft>(at, first, add), Tree<T, kCount - kLeft>(at, first + kLeft, add));
  }
}

// The sum of at(0), ..., at(kCount - 1), values of kFrom, in the format kTo.
template <Order kOrder, Format kAccumulator, Format kFrom, Format kTo, int kCount, class At>
SIMGRAD_HD inline typename Lane<kTo>::Carrier Sum(const At& at) {
  using Add = Adder<kAccumulator, kFrom>;
  using T = typename Add::T;
  const Add add;
  T total = 0;
  if constexpr (kCount == 0) {
    return 0;
  } else if constexpr (kOrder == Order::kExact) {
    precision::ExactSum sum;
    for (int i = 0; i < kCount; ++i) sum.Add(static_cast<double>(at(i)));
    return static_cast<typename Lane<kTo>::Carrier>(sum.Result(kTo));
  } else if constexpr (kOrder == Order::kSequential) {
    for (int i = 0; i < kCount; ++i) total = add(total, static_cast<T>(at(i)));
  } else if constexpr (kOrder == Order::kReversed) {
    for (int i = kCount - 1; i >= 0; --i) total = add(total, static_cast<T>(at(i)));
  } else if constexpr (kOrder == Order::kCompensated) {
    precision::CompensatedSum<T> sum;
    for (int i = 0; i < kCount; ++i) sum.Push(static_cast<T>(at(i)), add);
    total = sum.Total(add);
  } else if constexpr (kCount <= 64) {
    total = Tree<T, kCount>(at, 0, add);
  } else {
    precision::PairwiseCounter<T, 24> tree;
    for (int i = 0; i < kCount; ++i) tree.Push(static_cast<T>(at(i)), add);
    total = tree.Total(add);
  }
  return Lane<kTo>::Round(total);
}

template <class T, int kCount, bool kLargest, class At>
SIMGRAD_HD inline T ExtremeOfReals(const At& at) {
  T extreme = at(0);
  for (int i = 1; i < kCount; ++i) {
    const T next = at(i);
    extreme = kLargest ? precision::Max(extreme, next) : precision::Min(extreme, next);
  }
  return precision::Canonical(extreme);
}

// The first extreme; the first NaN counts as the extreme.
template <int kCount, bool kLargest, class At>
SIMGRAD_HD inline int32_t ExtremeIndex(const At& at) {
  int32_t best = 0;
  auto extreme = at(0);
  bool is_nan = extreme != extreme;
  for (int i = 1; i < kCount; ++i) {
    const auto next = at(i);
    const bool better = kLargest ? next > extreme : next < extreme;
    if (!is_nan && (better || next != next)) {
      extreme = next;
      best = i;
      is_nan = next != next;
    }
  }
  return best;
}

template <int kCount, class At>
SIMGRAD_HD inline bool Any(const At& at) {
  bool any = false;
  for (int i = 0; i < kCount; ++i) any |= static_cast<bool>(at(i));
  return any;
}

// to[0], to[stride], ...: the running sums in order (from the end where kReverse), each rounded.
template <Format kAccumulator, Format kFrom, Format kTo, int kCount, bool kReverse, class At,
          class Put>
SIMGRAD_HD inline void Cumsum(const At& at, const Put& put) {
  using Add = Adder<kAccumulator, kFrom>;
  const Add add;
  typename Add::T total = 0;
  for (int i = 0; i < kCount; ++i) {
    const int k = kReverse ? kCount - 1 - i : i;
    total = add(total, static_cast<typename Add::T>(at(k)));
    put(k, Lane<kTo>::Round(total));
  }
}

// The pairwise sum by all threads, level by level. `scratch` holds 2 * ((kCount + 1) / 2) numbers;
// the caller has a barrier before (the elements are there) and one before scratch is used again.
template <Format kAccumulator, Format kFrom, Format kTo, int kCount, class At>
__device__ inline typename Lane<kTo>::Carrier BlockPairwiseSum(
    const At& at, typename Adder<kAccumulator, kFrom>::T* scratch) {
  using Add = Adder<kAccumulator, kFrom>;
  using T = typename Add::T;
  const Add add;
  constexpr int kHalf = (kCount + 1) / 2;
  T* from = scratch;
  T* to = scratch + kHalf;
  for (int i = threadIdx.x; i < kHalf; i += blockDim.x) {
    const T left = static_cast<T>(at(2 * i));
    from[i] = 2 * i + 1 < kCount ? add(left, static_cast<T>(at(2 * i + 1))) : left;
  }
  for (int width = kHalf; width > 1; width = (width + 1) / 2) {
    __syncthreads();
    for (int i = threadIdx.x; 2 * i < width; i += blockDim.x) {
      to[i] = 2 * i + 1 < width ? add(from[2 * i], from[2 * i + 1]) : from[2 * i];
    }
    T* const other = from;
    from = to;
    to = other;
  }
  __syncthreads();
  return Lane<kTo>::Round(from[0]);
}

// at(0), ..., at(kCount - 1) joined by all threads: each its own elements, then the threads' in a
// tree. For a `join` whose order does not matter. `scratch` holds a T for each thread, kCount at
// most; barriers as for BlockPairwiseSum.
template <class T, int kCount, class At, class JoinTwo>
__device__ inline T BlockJoin(const At& at, T* scratch, const JoinTwo& join) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int joined = threads < kCount ? threads : kCount;
  if (thread < joined) {
    T mine = at(thread);
    for (int i = thread + threads; i < kCount; i += threads) mine = join(mine, at(i));
    scratch[thread] = mine;
  }
  for (int width = joined; width > 1;) {
    const int half = (width + 1) / 2;
    __syncthreads();
    if (thread + half < width) scratch[thread] = join(scratch[thread], scratch[thread + half]);
    width = half;
  }
  __syncthreads();
  return scratch[0];
}

template <class T, int kCount, bool kLargest, class At>
__device__ inline T BlockExtreme(const At& at, T* scratch) {
  return precision::Canonical(BlockJoin<T, kCount>(at, scratch, [](T a, T b) {
    return kLargest ? precision::Max(a, b) : precision::Min(a, b);
  }));
}

// Whether one of the elements that are this thread's is true.
template <int kCount, class At>
__device__ inline int OwnAny(const At& at) {
  int any = 0;
  for (int i = threadIdx.x; i < kCount; i += blockDim.x) any |= at(i) ? 1 : 0;
  return any;
}

// An extreme and where it stands.
template <class T>
struct Placed {
  T value;
  int32_t index;
};

// As ExtremeIndex: of equal ones the first; the first NaN before all numbers.
template <class T, int kCount, bool kLargest, class At>
__device__ inline int32_t BlockExtremeIndex(const At& at, Placed<T>* scratch) {
  const auto placed = [&](int i) { return Placed<T>{at(i), i}; };
  const auto join = [](const Placed<T>& a, const Placed<T>& b) {
    const bool a_is_nan = a.value != a.value;
    const bool b_is_nan = b.value != b.value;
    const bool a_leads = kLargest ? a.value > b.value : a.value < b.value;
    const bool b_leads = kLargest ? b.value > a.value : b.value < a.value;
    if (a_is_nan != b_is_nan) return a_is_nan ? a : b;
    if (!a_is_nan && a_leads != b_leads) return a_leads ? a : b;
    return a.index < b.index ? a : b;
  };
  return BlockJoin<Placed<T>, kCount>(placed, scratch, join).index;
}

// The exact sum is the same in every order. `total` is one for the block, `result` too.
template <Format kTo, int kCount, class At>
__device__ inline typename Lane<kTo>::Carrier BlockExactSum(const At& at,
                                                            precision::ExactSum* total,
                                                            double* result) {
  if (threadIdx.x == 0) *total = precision::ExactSum();
  __syncthreads();
  if (threadIdx.x < kCount) {
    precision::ExactSum mine;
    for (int i = threadIdx.x; i < kCount; i += blockDim.x) mine.Add(static_cast<double>(at(i)));
    total->Join(mine, [](int64_t& limb, int64_t x) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&limb), static_cast<unsigned long long>(x));
    });
  }
  __syncthreads();
  if (threadIdx.x == 0) *result = total->Result(kTo);
  __syncthreads();
  return static_cast<typename Lane<kTo>::Carrier>(*result);
}

}  // namespace simgrad::sim::cuda::device
