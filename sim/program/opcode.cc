#include "sim/program/opcode.h"

#include <array>

namespace simgrad::sim {
namespace {

using enum OpCode;
using enum OpClass;

// code, name, class, operands, on integers, can create a non-finite value, propagates one.
constexpr std::array<OpInfo, kOpCodeCount> kTable = {{
    {kAdd, "add", kElementwise, 2, true, true, true},
    {kSub, "sub", kElementwise, 2, true, true, true},
    {kMul, "mul", kElementwise, 2, true, true, true},
    {kDiv, "div", kElementwise, 2, true, true, false},  // x / Inf is finite
    {kNeg, "neg", kElementwise, 1, true, false, true},
    {kAbs, "abs", kElementwise, 1, true, false, true},
    {kSign, "sign", kElementwise, 1, true, false, false},
    {kMin, "min", kElementwise, 2, true, false, false},
    {kMax, "max", kElementwise, 2, true, false, false},
    {kFma, "fma", kElementwise, 3, false, true, true},
    {kSqrt, "sqrt", kElementwise, 1, false, true, true},
    {kFloor, "floor", kElementwise, 1, false, false, true},
    {kRound, "round", kElementwise, 1, false, false, true},
    {kMod, "mod", kElementwise, 2, true, true, false},
    {kExp, "exp", kElementwise, 1, false, true, false},
    {kLog, "log", kElementwise, 1, false, true, true},
    {kLog1p, "log1p", kElementwise, 1, false, true, true},
    {kExpm1, "expm1", kElementwise, 1, false, true, false},
    {kSin, "sin", kElementwise, 1, false, false, true},
    {kCos, "cos", kElementwise, 1, false, false, true},
    {kAtan2, "atan2", kElementwise, 2, false, false, false},
    {kTanh, "tanh", kElementwise, 1, false, false, false},
    {kSigmoid, "sigmoid", kElementwise, 1, false, false, false},
    {kSoftplus, "softplus", kElementwise, 1, false, true, false},
    {kPow, "pow", kElementwise, 2, false, true, false},
    {kLt, "lt", kCompare, 2, true, false, false},
    {kLe, "le", kCompare, 2, true, false, false},
    {kGt, "gt", kCompare, 2, true, false, false},
    {kGe, "ge", kCompare, 2, true, false, false},
    {kEq, "eq", kCompare, 2, true, false, false},
    {kNe, "ne", kCompare, 2, true, false, false},
    {kAnd, "and", kLogic, 2, false, false, false},
    {kOr, "or", kLogic, 2, false, false, false},
    {kNot, "not", kLogic, 1, false, false, false},
    {kSelect, "select", kChoice, 3, true, false, false},
    {kBroadcast, "broadcast", kShape, 1, true, false, true},
    {kReshape, "reshape", kShape, 1, true, false, true},
    {kSlice, "slice", kShape, 1, true, false, false},
    {kPad, "pad", kShape, 1, true, false, true},
    {kConcat, "concat", kShape, -1, true, false, true},
    {kSum, "sum", kReduction, 1, true, true, true},
    {kReduceMax, "reduce_max", kReduction, 1, true, false, false},
    {kReduceMin, "reduce_min", kReduction, 1, true, false, false},
    {kArgmax, "argmax", kReduction, 1, true, false, false},
    {kArgmin, "argmin", kReduction, 1, true, false, false},
    {kCumsum, "cumsum", kReduction, 1, true, true, true},
    {kAny, "any", kReduction, 1, false, false, false},
    {kCast, "cast", kPrecision, 1, false, true, false},
    {kConvert, "convert", kPrecision, 1, true, true, false},
    {kStopGradient, "stop_gradient", kPrecision, 1, true, false, true},
    {kLiteral, "literal", kConstant, 0, true, false, false},
    {kEvent, "event", kControl, -1, true, false, false},
    {kWhile, "while", kControl, -1, true, false, false},
    {kFor, "for", kControl, -1, true, false, false},
    {kTape, "tape", kAdjoint, 0, true, true, false},
    {kMerge, "merge", kAdjoint, 3, false, true, true},
    {kMerge2, "merge2", kAdjoint, 4, false, true, true},
    {kAccumulate, "accumulate", kAdjoint, -1, false, true, true},
    {kWhileVjp, "while_vjp", kAdjoint, -1, false, false, false},
    {kForVjp, "for_vjp", kAdjoint, -1, false, false, false},
}};

constexpr bool TableIsInOrder() {
  for (int i = 0; i < kOpCodeCount; ++i) {
    if (static_cast<int>(kTable[i].code) != i) return false;
  }
  return true;
}
static_assert(TableIsInOrder());

}  // namespace

const OpInfo& InfoOf(OpCode code) { return kTable[static_cast<size_t>(code)]; }

std::span<const OpInfo> AllOps() { return kTable; }

std::optional<OpCode> OpFromName(std::string_view name) {
  for (const OpInfo& info : kTable) {
    if (info.name == name) return info.code;
  }
  return std::nullopt;
}

}  // namespace simgrad::sim
