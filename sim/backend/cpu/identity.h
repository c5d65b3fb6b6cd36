// Operations whose result is their operand, bit for bit, so that both share a slot.
#pragma once

#include <algorithm>

#include "sim/program/detect.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::cpu {

inline bool SameCarrier(Format a, Format b) { return (a == Format::kF64) == (b == Format::kF64); }

inline bool IsIdentity(const NumericalProgram& program, const Op& op) {
  if (op.results.size() != 1 || op.operands.empty() || op.results[0] == ValueId::kNone) {
    return false;
  }
  const Value& result = program.program[op.results[0]];
  const Value& operand = program.program[op.operands[0]];
  const bool same_count = ElementCount(result.type.shape) == ElementCount(operand.type.shape);
  if (op.code == OpCode::kReshape || op.code == OpCode::kStopGradient) return true;
  if (op.code == OpCode::kConvert) return result.type.element == operand.type.element;
  if (op.code == OpCode::kCast) {
    return !precision::Narrows(*operand.format, *result.format) &&
           SameCarrier(*result.format, *operand.format) &&
           OverflowInForce(program.policy, op) == Overflow::kIeee;
  }
  if (!same_count) return false;
  if (op.code == OpCode::kBroadcast) {
    return std::is_sorted(op.attributes.dims.begin(), op.attributes.dims.end());
  }
  if (op.code == OpCode::kSum) {
    // A tree of one leaf.
    return op.attributes.order == Order::kPairwise && result.format == operand.format &&
           !precision::Narrows(*operand.format, op.attributes.accumulator);
  }
  return op.code == OpCode::kAny;
}

}  // namespace simgrad::sim::cpu
