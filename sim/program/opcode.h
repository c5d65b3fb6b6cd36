// The operations of a program, one row each: name, operand counts, what kind of rule applies.
//
// Adding an operation is one entry here, one evaluation rule per executor and one vjp rule.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace simgrad::sim {

enum class OpCode : uint8_t {
  // Elementwise on reals; add, sub, mul, neg, abs, sign, min, max also on i32 and i64 (two's
  // complement, wrapping at the width); div, mod on integers round toward minus infinity and give 0
  // for a zero divisor.
  kAdd,
  kSub,
  kMul,
  kDiv,
  kNeg,
  kAbs,
  kSign,
  kMin,
  kMax,
  kFma,
  kSqrt,
  kFloor,
  kRound,
  kMod,
  kExp,
  kLog,
  kLog1p,
  kExpm1,
  kSin,
  kCos,
  kAtan2,
  kTanh,
  kSigmoid,
  kSoftplus,
  kPow,
  // Comparisons: equal types in, bool out. Anonymous: a select must not hang on one of reals.
  kLt,
  kLe,
  kGt,
  kGe,
  kEq,
  kNe,
  // Logic. select(condition, a, b): all of one shape.
  kAnd,
  kOr,
  kNot,
  kSelect,
  // Shape. broadcast: attributes shape, dims; slice: start and shape (of the result); pad (adjoint
  // of
  // slice: zeros or false around): start, shape; concat: axes[0].
  kBroadcast,
  kReshape,
  kSlice,
  kPad,
  kConcat,
  // Reductions over attributes.axes, row-major order. reduce_max, reduce_min: one axis, NaN
  // propagates; of nothing: refused.
  // argmax, argmin: over one axis, i32, the first extreme; a NaN is taken as the extreme. any:
  // bool.
  // cumsum: one axis, sequential (attributes.reverse: from the end), order of the role not used.
  kSum,
  kReduceMax,
  kReduceMin,
  kArgmax,
  kArgmin,
  kCumsum,
  kAny,
  // cast: real to real, to attributes.format. convert: between element types, to the type of the
  // result (real to integer toward zero, saturating, NaN to 0; to bool: != 0).
  kCast,
  kConvert,
  kStopGradient,
  // literal: real, integer or bool, no operands.
  kLiteral,
  // event(a, b [, guard: bool]): site; bool out: (a comparison b) and guard. Where the guard is
  // false
  // nothing is decided: no check, no margin.
  kEvent,
  // while, operands: carried values, then (per element only) mapped values; see loop.h.
  kWhile,
  // for: max_iter times; operands: carried; body args: index (i32), carried; yields carried.
  kFor,
  // Adjoint programs only.
  // tape(): reads attributes.primal, rounded to role `tape`; result has its type.
  kTape,
  // merge(a, b, mask_b): where mask_b: a + b, else a.      merge2(a, mask_a, b, mask_b): the sum
  // where
  // both hold, the one that holds, or +0 where none does. mask shapes equal the values'.
  kMerge,
  kMerge2,
  // accumulate(value, mask?): adds to the gradient of attributes.input where the mask holds.
  kAccumulate,
  // Reverse of a loop; see loop.h.
  kWhileVjp,
  kForVjp,
};
inline constexpr int kOpCodeCount = static_cast<int>(OpCode::kForVjp) + 1;

// What shape and type rule an operation obeys.
enum class OpClass : uint8_t {
  kElementwise,  // equal shapes; result of the operand's type
  kCompare,      // equal types; bool result of that shape
  kLogic,        // bools
  kChoice,       // select
  kShape,
  kReduction,
  kPrecision,
  kConstant,  // literal
  kControl,
  kAdjoint,
};

struct OpInfo {
  OpCode code;
  std::string_view name;
  OpClass op_class;
  int operands;      // -1: variable
  bool on_integers;  // an elementwise operation that integers have too
  // For the detection of non-finite values (sim/program/detect.h):
  bool can_create;  // finite operands can give a non-finite result
  bool propagates;  // a non-finite operand always gives a non-finite result
};

const OpInfo& InfoOf(OpCode code);
std::span<const OpInfo> AllOps();
std::optional<OpCode> OpFromName(std::string_view name);

}  // namespace simgrad::sim
