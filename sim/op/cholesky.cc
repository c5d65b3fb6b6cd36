// The factor of a symmetric matrix; docs/numerics.md section 10.
#include <limits>

#include "sim/op/linear.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

Types CholeskyTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, false); !s.ok()) return s;
  return SameAsOperand(program, op);
}

Types PivotTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, false); !s.ok()) return s;
  Shape shape = TypeOf(program, op, 0).shape;
  shape.pop_back();
  return std::vector<Type>{{ElementType::kReal, std::move(shape)}};
}

// The factor; what its pivots are before the root goes to `pivots`, if that is not null.
Array Factor(const Evaluation& e, std::vector<double>* pivots) {
  const Matrices m = MatricesOf(e, 0);
  const Format format = *e.result().format;
  Array result = ZerosOf(e.program[e.op.operands[0]].type);
  std::vector<double>& l = result.real;
  for (int64_t matrix = 0; matrix < m.count; ++matrix) {
    for (int64_t j = 0; j < m.rows; ++j) {
      for (int64_t i = j; i < m.rows; ++i) {
        e.Begin(At(m, matrix, i, j));
        Chain chain(e, e.op.attributes.accumulator, e.operands[0]->real[At(m, matrix, i, j)]);
        for (int64_t k = 0; k < j; ++k) {
          e.meter.Add(kElementWork);
          chain.Add(-l[At(m, matrix, i, k)], l[At(m, matrix, j, k)]);
        }
        const double total = chain.Total(format);
        double entry = std::numeric_limits<double>::quiet_NaN();
        if (i > j) entry = Quotient(e, format, total, l[At(m, matrix, j, j)]);
        if (i == j && total > 0.0) entry = precision::Sqrt(format, total);
        if (i == j && pivots != nullptr) pivots->push_back(precision::Canonical(total));
        l[At(m, matrix, i, j)] = precision::Canonical(entry);
      }
    }
  }
  return result;
}

Array EvaluateCholesky(const Evaluation& e) { return Factor(e, nullptr); }

Array EvaluatePivots(const Evaluation& e) {
  Array result;
  Factor(Uncounted(e), &result.real);
  return result;
}

// Factor and pivots at once: what one of the two operations has made, the other takes.
struct Factors {
  Memory factor;
  Memory pivots;
};

Factors LowerFactors(Lowering& l) {
  const std::string accumulator(precision::FormatName(l.attributes().accumulator));
  Factors made;
  if (l.Recall("cholesky_" + accumulator, &made.factor)) {
    l.Recall("cholesky_pivots_" + accumulator, &made.pivots);
    return made;
  }
  const Value& value = l.OperandValue(0);
  Shape of_pivots = value.type.shape;
  of_pivots.pop_back();
  made.factor = l.Local(CarrierOf(value), value.type.shape, "factor");
  made.pivots = l.Local(CarrierOf(value), of_pivots, "pivots");
  const auto to = AsMatrices(l, made.factor);
  l.Fill(to, l.Integer(to.carrier, 0));
  const auto a = AsMatrices(l, l.Operand(0));
  const int64_t n = to.shape[1];
  const Memory pivots = l.Split(made.pivots, {to.shape[0], n});
  const Number nan = l.Real(std::numeric_limits<double>::quiet_NaN(), value);
  const Number zero = l.Integer(to.carrier, 0);
  l.EachOf({to.shape[0]}, [&](const Places& of) {
    const Place matrix = of[0];
    LoweredChain chain(l, FormatOf(l));
    chain.Begin();
    l.Each(n, false, [&](Number column) {
      const Place j = Place::Of(column);
      const auto entry = [&](const Place& i) {
        chain.Start(l.Load(a, {matrix, i, j}));
        l.EachTo(column, [&](Number counter) {
          const Place k = Place::Of(counter);
          const Number left = l.Load(to, {matrix, i, k});
          chain.Subtract(left, l.Load(to, {matrix, j, k}));
        });
        return chain.Total();
      };
      const Number total = entry(j);
      l.Store(pivots, {matrix, j}, total);
      const Number holds = l.Call(FunctionOn("gt", value), Carrier::kBool, {total, zero});
      const Number root = l.Call(FunctionOn("sqrt", value), to.carrier, {total});
      const Number pivot = l.Select(holds, root, nan, to.carrier);
      l.Store(to, {matrix, j, j}, pivot);
      l.EachTo(Minus(l, n - 1, column), [&](Number below) {
        const Place i = j + Place::Of(below) + 1;
        l.Store(to, {matrix, i, j},
                l.Call(FunctionOn("div", value), to.carrier, {entry(i), pivot}));
      });
    });
  });
  l.Keep("cholesky_" + accumulator, made.factor);
  l.Keep("cholesky_pivots_" + accumulator, made.pivots);
  return made;
}

