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
  switch (op.code) {
    case OpCode::kReshape:
    case OpCode::kStopGradient:
      return true;
    case OpCode::kBroadcast:
      return same_count && std::is_sorted(op.attributes.dims.begin(), op.attributes.dims.end());
    case OpCode::kConvert:
      return result.type.element == operand.type.element;
    case OpCode::kCast:
      return !precision::Narrows(*operand.format, *result.format) &&
             SameCarrier(*result.format, *operand.format) &&
             OverflowInForce(program.policy, op) == Overflow::kIeee;
    case OpCode::kSum:
      // A tree of one leaf.
      return same_count && op.attributes.order == Order::kPairwise &&
             result.format == operand.format &&
             !precision::Narrows(*operand.format, op.attributes.accumulator);
    case OpCode::kAny:
      return same_count;
    default:
      return false;
  }
}

}  // namespace simgrad::sim::cpu
