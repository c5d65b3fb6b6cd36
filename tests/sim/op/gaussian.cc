// Two operations that exist in a test build alone: one with rules of its own, and a composite.
#include <string>

#include "precision/arithmetic.h"
#include "precision/elementary.h"
#include "sim/op/expansion.h"
#include "sim/op/lowering.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

// y = e^(-x x): -(2 x) y.
void GaussianVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId x = r.X(0);
  const ValueId twice = r.Add(x, x);
  const ValueId t = r.Mul(r.g(), twice);
  r.To(0, r.Neg(r.Mul(t, r.Y())));
}

// In f64, and rounded once.
void LowerGaussian(Lowering& l) {
  const Lowering::Memory x = l.Operand(0);
  const Lowering::Memory y = l.Result();
  const std::string format(precision::FormatName(*l.ResultValue().format));
  l.EachOf(y.shape, [&](const Lowering::Places& at) {
    const Lowering::Number wide =
        l.Call("round_" + Lowering::NameOf(x.carrier) + "_f64", Carrier::kF64, {l.Load(x, at)});
    const Lowering::Number square = l.Call("mul_f64", Carrier::kF64, {wide, wide});
    const Lowering::Number power =
        l.Call("exp_f64", Carrier::kF64, {l.Call("neg_f64", Carrier::kF64, {square})});
    l.Store(y, at, l.Call("round_f64_" + format, y.carrier, {power}));
  });
}

// a + t (b - a).
void ExpandBlend(ExpansionWriter& w) {
  const ValueId difference = w.Do(OpCode::kSub, {w.X(1), w.X(0)});
  w.Give(OpCode::kFma, {w.X(2), difference, w.X(0)});
}

}  // namespace

const OpInfo kGaussian = Complete({
    .name = "gaussian",
    .doc = "e^(-a a).",
    .operands = "a",
    .vjp = GaussianVjp,
    .on_reals = [](Format format, double a, double,
                   double) { return precision::RoundTo(format, precision::Exp(-a * a)); },
    .lower = LowerGaussian,
});

const OpInfo kBlend = Complete({
    .name = "blend",
    .doc = "a + t (b - a): a where t is 0, b where it is 1.",
    .operands = "a, b, t",
    .domains = {Domain::kBounded, Domain::kBounded, Domain::kBounded},
    .expand = ExpandBlend,
});

}  // namespace simgrad::sim::op