// With S = L^-T p(L^T g) L^-1, where p takes the lower triangle and half of the diagonal: of the numbers that are
// read, S + S^T below the diagonal and S on it.
void CholeskyVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Shape shape = r.type().shape;
  const ValueId filled = r.Filled();
  const ValueId lower = Where(r, shape, OpCode::kGe);
  const ValueId diagonal = Where(r, shape, OpCode::kEq);
  const ValueId l = r.Y();
  const Mask mask = r.And(Joined(r, shape), lower);
  Under u(r, mask);
  const ValueId zero = u.Zero(shape);
  const ValueId g = u.Select(lower, filled, zero, shape);
  const ValueId flipped = u.Transposed(l, shape);
  const ValueId product = u.Matmul(flipped, g, shape);
  const ValueId half = r.Splat(0.5, {ElementType::kReal, shape});
  const ValueId halved = u.Elementwise(OpCode::kMul, {half, product}, shape);
  const ValueId on = u.Select(diagonal, halved, product, shape);
  const ValueId p = u.Select(lower, on, zero, shape);
  const Attributes how{.transposed = true};
  const ValueId left = u.Triangular(l, p, shape, how);
  const ValueId turned = u.Transposed(left, shape);
  const ValueId s = u.Triangular(l, turned, shape, how);  // S^T
  const ValueId back = u.Transposed(s, shape);
  const ValueId both = u.Elementwise(OpCode::kAdd, {back, s}, shape);
  r.To(0, {u.Select(diagonal, s, both, shape), mask});
}

}  // namespace

const OpInfo kCholesky = Complete({
    .name = "cholesky",
    .doc = "The lower factor of symmetric matrices [..., n, n], of which the lower triangle is "
           "read, +0 above; from a pivot that is not above 0 on, the lower triangle is NaN.",
    .op_class = OpClass::kLinear,
    .operands = "a",
    .attributes = {Attribute::kAccumulator},
    .types = CholeskyTypes,
    .work = [](const Program& p, const Op& op) { return WorkPerRow(p, op, 0, 0); },
    .birth = Birth::kArithmetic,
    .chooses = Chooses::kPivots,
    .passage = MaskedPassage,
    .vjp = CholeskyVjp,
    .evaluate = EvaluateCholesky,
    .lower = [](Lowering& l) { l.GiveMemory(LowerFactors(l).factor); },
});

const OpInfo kCholeskyPivots = Complete({
    .name = "cholesky_pivots",
    .doc = "What the diagonal of `cholesky` is the root of; NaN behind a pivot that is not above "
           "0.",
    .op_class = OpClass::kLinear,
    .operands = "a",
    .attributes = {Attribute::kAccumulator},
    .in_worlds = false,
    .types = PivotTypes,
    .work = [](const Program& p, const Op& op) { return WorkPerRow(p, op, 0, 0); },
    .birth = Birth::kArithmetic,
    .evaluate = EvaluatePivots,
    .lower = [](Lowering& l) { l.GiveMemory(LowerFactors(l).pivots); },
});

}  // namespace simgrad::sim::op
