// The meaning of `while`, `for` and their reverse, in one place.
//
// while (site, max_iter, comparison, cap_order, has_entry, elements = n, carried = c)
//   operands  carried[c], mapped[m]                (m > 0 only where n > 0)
//   regions   [0] test: args carried[c], mapped[m]; yields lhs, rhs, [entry], exports[e]
//             [1] body: args carried[c], exports[e], mapped[m]; yields carried[c]
//   results   carried[c], exports[e] as last evaluated, iterations (i32)
//
//   it = 0
//   repeat  (kCapFirst only: if it == max_iter stop)
//           evaluate test on the carried values
//           at it == 0, where has_entry: if not lhs >= entry stop, reason not_entered
//           if lhs comparison rhs: stop, reason converged
//           (kTestFirst only: if it == max_iter stop)
//           carried = body; it = it + 1
//   At the cap the reason is max_iter, or nonfinite if the last lhs tested is not finite.
//   max_iter >= 1, so the test runs at least once and the exports are always defined.
//
// With `predicate` the test yields `stop`, a bool, instead of lhs, rhs and entry. The loop stops
// where it holds. The reason is converged, or counter where only integers decided
// (decision_margin.h). At the cap it is nonfinite if a real test of the last predicate has a NaN
// margin. A predicate while without a site is a region of a `cond`: it is cap first with max_iter
// 1, records nothing, and does not count among the loops around a decision (radix 1).
//
// A branch with `kept_from` = k > 0 carries the results of a halt's step. Those from k on keep the
// format of what the body yields, and so do their cotangents that of what enters the reverse loop;
// no region reads them as arguments. The rest have the format of the branch's role.
//
// lhs, rhs and entry are real scalars; they belong to the site and to role termination. With n > 0
// the loop runs once per element of the leading axis, each element with an iteration count of its
// own, as if it were alone: operands carry a leading axis of length n, the regions see one element
// without it, results get it back (iterations: [n]). Inside the regions of a mapped loop a value
// from outside may be used only through a mapped operand, unless it is a literal, a config or the
// step; that makes the reduction of its cotangent over the elements an ordinary broadcast vjp.
// In a loop that is not mapped, values of enclosing regions are used as they are (captures).
//
// for (max_iter = n >= 0, carried = c, scanned = s, reverse): operands carried[c], scanned[s];
// results carried[c], stacked[k]; region body: args index (i32), carried[c], scanned[s]; yields
// carried[c], stacked[k]. Outside the body, scanned and stacked have a leading axis of n. Turn t
// reads and writes element t, or n - 1 - t with `reverse`; the index is that of the element.
//
// Loops nest. For a decision inside loops, j is the flattened iteration of the loops around it:
// mixed radix, outermost first, radix max_iter + 1 for a while and max(max_iter, 1) for a for. e is
// the flattened element over the mapped axes around the site, outermost first, then its own.
//
// Reverse. A *slot* is a cotangent with its mask (bool of the same shape: where it is present). In
// the lists below a cotangent kNone means: never present; a mask kNone with a cotangent: present
// everywhere. Lists of slots are written as all cotangents, then all masks. Slot counts: c carried,
// e exports, x captures (values of enclosing regions of an unmapped loop that receive cotangents,
// which enter with what was contributed to them so far) or, in a mapped loop, the m mapped operands
// (which enter absent). attributes.carried = c; x follows from the list lengths.
//
// while_vjp (primal = first result of the while; site, max_iter, cap_order, elements as there)
//   operands  slots: carried[c], exports[e], captures[x]
//   regions   [0] body:       args slots carried[c], captures[x] (of what the body yielded)
//                             yields slots carried[c], exports[e], captures[x]
//             [1] test_inner: args and yields as below; exports received from the body only
//             [2] test_last:  exports received from outside only
//             [3] test_both:  exports received from both, merged, outside first
//                             each: args slots carried[c], exports[e], captures[x]
//                             yields slots carried[c], captures[x]
//   results   slots: carried[c], captures[x]
//   With the recorded count `it`; the last test evaluated is number L (L = it, or it - 1 where a
//   kCapFirst loop stopped at its cap):
//     (ct, cap) = operands
//     if L == it: (ct, cap) = test_last@L(ct, exports of the operands, cap)
//     for i = it - 1 down to 0 (last = n > 0: to max(it - n, 0), whose ct is the result):
//        (ct, xb, cap) = body@i(ct, cap)
//        (ct, cap) = i == L ? test_both@i(ct, merge(exports of the operands, xb), cap)
//                           : test_inner@i(ct, xb, cap)
//   test_both exists only where kCapFirst (else it has no yields). "@i" means: a tape operation
//   inside reads the primal value of iteration i; values of enclosing regions are read from the
//   enclosing iteration. In test_both the merge is the first thing inside the region: its args list
//   exports twice (outside[e], then body[e]).
//   A tape operation reads a state input, a region argument or a result of an operation. It never
//   reads a param, control, data, config, step or literal: adjoint operations use those directly.
// for_vjp (primal = first result of the for; carried = c): operands slots carried[c], stacked[k],
//   captures[x], scanned[s]; region body: args index (i32), then these slots, of one element where
//   they are stacked or scanned; yields the same slots; turns descending. Those of stacked values
//   are read from what entered and their yields dropped; those of scanned values enter absent in
//   every turn, and what is yielded is that element of what leaves.
//
// Executors share this: how a list of slots is laid out, and the counters above.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/program.h"

