#include "sim/backend/reference/evaluate.h"

#include "precision/arithmetic.h"

namespace simgrad::sim::reference {
namespace {

using enum OpCode;

Array EvaluateLiteral(const Program& program, const Op& op) {
  const Value& value = program[op.results[0]];
  const std::vector<double>& literal = op.attributes.literal;
  Array result = ZerosOf(value.type);
  const auto at = [&](size_t i) { return literal.size() == 1 ? literal[0] : literal[i]; };
  for (size_t i = 0; i < result.real.size(); ++i) {
    result.real[i] = precision::RoundTo(*value.format, at(i));
  }
  for (size_t i = 0; i < result.integer.size(); ++i) {
    result.integer[i] = WrapTo(value.type.element, static_cast<int64_t>(at(i)));
  }
  return result;
}

// merge: where mask_b: a + b, else a. The mask is operand 2.
Array EvaluateMerge(Format format, const Array& a, const Array& b, const Array& mask_b) {
  Array result = a;
  for (size_t i = 0; i < a.real.size(); ++i) {
    if (mask_b.integer[i] != 0) result.real[i] = precision::Add(format, a.real[i], b.real[i]);
  }
  return result;
}

// merge2(a, mask_a, b, mask_b).
Array EvaluateMerge2(Format format, Operands operands) {
  const Array& a = *operands[0];
  const Array& mask_a = *operands[1];
  const Array& b = *operands[2];
  const Array& mask_b = *operands[3];
  Array result;
  for (size_t i = 0; i < a.real.size(); ++i) {
    const bool has_a = mask_a.integer[i] != 0;
    const bool has_b = mask_b.integer[i] != 0;
    double merged = 0.0;
    if (has_a && has_b) {
      merged = precision::Add(format, a.real[i], b.real[i]);
    } else if (has_a || has_b) {
      merged = has_a ? a.real[i] : b.real[i];
    }
    result.real.push_back(merged);
  }
  return result;
}

Array EvaluateCast(const NumericalProgram& program, const Op& op, const Array& operand,
                   WorkMeter& meter) {
  const Format format = *program.program[op.results[0]].format;
  const Overflow overflow = OverflowInForce(program.policy, op);
  Array result;
  InPieces(meter, static_cast<int64_t>(operand.real.size()), kElementWork,
           [&](int64_t begin, int64_t end) {
             for (int64_t i = begin; i < end; ++i) {
               const double x = operand.real[static_cast<size_t>(i)];
               result.real.push_back(precision::RoundTo(format, x, overflow));
             }
           });
  return result;
}

}  // namespace

Array Evaluate(const NumericalProgram& program, const Op& op, Operands operands, WorkMeter& meter) {
  const Program& p = program.program;
  switch (op.code) {
    case kLiteral:
      return EvaluateLiteral(p, op);
    case kCast:
      return EvaluateCast(program, op, *operands[0], meter);
    case kConvert:
      return EvaluateConversion(p, op, *operands[0], meter);
    case kStopGradient:
      return *operands[0];
    case kConcat:
      return EvaluateConcat(p, op, operands, meter);
    case kMerge:
      return EvaluateMerge(*p[op.results[0]].format, *operands[0], *operands[1], *operands[2]);
    case kMerge2:
      return EvaluateMerge2(*p[op.results[0]].format, operands);
    default:
      break;
  }
  switch (InfoOf(op.code).op_class) {
    case OpClass::kShape:
      return EvaluateShape(p, op, *operands[0], meter);
    case OpClass::kReduction:
      return EvaluateReduction(p, op, *operands[0], meter);
    default:
      return EvaluateElementwise(p, op, operands, meter);
  }
}

}  // namespace simgrad::sim::reference
