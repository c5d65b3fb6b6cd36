// Sums of one role in a defined order, and the pieces vector kernels build theirs from.
//
// Maths: inputs are values of the role's format; every addition rounds to the accumulator's format;
//   the total is rounded to the result's format. Orders, for x[0..n-1]:
//     sequential   acc = +0; for i ascending: acc = round(acc + x[i])
//     reversed     the same for i descending
//     pairwise     tree aligned to the index, level by level (0,1)(2,3)...; a node without a
//                  sibling is passed on unchanged
//     compensated  Neumaier's sum from +0 in index order, every operation rounded; a running sum
//                  that is not finite is returned as it is
//     exact        the exact sum rounded once, to the result's format (precision/exact_sum.h)
//     shuffled     sequential over a permutation, which the caller has applied (precision/shuffle.h)
// Accuracy: empty sums are +0; overflow is Inf, NaN propagates and leaves as the canonical NaN.
// Errors: none. Cost: O(n) time; O(log n) state for pairwise, 560 bytes for exact.
// Threads: pure; host and device; needs the float environment of precision/float_environment.h.
// Source: docs/numerics.md section 3; A. Neumaier, ZAMM 54 (1974), equation (2.IV).
#pragma once

#include "precision/arithmetic.h"
#include "precision/exact_sum.h"

namespace simgrad::precision {

enum class Order : uint8_t { kSequential, kReversed, kPairwise, kCompensated, kExact, kShuffled };
inline constexpr int kOrderCount = 6;

#ifndef __CUDACC_RTC__
constexpr std::string_view OrderName(Order order) {
  constexpr std::string_view kNames[kOrderCount] = {"sequential",  "reversed", "pairwise",
                                                    "compensated", "exact",    "shuffled"};
  return kNames[static_cast<int>(order)];
}

constexpr std::optional<Order> OrderFromName(std::string_view name) {
  for (int i = 0; i < kOrderCount; ++i) {
    if (name == OrderName(static_cast<Order>(i))) return static_cast<Order>(i);
  }
  return std::nullopt;
}
#endif

// The pairwise tree fed leaf by leaf. It works like a binary counter: node[l] holds the finished
// subtree of 2^l leaves where bit l of `count` is set, and a new leaf carries through the set bits.
// What is left at the end joins from the right, each node passing up unchanged until its sibling on
// the left is there, which is the level-by-level tree to the bit. Value may be a number or a block
// of lanes; `add(left, right)` rounds. kLevels bounds n to below 2^kLevels.
template <class Value, int kLevels = 63>
struct PairwiseCounter {
  Value node[kLevels];
  uint64_t count = 0;

  template <class Add>
  SIMGRAD_HD void Push(Value leaf, const Add& add) {
    int level = 0;
    for (uint64_t rest = count; (rest & 1) != 0; rest >>= 1) leaf = add(node[level++], leaf);
    node[level] = leaf;
    ++count;
  }

  // Call with count > 0 (an empty sum is +0, whatever the order).
  template <class Add>
  SIMGRAD_HD Value Total(const Add& add) const {
    int level = 0;
    while (((count >> level) & 1) == 0) ++level;
    Value total = node[level];
    for (++level; (count >> level) != 0; ++level) {
      if (((count >> level) & 1) != 0) total = add(node[level], total);
    }
    return total;
  }
};

// Neumaier's sum: the error of each addition, exact before rounding to the accumulator, is gathered
// beside the running sum and added at the end. T is float or double; `add(a, b)` rounds.
template <class T>
struct CompensatedSum {
  T sum = 0;
  T correction = 0;

  template <class AddRounded>
  SIMGRAD_HD void Push(T x, const AddRounded& add) {
    const T next = add(sum, x);
    const bool sum_leads = Abs(sum) >= Abs(x);
    const T larger = sum_leads ? sum : x;
    const T smaller = sum_leads ? x : sum;
    correction = add(correction, add(add(larger, -next), smaller));
    sum = next;
  }

  template <class AddRounded>
  SIMGRAD_HD T Total(const AddRounded& add) const {
    return IsFinite(sum) ? add(sum, correction) : sum;
  }
};

// The sum of x[0], x[stride], ..., x[(n-1) * stride]. They are values of the role's format. Of order
// shuffled they come in their permutation.
SIMGRAD_HD inline double Sum(Order order, Format accumulator, Format result, const double* x,
                             int64_t n, int64_t stride = 1) {
  if (n <= 0) return 0.0;
  const auto add = [accumulator](double a, double b) { return Add(accumulator, a, b); };
  switch (order) {
    case Order::kShuffled:
    case Order::kSequential: {
      double total = 0.0;
      for (int64_t i = 0; i < n; ++i) total = add(total, x[i * stride]);
      return RoundTo(result, total);
    }
    case Order::kReversed: {
      double total = 0.0;
      for (int64_t i = n - 1; i >= 0; --i) total = add(total, x[i * stride]);
      return RoundTo(result, total);
    }
    case Order::kPairwise: {
      PairwiseCounter<double> tree;
      for (int64_t i = 0; i < n; ++i) tree.Push(x[i * stride], add);
      return RoundTo(result, tree.Total(add));
    }
    case Order::kCompensated: {
      CompensatedSum<double> total;
      for (int64_t i = 0; i < n; ++i) total.Push(x[i * stride], add);
      return RoundTo(result, total.Total(add));
    }
    case Order::kExact:
      break;
  }
  ExactSum total;
  for (int64_t i = 0; i < n; ++i) total.Add(x[i * stride]);
  return total.Result(result);
}

}  // namespace simgrad::precision
