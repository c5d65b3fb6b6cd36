// The scale of a compared value, at which a margin in ulps is taken in programs that state a level.
//
// Maths: s(x) is the largest of |x| and what stands behind the operation that made it: of add, sub
//   and fma the magnitudes of the operands (of an fma |a b| and |c|); of x y max(s(x)|y|, |x|s(y));
//   of x / y s(x)/|y|; of cast, abs, neg, reshape, broadcast and slice s; of select that of the
//   branch taken; of t = sqrt(x) s(x)/t, where t is not 0. All in f64, rounded. Seen is what the
//   region of the test makes, kMostScaleNodes values at most: of what is behind them s(x) is |x|.
//   Where a sum cancels, the distance of the result from a threshold says nothing in its own ulps.
// Errors: none. Cost: bounded by kMostScaleNodes. Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "sim/program/program.h"

namespace simgrad::sim {

inline constexpr size_t kMostScaleNodes = 64;

// What counts of the operation that made a value.
enum class ScaleRule : uint8_t {
  kOwn,       // nothing: its magnitude alone
  kSum,       // of add and sub: the magnitudes of the operands
  kFusedSum,  // of fma
  kProduct,
  kQuotient,
  kRoot,
  kChoice,  // of select
  kSame,    // the scale of its operand
};

// One value whose scale counts. What is read of it and of the operands of `op` passes through
// `moves`, operations of shape, the outermost first, to become an element of the compared value.
struct ScaleNode {
  ValueId value = ValueId::kNone;
  ScaleRule rule = ScaleRule::kOwn;
  const Op* op = nullptr;  // that made it; null where the rule is kOwn
  std::vector<const Op*> moves;
  size_t first = 0, second = 0;  // nodes whose scales it takes, where `op` takes them
};

// Behind `compared`, which is the last; each node stands behind those that it takes. Empty: the scale
// is the magnitude. `producer` returns the operation of the test's region that made a value, or null.
std::vector<ScaleNode> ScaleOf(const Program& program, ValueId compared,
                               const std::function<const Op*(ValueId)>& producer);

}  // namespace simgrad::sim
