// Systems with a triangular matrix; docs/numerics.md section 10.
#include "sim/op/linear.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

Types TriangularTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, false); !s.ok()) return s;
  if (absl::Status s = NeedsMatrix(program, op, 1); !s.ok()) return s;
  if (absl::Status s = Meets(program, op, 0, 1); !s.ok()) return s;
  return std::vector<Type>{TypeOf(program, op, 1)};
}

Array EvaluateTriangularSolve(const Evaluation& e) {
  const Matrices m = MatricesOf(e, 0);
  const Matrices b = MatricesOf(e, 1);
  const Attributes& a = e.op.attributes;
  Array result = *e.operands[1];
  const Substitution how = {*e.result().format, a.accumulator, a.upper == a.transposed, a.unit};
  for (int64_t matrix = 0; matrix < m.count; ++matrix) {
    const auto t = [&](int64_t i, int64_t k) {
      return e.operands[0]->real[a.transposed ? At(m, matrix, k, i) : At(m, matrix, i, k)];
    };
    for (int64_t j = 0; j < b.columns; ++j) {
      e.Begin(At(b, matrix, 0, j));
      Substitute(e, how, m.rows, t, result.real.data() + At(b, matrix, 0, j), b.columns);
    }
  }
  return result;
}

void LowerTriangularSolve(Lowering& l) {
  const auto to = AsMatrices(l, l.Result());
  l.Copy(to, AsMatrices(l, l.Operand(1)));
  const auto m = AsMatrices(l, l.Operand(0));
  const Attributes& a = l.attributes();
  l.EachOf({to.shape[0], to.shape[2]}, [&](const Places& at) {
    const auto t = [&](const Place& i, const Place& k) {
      return a.transposed ? l.Load(m, {at[0], k, i}) : l.Load(m, {at[0], i, k});
    };
    LowerSubstitution(l, a.upper == a.transposed, a.unit, to.shape[1], t, to, [&](const Place& i) {
      return Places{at[0], i, at[1]};
    });
  });
}

// b: the transposed system of g; the triangle: -(b x^T), or -(x b^T) where the system was transposed.
void TriangularSolveVjp(VjpRule& r) {
  if (!r.Wants(0) && !r.Wants(1)) return;
  const Attributes a = r.op().attributes;
  const Shape shape = r.type().shape;
  const Shape own = r.OperandType(0).shape;
  const ValueId g = r.Filled();
  const ValueId t = r.X(0);
  Attributes how = a;
  how.transposed = !a.transposed;
  // A column of b is a system of its own.
  const Mask columns = JoinedAlong(r, static_cast<int64_t>(shape.size()) - 2, shape);
  const ValueId solved = Under(r, columns).Triangular(t, g, shape, how);
  if (r.Wants(1)) r.To(1, {solved, columns});
  if (!r.Wants(0)) return;
  const ValueId b = Within(r, columns, solved, shape);
  const ValueId x = Within(r, columns, r.Y(), shape);
  const OpCode side =
      a.upper ? (a.unit ? OpCode::kLt : OpCode::kLe) : (a.unit ? OpCode::kGt : OpCode::kGe);
  const ValueId read = Where(r, own, side);
  const Mask mask = r.And(Joined(r, own), read);
  Under u(r, mask);
  const ValueId left = a.transposed ? x : b;
  const ValueId right = u.Transposed(a.transposed ? b : x, shape);
  const ValueId product = u.Matmul(left, right, own);
  const ValueId minus = u.Elementwise(OpCode::kNeg, {product}, own);
  const ValueId zero = u.Zero(own);
  r.To(0, {u.Select(read, minus, zero, own), mask});
}

}  // namespace

const OpInfo kTriangularSolve = Complete({
    .name = "triangular_solve",
    .doc = "x with t x = b, of a lower triangle t [..., n, n] (`upper`: an upper one; "
           "`transposed`: of its transpose; `unit`: ones on its diagonal) and b [..., n, m]. The "
           "rest of t is not read.",
    .op_class = OpClass::kLinear,
    .operands = "t, b",
    .attributes = {Attribute::kUpper, Attribute::kTransposed, Attribute::kUnit,
                   Attribute::kAccumulator},
    .types = TriangularTypes,
    .work = [](const Program& p, const Op& op) { return WorkPerRow(p, op, 1, 0); },
    .birth = Birth::kArithmetic,
    .carries = [](const Carriage& c) { return c.operand == 1; },
    .divides_by_zero = DividesByZero,
    .made_of =
        [](const Program& program, const Op& op, Arrays operands, const Array&, size_t element) {
          return SolutionMadeOf(program, op, *operands[0], *operands[1], element);
        },
    .passage = [](const Program&, const Op&,
                  size_t operand) { return operand == 0 ? Passage::kMasked : Passage::kSame; },
    .vjp = TriangularSolveVjp,
    .evaluate = EvaluateTriangularSolve,
    .lower = LowerTriangularSolve,
});

}  // namespace simgrad::sim::op
