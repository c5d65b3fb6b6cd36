// Finds the scale of a compared value. Programs that state a level take margins in ulps at it.
//
// Maths: s(x) is the largest of |x| and what follows from the operation that made x:
//     add, sub: the magnitudes of the operands; fma: |a b| and |c|; select: s of the branch taken
//     x y: max(s(x)|y|, |x|s(y)); x / y: s(x)/|y|; t = sqrt(x): s(x)/t, where t is not 0
//     cast, abs, neg, reshape, broadcast, slice: s of the operand
//   All in f64, rounded. Behind kMostScaleNodes values, and outside the test's region, s(x) is |x|.
//   Reason: where a sum cancels, its distance from a threshold says nothing in its own ulps.
// Errors: none. Cost: bounded by kMostScaleNodes. Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "sim/op/op_info.h"
#include "sim/program/program.h"

namespace simgrad::sim {

inline constexpr size_t kMostScaleNodes = 64;

// One value whose scale counts. Its elements, and those of the operands of `op`, become elements of
// the compared value through `moves`: operations of shape, the outermost first.
struct ScaleNode {
  ValueId value = ValueId::kNone;
  ScaleRule rule = ScaleRule::kOwn;
  const Op* op = nullptr;  // that made it; null where the rule is kOwn
  std::vector<const Op*> moves;
  size_t first = 0, second = 0;  // nodes whose scales it takes, where `op` takes them
};

// Returns the nodes of `compared`, itself the last, each behind those that it takes; without nodes
// the scale is the magnitude. `producer` returns what made a value in the test's region, or null.
std::vector<ScaleNode> ScaleOf(const Program& program, ValueId compared,
                               const std::function<const Op*(ValueId)>& producer);

}  // namespace simgrad::sim