namespace simgrad::sim {

// The place of one kind of slot in a flat list "cotangents..., masks...".
struct SlotList {
  std::span<const ValueId> cotangents;
  std::span<const ValueId> masks;
  // `ids` without leading non-slot arguments; an even number of them.
  static SlotList Of(std::span<const ValueId> ids) {
    const size_t half = ids.size() / 2;
    return {ids.subspan(0, half), ids.subspan(half)};
  }
  size_t size() const { return cotangents.size(); }
};

// Counts of a while: how its lists divide.
struct WhileCounts {
  int32_t carried = 0;
  int32_t mapped = 0;
  int32_t exports = 0;
};
WhileCounts CountsOf(const Op& while_op);
// The first export among the yields of the test: after both sides and, if there is one, the entry
// threshold.
inline size_t FirstExport(const Op& while_op) {
  if (while_op.attributes.predicate) return 1;
  return while_op.attributes.has_entry ? 3 : 2;
}

// A region of a `cond`, which is a while of one turn at most that decides nothing by itself.
inline bool IsBranch(const Op& op) {
  return op.code == OpCode::kWhile && op.attributes.predicate && op.attributes.site.empty();
}
// By how much the place of a decision inside a while counts for each iteration around it.
inline int64_t RadixOf(const Op& while_op) {
  return IsBranch(while_op) ? 1 : while_op.attributes.max_iter + 1;
}

// The most times that a loop runs a region for one run of the loop itself: each turn, and of a while
// the test once more. Another operation runs its regions once.
inline int64_t RunsAtCap(const Op& op) {
  if (op.code == OpCode::kFor) return op.attributes.max_iter;
  return op.code == OpCode::kWhile ? op.attributes.max_iter + 1 : 1;
}
// The same of all elements of a mapped loop; a double, which products of hostile caps do not wrap.
inline double ElementRunsAtCap(const Op& op) {
  const int64_t elements = op.code == OpCode::kWhile ? op.attributes.elements : 1;
  return static_cast<double>(RunsAtCap(op)) *
         static_cast<double>(elements > 1 ? elements : int64_t{1});
}

// Values that a for gives element by element.
inline size_t StackedOf(const Op& for_op) {
  return for_op.results.size() - static_cast<size_t>(for_op.attributes.carried);
}

}  // namespace simgrad::sim
