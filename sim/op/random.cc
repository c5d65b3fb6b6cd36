// Draws: numbers that the instance, the step and the place in the program decide (precision/philox.h).
#include "precision/philox.h"
#include "precision/rounding.h"
#include "sim/op/evaluate.h"
#include "sim/op/lowering.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

Types DrawTypes(const Program&, const Op& op) {
  for (int64_t n : op.attributes.shape) {
    if (n < 0) return FieldError("shape", "a length is not negative");
  }
  return std::vector<Type>{{ElementType::kReal, op.attributes.shape}};
}

// The operands: the key of the instance, the step, and (of the reference executor) flattened
// iteration and mapped element.
template <class Of>
Array Drawn(const Evaluation& e, const Of& of) {
  const uint64_t key = static_cast<uint64_t>(e.operands[0]->integer[0]);
  const int64_t step = e.operands[1]->integer[0];
  const std::vector<int64_t>& place = e.operands[2]->integer;
  const int64_t count = ElementCount(e.result().type.shape);
  Array result;
  for (int64_t i = 0; i < count; ++i) {
    e.meter.Add(kDrawWork);
    const int64_t element = place[1] * count + i;
    result.real.push_back(of(precision::Draw(key, e.op.attributes.draw, step, place[0], element),
                             *e.result().format));
  }
  return result;
}

void LowerDraw(Lowering& l) {
  const std::string function = FunctionOn(std::string(InfoOf(l.op().code).name), l.ResultValue());
  const auto result = l.Result();
  const auto flat = l.Flat(result);
  const int64_t count = ElementCount(result.shape);
  const auto key = l.Load(l.Operand(0));
  const auto step = l.ToI64(l.Load(l.Operand(1)), Carrier::kI32);
  const auto draw = l.Integer(Carrier::kI64, l.attributes().draw);
  const auto iteration = l.Iteration();
  const auto first =
      l.Call("mul_i64", Carrier::kI64, {l.MappedElement(), l.Integer(Carrier::kI64, count)});
  l.Each(count, true, [&](Lowering::Number i) {
    const auto element = l.Call("add_i64", Carrier::kI64, {first, i});
    l.Store(flat, {Lowering::Place::Of(i)},
            l.Call(function, result.carrier, {key, draw, step, iteration, element}));
  });
}

}  // namespace

const OpInfo kUniform = Complete({
    .name = "uniform",
    .doc = "Random numbers of `shape`, evenly spread over [0, 1); draws are not differentiated.",
    .op_class = OpClass::kConstant,
    .operands = "",
    .attributes = {Attribute::kShape, Attribute::kDraw},
    .result = Result::kDeclared,
    .types = DrawTypes,
    .evaluate =
        [](const Evaluation& e) {
          return Drawn(e, [](const precision::PhiloxBlock& block, Format format) {
            return precision::UniformOf(block.first, precision::UniformBits(format));
          });
        },
    .lower = LowerDraw,
});

const OpInfo kNormal = Complete({
    .name = "normal",
    .doc = "Random numbers of `shape`, normally distributed with mean 0 and variance 1; draws are "
           "not differentiated.",
    .op_class = OpClass::kConstant,
    .operands = "",
    .attributes = {Attribute::kShape, Attribute::kDraw},
    .result = Result::kDeclared,
    .types = DrawTypes,
    .evaluate =
        [](const Evaluation& e) {
          return Drawn(e, [](const precision::PhiloxBlock& block, Format format) {
            return precision::RoundTo(format, precision::NormalOf(block));
          });
        },
    .lower = LowerDraw,
});

}  // namespace simgrad::sim::op
