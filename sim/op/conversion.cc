// Formats and element types, constants, and what cuts a cotangent.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "precision/arithmetic.h"
#include "precision/philox.h"
#include "sim/op/evaluate.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::op {
namespace {

Types CastTypes(const Program& program, const Op& op) {
  if (absl::Status status = NeedsElement(program, op, 0, ElementType::kReal); !status.ok()) {
    return status;
  }
  return SameAsOperand(program, op);
}

// Up with the probability of the discarded fraction, by word w0 of each element's block. The operands
// behind the first: the key of the instance, the step, flattened iteration and mapped element.
Array Stochastic(const Evaluation& e, Overflow overflow) {
  const std::vector<double>& x = e.operands[0]->real;
  const uint64_t key = static_cast<uint64_t>(e.operands[1]->integer[0]);
  const int64_t step = e.operands[2]->integer[0];
  const std::vector<int64_t>& place = e.operands[3]->integer;
  const int64_t count = static_cast<int64_t>(x.size());
  Array result;
  for (int64_t i = 0; i < count; ++i) {
    e.meter.Add(kDrawWork);
    const precision::PhiloxBlock block =
        precision::Draw(key, e.op.attributes.draw, step, place[0], place[1] * count + i);
    result.real.push_back(precision::RoundTo(*e.result().format, x[static_cast<size_t>(i)],
                                             overflow, CastRounding::kStochastic,
                                             static_cast<uint32_t>(block.first >> 32)));
  }
  return result;
}

Array EvaluateCast(const Evaluation& e) {
  const Format format = *e.result().format;
  const Overflow overflow = OverflowInForce(e.numerical.policy, e.op);
  const CastRounding rounding = e.op.attributes.rounding.value_or(CastRounding::kNearestEven);
  const std::vector<double>& x = e.operands[0]->real;
  if (rounding == CastRounding::kStochastic) return Stochastic(e, overflow);
  Array result;
  InPieces(e.meter, static_cast<int64_t>(x.size()), kElementWork, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      result.real.push_back(precision::RoundTo(format, x[i], overflow, rounding));
    }
  });
  return result;
}

Types ConvertTypes(const Program& program, const Op& op) {
  if (op.results.size() != 1) return FieldError("results", "convert has one result");
  return std::vector<Type>{{program[op.results[0]].type.element, TypeOf(program, op, 0).shape}};
}

int64_t ToInteger(double x, ElementType type) {
  if (x != x) return 0;
  if (type == ElementType::kBool) return x != 0.0 ? 1 : 0;
  // Outside [smallest, above) x saturates; inside truncation stays in range.
  const double above = std::ldexp(1.0, IsUnsigned(type) ? BitsOf(type) : BitsOf(type) - 1);
  const double smallest = IsUnsigned(type) ? 0.0 : -above;
  if (x <= smallest) return static_cast<int64_t>(smallest);
  if (x >= above) return type == ElementType::kI64 ? INT64_MAX : static_cast<int64_t>(above) - 1;
  return static_cast<int64_t>(x);
}

// An i64 need not be a double: its two halves are, and their sum is rounded once.
double ToReal(int64_t n, Format format) {
  const int64_t low = n & 0xFFFFFFFF;
  return precision::Add(format, static_cast<double>(n - low), static_cast<double>(low));
}

Array EvaluateConvert(const Evaluation& e) {
  const Array& operand = *e.operands[0];
  const ElementType target = e.result().type.element;
  const bool from_real = e.program.IsReal(e.op.operands[0]);
  if (target == ElementType::kReal && from_real) return operand;
  Array result = ZerosOf(e.result().type);
  for (size_t i = 0; i < SizeOf(result); ++i) {
    e.meter.Add(1);
    if (target == ElementType::kReal) {
      result.real[i] = ToReal(operand.integer[i], *e.result().format);
    } else if (from_real) {
      result.integer[i] = ToInteger(operand.real[i], target);
    } else {
      result.integer[i] = WrapTo(target, operand.integer[i]);
    }
  }
  return result;
}

Types LiteralTypes(const Program& program, const Op& op) {
  Types types = OfResult(program, op);
  if (!types.ok()) return types;
  const int64_t count = ElementCount(types->front().shape);
  const size_t given = op.attributes.literal.size();
  if (given != 1 && static_cast<int64_t>(given) != count) {
    const std::string each = count == 1 ? "" : absl::StrCat(" or ", count);
    return FieldError("literal", absl::StrCat("needs 1 number", each, ", has ", given));
  }
  return types;
}

Array EvaluateLiteral(const Evaluation& e) {
  const Value& value = e.result();
  const std::vector<double>& literal = e.op.attributes.literal;
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

}  // namespace

const OpInfo kCast = Complete({
    .name = "cast",
    .doc = "A real rounded to `format`, else to the role's; `overflow` is `ieee` or `saturate`, "
           "else the role's; `rounding` is `nearest_even`, `nearest_away`, `toward_zero` or "
           "`stochastic` (only in `step`), else the role's.",
    .op_class = OpClass::kPrecision,
    .operands = "a",
    .attributes = {Attribute::kFormat, Attribute::kDraw, Attribute::kOverflow,
                   Attribute::kRounding},
    .types = CastTypes,
    .birth = Birth::kConversion,
    .carries = [](const Carriage& c) { return c.overflow == Overflow::kIeee; },
    .scale = ScaleRule::kSame,
    .vjp = [](VjpRule& r) { r.To(0, r.g()); },
    .smooth = false,
    .evaluate = EvaluateCast,
});

const OpInfo kConvert = Complete({
    .name = "convert",
    .doc = "a as the element type of its result: real to integer toward zero, saturating, NaN to "
           "0; integer to integer modulo its width; to bool whether a is not 0, NaN "
           "to false. It has no derivative.",
    .op_class = OpClass::kPrecision,
    .operands = "a",
    .result = Result::kDeclared,
    .types = ConvertTypes,
    .birth = Birth::kConversion,
    .carries =
        [](const Carriage& c) {
          return c.program.IsReal(c.op.operands[c.operand]) && c.program.IsReal(c.op.results[0]);
        },
    .chooses = Chooses::kInteger,
    .smooth = false,
    .evaluate = EvaluateConvert,
});

const OpInfo kStopGradient = Complete({
    .name = "stop_gradient",
    .doc = "a, without a cotangent.",
    .op_class = OpClass::kPrecision,
    .operands = "a",
    .types = SameAsOperand,
    .propagates = true,
    .smooth = false,
    .evaluate = [](const Evaluation& e) { return *e.operands[0]; },
});

const OpInfo kLiteral = Complete({
    .name = "literal",
    .doc = "Constants, of the type of the result: one number for every element, or one per "
           "element, row-major.",
    .op_class = OpClass::kConstant,
    .operands = "",
    .attributes = {Attribute::kLiteral},
    .result = Result::kDeclared,
    .types = LiteralTypes,
    .birth = Birth::kConversion,
    .evaluate = EvaluateLiteral,
});

}  // namespace simgrad::sim::op
