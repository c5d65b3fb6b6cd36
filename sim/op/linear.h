// Helpers of products, factors and solutions of matrices.
//
// Maths: docs/numerics.md section 10. Threads: pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "precision/chain.h"
#include "precision/reduction.h"
#include "sim/op/evaluate.h"
#include "sim/op/lowering.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {

using Number = Lowering::Number;
using Memory = Lowering::Memory;
using Place = Lowering::Place;
using Places = Lowering::Places;

// [..., rows, columns]: as many matrices as the axes in front count.
struct Matrices {
  int64_t count = 1;
  int64_t rows = 0;
  int64_t columns = 0;
};
Matrices MatricesOf(const Shape& shape);
Matrices MatricesOf(const Evaluation& e, size_t operand);
// The index of element [matrix, row, column].
size_t At(const Matrices& m, int64_t matrix, int64_t row, int64_t column);

// ---- types ----

absl::Status NeedsMatrix(const Program& program, const Op& op, size_t operand);
// `one`: a single matrix, without axes in front.
absl::Status NeedsSquare(const Program& program, const Op& op, size_t operand, bool one);
// a and b have as many matrices, and a as many columns as b has rows.
absl::Status Meets(const Program& program, const Op& op, size_t a, size_t b);

// A row of the square operand `rows` for every element of the operand `elements`.
int64_t WorkPerRow(const Program& program, const Op& op, size_t elements, size_t rows);

// ---- arithmetic ----

// precision::Chain, and what it does to the numbers of an evaluation.
class Chain {
 public:
  Chain(const Evaluation& e, Format accumulator, double first)
      : e_(e), accumulator_(accumulator), chain_(accumulator, first) {}
  void Add(double a, double b) {
    const double before = chain_.sum();
    chain_.Add(a, b);
    if (e_.arithmetic != nullptr) e_.arithmetic->Chained(accumulator_, a, b, before, chain_.sum());
  }
  // In the format of the result.
  double Total(Format format) const {
    const double total = precision::RoundTo(format, chain_.sum());
    if (e_.arithmetic != nullptr) e_.arithmetic->Rounded(format, chain_.sum(), total);
    return total;
  }

 private:
  const Evaluation& e_;
  const Format accumulator_;
  precision::Chain chain_;
};

inline double Quotient(const Evaluation& e, Format format, double a, double b) {
  const double quotient = precision::Div(format, a, b);
  if (e.arithmetic != nullptr) e.arithmetic->Divided(format, a, b, quotient);
  return quotient;
}

// ---- substitution ----

// One system: t(i, k) is its triangle; x, `stride` apart, holds the right side, then the solution.
struct Substitution {
  Format format;
  Format accumulator;
  bool lower = true;
  bool unit = false;
};
template <class T>
void Substitute(const Evaluation& e, const Substitution& how, int64_t n, const T& t, double* x,
                int64_t stride) {
  for (int64_t step = 0; step < n; ++step) {
    const int64_t i = how.lower ? step : n - 1 - step;
    Chain chain(e, how.accumulator, x[i * stride]);
    for (int64_t k = how.lower ? 0 : i + 1; k < (how.lower ? i : n); ++k) {
      e.meter.Add(kElementWork);
      chain.Add(-t(i, k), x[k * stride]);
    }
    const double total = chain.Total(how.format);
    x[i * stride] = how.unit ? total : Quotient(e, how.format, total, t(i, i));
  }
}
// Returns what a number of a solution is made of: the smallest magnitude that is divided by, and
// the number of the right side.
std::vector<double> SolutionMadeOf(const Program& program, const Op& op, const Array& matrices,
                                   const Array& b, size_t element);
inline bool DividesByZero(std::span<const double> operands) { return operands[0] == 0.0; }

// ---- lowering ----

// precision::Chain with its sum in a number of the plan.
class LoweredChain {
 public:
  LoweredChain(Lowering& l, Format from);

