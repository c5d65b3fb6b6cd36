// Operations that stand only in adjoint programs; loop.h defines the reverse of a loop.
#include "precision/arithmetic.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

bool GivenWhere(const Carriage& c, size_t mask) {
  return c.where != ValueId::kNone && c.where == c.op.operands[mask];
}

// The sum of two cotangents.
double Merged(const Evaluation& e, size_t element, double a, double b) {
  const double sum = precision::Add(*e.result().format, a, b);
  e.Begin(element);
  if (e.arithmetic != nullptr) e.arithmetic->Added(a, b, sum);
  return sum;
}

Array EvaluateMerge(const Evaluation& e) {
  const Array& b = *e.operands[1];
  const Array& mask_b = *e.operands[2];
  Array result = *e.operands[0];
  for (size_t i = 0; i < result.real.size(); ++i) {
    if (mask_b.integer[i] == 0) continue;
    result.real[i] = Merged(e, i, result.real[i], b.real[i]);
  }
  return result;
}

Array EvaluateMerge2(const Evaluation& e) {
  const Array& a = *e.operands[0];
  const Array& mask_a = *e.operands[1];
  const Array& b = *e.operands[2];
  const Array& mask_b = *e.operands[3];
  Array result;
  for (size_t i = 0; i < a.real.size(); ++i) {
    const bool has_a = mask_a.integer[i] != 0;
    const bool has_b = mask_b.integer[i] != 0;
    double merged = 0.0;
    if (has_a && has_b) {
      merged = Merged(e, i, a.real[i], b.real[i]);
    } else if (has_a || has_b) {
      merged = has_a ? a.real[i] : b.real[i];
    }
    result.real.push_back(merged);
  }
  return result;
}

}  // namespace

const OpInfo kTape = Complete({
    .name = "tape",
    .doc = "A primal value, rounded to role `tape`.",
    .op_class = OpClass::kAdjoint,
    .operands = "",
    .attributes = {Attribute::kTaped, Attribute::kOverflow},
    .in_worlds = false,
    .result = Result::kDeclared,
    .types = OfResult,
    .birth = Birth::kConversion,
});

const OpInfo kMerge = Complete({
    .name = "merge",
    .doc = "a + b where mask_b holds, else a. The mask has the shape of the values.",
    .op_class = OpClass::kAdjoint,
    .operands = "a, b, mask_b",
    .in_worlds = false,
    .types = SameAsOperand,
    .birth = Birth::kArithmetic,
    .carries =
        [](const Carriage& c) {
          return c.operand == 0 || (c.operand == 1 && c.where == c.op.operands[2]);
        },
    .evaluate = EvaluateMerge,
});

const OpInfo kMerge2 = Complete({
    .name = "merge2",
    .doc = "a + b where both masks hold, the one whose mask holds, or +0 where none does.",
    .op_class = OpClass::kAdjoint,
    .operands = "a, mask_a, b, mask_b",
    .in_worlds = false,
    .types = SameAsOperand,
    .birth = Birth::kArithmetic,
    .carries =
        [](const Carriage& c) {
          return (c.operand == 0 || c.operand == 2) && GivenWhere(c, c.operand + 1);
        },
    .evaluate = EvaluateMerge2,
});

const OpInfo kAccumulate = Complete({
    .name = "accumulate",
    .doc = "Adds the value to the gradient of an input, where the mask holds; `max` keeps the "
           "larger.",
    .op_class = OpClass::kAdjoint,
    .operands = "value, mask?",
    .attributes = {Attribute::kInput},
    .in_worlds = false,
    .types = [](const Program&, const Op&) -> Types { return std::vector<Type>{}; },
    .birth = Birth::kArithmetic,
    .propagates = true,
});

const OpInfo kWhileVjp = Complete({
    .name = "while_vjp",
    .doc = "The reverse of a `while`, or of its last iterations.",
    .op_class = OpClass::kAdjoint,
    .operands = "cotangents, ...",
    .attributes = {Attribute::kReversed, Attribute::kLast},
    .in_worlds = false,
});

const OpInfo kForVjp = Complete({
    .name = "for_vjp",
    .doc = "The reverse of a `for`.",
    .op_class = OpClass::kAdjoint,
    .operands = "cotangents, ...",
    .attributes = {Attribute::kReversed},
    .in_worlds = false,
});

}  // namespace simgrad::sim::op
