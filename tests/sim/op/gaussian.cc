// Two operations that exist in a test build alone: one with rules of its own, and a composite.
#include "precision/arithmetic.h"
#include "precision/elementary.h"
#include "sim/op/expansion.h"
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
});

const OpInfo kBlend = Complete({
    .name = "blend",
    .doc = "a + t (b - a): a where t is 0, b where it is 1.",
    .operands = "a, b, t",
    .domains = {Domain::kBounded, Domain::kBounded, Domain::kBounded},
    .expand = ExpandBlend,
});

}  // namespace simgrad::sim::op