  void Begin() { sum_ = l_.Local(carrier_, {}, "sum"); }
  void Start(Number x) { l_.Store(sum_, Bring(x)); }
  void StartAtZero() { l_.Store(sum_, l_.Integer(carrier_, 0)); }
  void Add(Number a, Number b) { Link(Bring(a), Bring(b)); }
  void Subtract(Number a, Number b);
  Number Product(Number a, Number b);  // rounded to the accumulator
  Carrier carrier() const { return carrier_; }
  Number Total();  // in the format of the result

 private:
  Number Bring(Number x);
  void Link(Number a, Number b);

  Lowering& l_;
  const Format from_;
  const Format accumulator_;
  const std::string name_;
  const Carrier carrier_;
  const Carrier operand_;
  Memory sum_;
};

inline Format FormatOf(const Lowering& l) { return *l.ResultValue().format; }
Memory AsMatrices(Lowering& l, const Memory& memory);
// The elements of a shape along `axes`, which the operation has: their places, and their number on that line.
// `outer`: by axis that is left. `parallel` as in Each.
void EachOfLine(Lowering& l, const Shape& shape, const Places& outer, bool parallel,
                const std::function<void(const Places& at, const Place& number)>& body);
int64_t LengthOfLine(const Op& op, const Shape& shape);
Number Minus(Lowering& l, int64_t n, Number counter);  // n - counter
// As Substitute, one system: `t` gives an entry of the triangle, `x` the place of a number.
void LowerSubstitution(Lowering& l, bool lower, bool unit, int64_t n,
                       const std::function<Number(const Place&, const Place&)>& t, const Memory& to,
                       const std::function<Places(const Place&)>& x);

// ---- derivatives ----

// The whole cotangent of a matrix is present where any of that matrix is. `shape`: [..., rows, columns].
Mask Joined(VjpRule& r, const Shape& shape);
// A line of matrices along `axis` is present where any of the result's line is. `shape`: of the
// matrices, which is the result's but for that axis.
Mask JoinedAlong(VjpRule& r, int64_t axis, const Shape& shape);
// x, of `shape`, with +0 outside the mask: where nothing is used, x may be infinite.
ValueId Within(VjpRule& r, const Mask& mask, ValueId x, const Shape& shape);
// A mask of the elements whose row compares so with their column, in every matrix.
ValueId Where(VjpRule& r, const Shape& shape, OpCode comparison);

// One operation under a mask, of matrices [..., rows, columns].
class Under {
 public:
  Under(VjpRule& r, Mask mask) : r_(r), mask_(mask) {}

  ValueId Matmul(ValueId a, ValueId b, const Shape& shape) {
    return Do({.code = OpCode::kMatmul, .operands = {a, b}}, shape);
  }
  // `shape`: of a.
  ValueId Transposed(ValueId a, const Shape& shape) {
    Op op{.code = OpCode::kTranspose, .operands = {a}};
    for (size_t k = 0; k < shape.size(); ++k) op.attributes.dims.push_back(static_cast<int64_t>(k));
    std::swap(op.attributes.dims[shape.size() - 1], op.attributes.dims[shape.size() - 2]);
    return Do(std::move(op), Flipped(shape));
  }
  static Shape Flipped(Shape shape) {
    std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    return shape;
  }
  ValueId Triangular(ValueId t, ValueId b, const Shape& shape, const Attributes& how) {
    Op op{.code = OpCode::kTriangularSolve, .operands = {t, b}};
    op.attributes.upper = how.upper;
    op.attributes.transposed = how.transposed;
    op.attributes.unit = how.unit;
    return Do(std::move(op), shape);
  }
  ValueId Elementwise(OpCode code, std::vector<ValueId> operands, const Shape& shape) {
    return Do({.code = code, .operands = std::move(operands)}, shape);
  }
  ValueId Select(ValueId condition, ValueId a, ValueId b, const Shape& shape) {
    return Do({.code = OpCode::kSelect, .operands = {condition, a, b}}, shape);
  }
  ValueId Zero(const Shape& shape) { return r_.Splat(0.0, {ElementType::kReal, shape}); }
  ValueId Do(Op op, const Shape& shape) {
    return r_.EmitUnder(mask_, std::move(op), {ElementType::kReal, shape});
  }

 private:
  VjpRule& r_;
  Mask mask_;
};

}  // namespace simgrad::sim::op
