// Linear algebra: products, factors and solutions of small dense matrices; docs/numerics.md section 10.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "precision/chain.h"
#include "precision/norm.h"
#include "precision/reduction.h"
#include "precision/selection.h"
#include "sim/op/evaluate.h"
#include "sim/op/expansion.h"
#include "sim/op/lowering.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

using Places = Lowering::Places;
using Place = Lowering::Place;
using Number = Lowering::Number;
using Memory = Lowering::Memory;
using precision::Chain;

// [..., rows, columns]: as many matrices as the axes in front count.
struct Matrices {
  int64_t count = 1;
  int64_t rows = 0;
  int64_t columns = 0;
};
Matrices MatricesOf(const Shape& shape) {
  const size_t rank = shape.size();
  return {ElementCount(Shape(shape.begin(), shape.end() - 2)), shape[rank - 2], shape[rank - 1]};
}
Matrices MatricesOf(const Evaluation& e, size_t operand) {
  return MatricesOf(TypeOf(e.program, e.op, operand).shape);
}

// The index of element [matrix, row, column].
size_t At(const Matrices& m, int64_t matrix, int64_t row, int64_t column) {
  return static_cast<size_t>((matrix * m.rows + row) * m.columns + column);
}

// ---- Types ----

absl::Status NeedsMatrix(const Program& program, const Op& op, size_t operand) {
  if (absl::Status s = NeedsElement(program, op, operand, ElementType::kReal); !s.ok()) return s;
  const Type& type = TypeOf(program, op, operand);
  if (type.shape.size() >= 2) return absl::OkStatus();
  return FieldError(absl::StrCat("operands[", operand, "]"),
                    absl::StrCat(NameOf(op), " needs matrices, has ", TypeText(type)));
}

absl::Status NeedsSquare(const Program& program, const Op& op, size_t operand, bool one) {
  if (absl::Status s = NeedsMatrix(program, op, operand); !s.ok()) return s;
  const Type& type = TypeOf(program, op, operand);
  const size_t rank = type.shape.size();
  if (type.shape[rank - 1] == type.shape[rank - 2] && (!one || rank == 2)) {
    return absl::OkStatus();
  }
  return FieldError(
      absl::StrCat("operands[", operand, "]"),
      absl::StrCat(NameOf(op), one ? " needs one square matrix" : " needs square matrices",
                   ", has ", TypeText(type)));
}

// a and b have as many matrices, and a as many columns as b has rows.
absl::Status Meets(const Program& program, const Op& op, size_t a, size_t b) {
  const Shape& x = TypeOf(program, op, a).shape;
  const Shape& y = TypeOf(program, op, b).shape;
  const bool same = x.size() == y.size() && std::equal(x.begin(), x.end() - 2, y.begin());
  if (same && x[x.size() - 1] == y[y.size() - 2]) return absl::OkStatus();
  return FieldError(absl::StrCat("operands[", b, "]"),
                    absl::StrCat(TypeText(TypeOf(program, op, a)), " and ",
                                 TypeText(TypeOf(program, op, b)), " do not meet"));
}

Types MatmulTypes(const Program& program, const Op& op) {
  for (size_t k : {0, 1}) {
    if (absl::Status s = NeedsMatrix(program, op, k); !s.ok()) return s;
  }
  if (absl::Status s = Meets(program, op, 0, 1); !s.ok()) return s;
  Type type = TypeOf(program, op, 0);
  type.shape.back() = TypeOf(program, op, 1).shape.back();
  return std::vector<Type>{type};
}

Types CholeskyTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, false); !s.ok()) return s;
  return SameAsOperand(program, op);
}

Types TriangularTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, false); !s.ok()) return s;
  if (absl::Status s = NeedsMatrix(program, op, 1); !s.ok()) return s;
  if (absl::Status s = Meets(program, op, 0, 1); !s.ok()) return s;
  return std::vector<Type>{TypeOf(program, op, 1)};
}

Types LuTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, true); !s.ok()) return s;
  return SameAsOperand(program, op);
}

Types LuPermutationTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, true); !s.ok()) return s;
  return std::vector<Type>{{ElementType::kI32, {TypeOf(program, op, 0).shape[0]}}};
}

Types SolveTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, true); !s.ok()) return s;
  if (absl::Status s = NeedsMatrix(program, op, 1); !s.ok()) return s;
  if (absl::Status s = Meets(program, op, 0, 1); !s.ok()) return s;
  return std::vector<Type>{TypeOf(program, op, 1)};
}

Types LuSolveTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, true); !s.ok()) return s;
  const Type& type = TypeOf(program, op, 0);
  if (TypeOf(program, op, 1) != type) {
    return FieldError("operands[1]", absl::StrCat("factors of ", TypeText(type), " are not ",
                                                  TypeText(TypeOf(program, op, 1))));
  }
  if (TypeOf(program, op, 2) != Type{ElementType::kI32, {type.shape[0]}}) {
    return FieldError("operands[2]", "the permutation is an i32 per row");
  }
  if (absl::Status s = NeedsMatrix(program, op, 3); !s.ok()) return s;
  if (absl::Status s = Meets(program, op, 0, 3); !s.ok()) return s;
  return std::vector<Type>{TypeOf(program, op, 3)};
}

Types NormTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsElement(program, op, 0, ElementType::kReal); !s.ok()) return s;
  const Shape& shape = TypeOf(program, op, 0).shape;
  const std::vector<int64_t>& axes = op.attributes.axes;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= static_cast<int64_t>(shape.size()) ||
        (i > 0 && axes[i] <= axes[i - 1])) {
      return FieldError("axes", absl::StrCat("axes must ascend within rank ", shape.size(),
                                             ", are [", absl::StrJoin(axes, ","), "]"));
    }
  }
  Shape kept;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (!IsReduced(op, axis)) kept.push_back(shape[axis]);
  }
  return std::vector<Type>{{ElementType::kReal, kept}};
}

// ---- Evaluation ----

Array EvaluateNorm(const Evaluation& e) {
  const Format format = *e.result().format;
  Array result = ZerosOf(e.result().type);
  for (size_t k = 0; k < result.real.size(); ++k) {
    std::vector<double> squares;
    double largest = 0.0;
    for (size_t i : ReducedElements(e.program, e.op, k, &e.meter)) {
      squares.push_back(e.operands[0]->real[i]);
      largest = precision::Max(largest, std::abs(squares.back()));
    }
    for (double& x : squares) {
      e.meter.Add(kElementWork);
      x = precision::RoundTo(format, precision::ScaleDown(x, largest));
      x = precision::Mul(format, x, x);
    }
    const double sum = precision::Sum(e.op.attributes.order, e.op.attributes.accumulator, format,
                                      squares.data(), static_cast<int64_t>(squares.size()));
    const double root = precision::Sqrt(format, sum);
    const bool scales = std::isfinite(largest) && largest != 0.0;
    result.real[k] = scales ? precision::RoundTo(format, precision::ScaleUp(root, largest))
                            : precision::Canonical(largest);
  }
  return result;
}

Array EvaluateMatmul(const Evaluation& e) {
  const Matrices a = MatricesOf(e, 0);
  const Matrices b = MatricesOf(e, 1);
  const Matrices c = MatricesOf(e.result().type.shape);
  Array result = ZerosOf(e.result().type);
  for (int64_t matrix = 0; matrix < c.count; ++matrix) {
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < c.columns; ++j) {
        Chain chain(e.op.attributes.accumulator, 0.0);
        for (int64_t k = 0; k < a.columns; ++k) {
          e.meter.Add(kElementWork);
          chain.Add(e.operands[0]->real[At(a, matrix, i, k)],
                    e.operands[1]->real[At(b, matrix, k, j)]);
        }
        result.real[At(c, matrix, i, j)] = precision::RoundTo(*e.result().format, chain.sum());
      }
    }
  }
  return result;
}

Array EvaluateCholesky(const Evaluation& e) {
  const Matrices m = MatricesOf(e, 0);
  const Format format = *e.result().format;
  Array result = ZerosOf(e.result().type);
  std::vector<double>& l = result.real;
  for (int64_t matrix = 0; matrix < m.count; ++matrix) {
    for (int64_t j = 0; j < m.rows; ++j) {
      for (int64_t i = j; i < m.rows; ++i) {
        Chain chain(e.op.attributes.accumulator, e.operands[0]->real[At(m, matrix, i, j)]);
        for (int64_t k = 0; k < j; ++k) {
          e.meter.Add(kElementWork);
          chain.Add(-l[At(m, matrix, i, k)], l[At(m, matrix, j, k)]);
        }
        const double total = precision::RoundTo(format, chain.sum());
        double entry = std::numeric_limits<double>::quiet_NaN();
        if (i > j) entry = precision::Div(format, total, l[At(m, matrix, j, j)]);
        if (i == j && total > 0.0) entry = precision::Sqrt(format, total);
        l[At(m, matrix, i, j)] = precision::Canonical(entry);
      }
    }
  }
  return result;
}

// One system: t(i, k) is its triangle, x holds the right side and becomes the solution, `stride` apart.
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
    Chain chain(how.accumulator, x[i * stride]);
    for (int64_t k = how.lower ? 0 : i + 1; k < (how.lower ? i : n); ++k) {
      e.meter.Add(kElementWork);
      chain.Add(-t(i, k), x[k * stride]);
    }
    const double total = precision::RoundTo(how.format, chain.sum());
    x[i * stride] = how.unit ? total : precision::Div(how.format, total, t(i, i));
  }
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
      Substitute(e, how, m.rows, t, result.real.data() + At(b, matrix, 0, j), b.columns);
    }
  }
  return result;
}

// The factors of one matrix, in place, and which row of it each row of them is.
std::vector<int64_t> Factor(const Evaluation& e, Format format, int64_t n, std::vector<double>& w) {
  const auto at = [&](int64_t i, int64_t j) -> double& {
    return w[static_cast<size_t>(i * n + j)];
  };
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(i);
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k; i < n; ++i) {
      const double best = std::abs(at(pivot, k));
      const double x = std::abs(at(i, k));
      if (best == best && (x > best || x != x)) pivot = i;
    }
    for (int64_t j = 0; j < n; ++j) std::swap(at(k, j), at(pivot, j));
    std::swap(rows[static_cast<size_t>(k)], rows[static_cast<size_t>(pivot)]);
    for (int64_t i = k + 1; i < n; ++i) {
      const double top = at(k, k);
      at(i, k) = top == 0.0 ? 0.0 : precision::Div(format, at(i, k), top);
      for (int64_t j = k + 1; j < n; ++j) {
        e.meter.Add(kElementWork);
        at(i, j) = precision::Fma(format, -at(i, k), at(k, j), at(i, j));
      }
    }
  }
  return rows;
}

Array EvaluateLu(const Evaluation& e) {
  Array result = *e.operands[0];
  Factor(e, *e.result().format, MatricesOf(e, 0).rows, result.real);
  return result;
}

Array EvaluateLuPermutation(const Evaluation& e) {
  Array factors = *e.operands[0];
  const Format format = *e.program[e.op.operands[0]].format;
  Array result;
  result.integer = Factor(e, format, MatricesOf(e, 0).rows, factors.real);
  return result;
}

// Row k of the factors is row rows[k] of the matrix; what is no row is the nearest.
int64_t RowOf(const Array& rows, int64_t k, int64_t n) {
  return std::clamp<int64_t>(rows.integer[static_cast<size_t>(k)], 0, n - 1);
}

Array EvaluateLuSolve(const Evaluation& e) {
  const int64_t n = MatricesOf(e, 0).rows;
  const Matrices b = MatricesOf(e, 3);
  const Attributes& a = e.op.attributes;
  const Array& factors = *e.operands[1];
  const Array& rows = *e.operands[2];
  const auto t = [&](int64_t i, int64_t k) {
    return factors.real[static_cast<size_t>(a.transposed ? k * n + i : i * n + k)];
  };
  Substitution how = {*e.result().format, a.accumulator, true, !a.transposed};
  Array result = ZerosOf(e.result().type);
  std::vector<double> x(static_cast<size_t>(n));
  for (int64_t j = 0; j < b.columns; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t from = a.transposed ? i : RowOf(rows, i, n);
      x[static_cast<size_t>(i)] = e.operands[3]->real[At(b, 0, from, j)];
    }
    how.lower = true;
    how.unit = !a.transposed;
    Substitute(e, how, n, t, x.data(), 1);
    how.lower = false;
    how.unit = a.transposed;
    Substitute(e, how, n, t, x.data(), 1);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t to = a.transposed ? RowOf(rows, i, n) : i;
      result.real[At(b, 0, to, j)] = x[static_cast<size_t>(i)];
    }
  }
  return result;
}

// ---- Certificates ----

// The smallest and largest number of the row and of the column.
std::vector<double> ProductMadeOf(const Program& program, const Op& op, Arrays operands,
                                  size_t element) {
  const Matrices a = MatricesOf(TypeOf(program, op, 0).shape);
  const Matrices b = MatricesOf(TypeOf(program, op, 1).shape);
  const int64_t flat = static_cast<int64_t>(element);
  const int64_t column = flat % b.columns;
  const int64_t row = flat / b.columns % a.rows;
  const int64_t matrix = flat / b.columns / a.rows;
  std::vector<size_t> of_row;
  std::vector<size_t> of_column;
  for (int64_t k = 0; k < a.columns; ++k) {
    of_row.push_back(At(a, matrix, row, k));
    of_column.push_back(At(b, matrix, k, column));
  }
  std::vector<double> found;
  AppendRange(*operands[0], of_row, found);
  AppendRange(*operands[1], of_column, found);
  return found;
}

// The smallest magnitude of what is divided by, and the number of the right side.
std::vector<double> SolutionMadeOf(const Program& program, const Op& op, const Array& matrices,
                                   const Array& b, size_t element) {
  const Shape& shape = program[op.results[0]].type.shape;
  const Matrices x = MatricesOf(shape);
  const int64_t matrix = static_cast<int64_t>(element) / (x.rows * x.columns);
  const Matrices m = {x.count, x.rows, x.rows};
  double smallest = std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k < x.rows; ++k) {
    const double pivot = std::abs(matrices.real[At(m, matrix, k, k)]);
    smallest = pivot < smallest || pivot != pivot ? pivot : smallest;
  }
  return {op.attributes.unit ? 1.0 : smallest, b.AsDouble(element)};
}

std::vector<double> NormMadeOf(const Program& program, const Op& op, Arrays operands,
                               size_t element) {
  std::vector<double> found;
  AppendRange(*operands[0], ReducedElements(program, op, element), found);
  return found;
}

bool DividesByZero(std::span<const double> operands) { return operands[0] == 0.0; }

// ---- Lowering ----

// The chain in registers.
class LoweredChain {
 public:
  LoweredChain(Lowering& l, Format from)
      : l_(l),
        from_(from),
        accumulator_(l.attributes().accumulator),
        name_(precision::FormatName(accumulator_)),
        carrier_(accumulator_ == Format::kF64 ? Carrier::kF64 : Carrier::kF32),
        operand_(from == Format::kF64 ? Carrier::kF64 : Carrier::kF32) {}

  void Begin() { sum_ = l_.Local(carrier_, {}, "sum"); }
  void Start(Number x) { l_.Store(sum_, Bring(x)); }
  void StartAtZero() { l_.Store(sum_, l_.Integer(carrier_, 0)); }
  void Add(Number a, Number b) { Link(Bring(a), Bring(b)); }
  void Subtract(Number a, Number b) {
    Link(l_.Call("neg_" + name_, carrier_, {Bring(a)}), Bring(b));
  }
  // In the format of the result.
  Number Total() {
    const Number sum = l_.Load(sum_);
    if (accumulator_ == from_) return sum;
    return l_.Call("round_" + l_.NameOf(carrier_) + "_" + std::string(precision::FormatName(from_)),
                   operand_, {sum});
  }

 private:
  Number Bring(Number x) {
    if (accumulator_ == from_) return x;
    if (precision::Narrows(from_, accumulator_)) {
      return l_.Call("round_" + l_.NameOf(operand_) + "_" + name_, carrier_, {x});
    }
    return carrier_ == operand_ ? x : l_.Call("widen_f32", carrier_, {x});
  }
  void Link(Number a, Number b) {
    const Number before = l_.Load(sum_);
    Number after;
    if (precision::FusesProducts(accumulator_)) {
      after = l_.Call("fma_" + name_, carrier_, {a, b, before});
    } else {
      const Number product = l_.Call("mul_" + name_, carrier_, {a, b});
      after = l_.Call("add_" + name_, carrier_, {product, before});
    }
    l_.Store(sum_, after);
  }

  Lowering& l_;
  const Format from_;
  const Format accumulator_;
  const std::string name_;
  const Carrier carrier_;
  const Carrier operand_;
  Memory sum_;
};

Format FormatOf(const Lowering& l) { return *l.ResultValue().format; }

Memory AsMatrices(Lowering& l, const Memory& memory) {
  const Matrices m = MatricesOf(memory.shape);
  return l.Split(memory, {m.count, m.rows, m.columns});
}

void LowerMatmul(Lowering& l) {
  const auto to = AsMatrices(l, l.Result());
  const auto a = AsMatrices(l, l.Operand(0));
  const auto b = AsMatrices(l, l.Operand(1));
  l.EachOf(to.shape, [&](const Places& at) {
    LoweredChain chain(l, FormatOf(l));
    chain.Begin();
    chain.StartAtZero();
    l.Each(a.shape[2], false, [&](Number counter) {
      const Place k = Place::Of(counter);
      const Number x = l.Load(a, {at[0], at[1], k});
      chain.Add(x, l.Load(b, {at[0], k, at[2]}));
    });
    l.Store(to, at, chain.Total());
  });
}

void LowerNorm(Lowering& l) {
  const auto to = l.Result();
  const auto from = l.Operand(0);
  const Value& value = l.ResultValue();
  Shape kept;
  Shape reduced;
  for (size_t axis = 0; axis < from.shape.size(); ++axis) {
    (IsReduced(l.op(), axis) ? reduced : kept).push_back(from.shape[axis]);
  }
  const std::vector<int64_t> strides = StridesOf(reduced);
  const auto call = [&](const char* name, std::vector<Number> operands) {
    return l.Call(FunctionOn(name, value), to.carrier, std::move(operands));
  };
  l.EachOf(kept, [&](const Places& outer) {
    // Calls with each number of the line and its place there.
    const auto each = [&](const std::function<void(Number x, const Place& place)>& body) {
      Places at(from.shape.size());
      const std::function<void(size_t, size_t, size_t, Place)> nest =
          [&](size_t axis, size_t k, size_t r, const Place& place) {
            if (axis == from.shape.size()) return body(l.Load(from, at), place);
            if (!IsReduced(l.op(), axis)) {
              at[axis] = outer[k];
              return nest(axis + 1, k + 1, r, place);
            }
            l.Each(from.shape[axis], false, [&](Number counter) {
              at[axis] = Place::Of(counter);
              nest(axis + 1, k, r + 1, place + Place::Of(counter, strides[r]));
            });
          };
      nest(0, 0, 0, {});
    };
    const Memory largest = l.Local(to.carrier, {}, "largest");
    l.Store(largest, l.Integer(to.carrier, 0));
    each([&](Number x, const Place&) {
      l.Store(largest, call("max", {l.Load(largest), call("abs", {x})}));
    });
    const Number scale = l.Load(largest);
    const Memory line = l.Local(to.carrier, {ElementCount(reduced)}, "squares");
    each([&](Number x, const Place& place) {
      const Number scaled = call("scale_down", {x, scale});
      l.Store(line, {place}, call("mul", {scaled, scaled}));
    });
    const Number root = call("sqrt", {l.Sum(line)});
    const Number norm = call("scale_up", {root, scale});
    const Number zero = l.Integer(to.carrier, 0);
    const Number positive = l.Call(FunctionOn("gt", value), Carrier::kBool, {scale, zero});
    const Number finite = l.Call("is_finite_" + l.NameOf(to.carrier), Carrier::kBool, {scale});
    const Number scales = l.Call("and_bool", Carrier::kBool, {positive, finite});
    const Number itself = l.Call("canonical_" + l.NameOf(to.carrier), to.carrier, {scale});
    l.Store(to, outer, l.Select(scales, norm, itself, to.carrier));
  });
}

Number Minus(Lowering& l, int64_t n, Number counter) {
  return l.Call("sub_i64", Carrier::kI64, {l.Integer(Carrier::kI64, n), counter});
}

void LowerCholesky(Lowering& l) {
  const auto to = AsMatrices(l, l.Result());
  l.Fill(to, l.Integer(to.carrier, 0));
  const auto a = AsMatrices(l, l.Operand(0));
  const Value& value = l.ResultValue();
  const int64_t n = to.shape[1];
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
}

// One system, as Substitute: `t` gives an entry of the triangle, `x` the place of a number of the solution.
void LowerSubstitution(Lowering& l, bool lower, bool unit, int64_t n,
                       const std::function<Number(const Place&, const Place&)>& t, const Memory& to,
                       const std::function<Places(const Place&)>& x) {
  LoweredChain chain(l, FormatOf(l));
  chain.Begin();
  l.Each(n, false, [&](Number step) {
    const Place i = lower ? Place::Of(step) : Place::Of(step, -1) + (n - 1);
    chain.Start(l.Load(to, x(i)));
    l.EachTo(step, [&](Number counter) {
      const Place k = lower ? Place::Of(counter) : i + Place::Of(counter) + 1;
      const Number entry = t(i, k);
      chain.Subtract(entry, l.Load(to, x(k)));
    });
    Number number = chain.Total();
    if (!unit) {
      const Number pivot = t(i, i);
      number = l.Call(FunctionOn("div", l.ResultValue()), to.carrier, {number, pivot});
    }
    l.Store(to, x(i), number);
  });
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

// Factors and permutation at once: what one of the two operations has made, the other takes.
struct Factors {
  Memory factors;
  Memory rows;
};
Factors LowerFactors(Lowering& l) {
  Factors made;
  if (l.Recall("factors", &made.factors)) {
    l.Recall("rows", &made.rows);
    return made;
  }
  const Value& value = l.OperandValue(0);
  const Carrier carrier = CarrierOf(value);
  const int64_t n = value.type.shape[0];
  const Memory w = made.factors = l.Local(carrier, value.type.shape, "factors");
  const Memory rows = made.rows = l.Local(Carrier::kI32, {n}, "rows");
  l.Copy(w, l.Operand(0));
  l.EachOf({n}, [&](const Places& at) {
    const Number row = n == 1 ? l.Integer(Carrier::kI64, 0) : at[0].counters[0].first;
    l.Store(rows, at, l.Call("convert_i64_i32", Carrier::kI32, {row}));
  });
  const std::string name = l.NameOf(carrier);
  const Number zero = l.Integer(carrier, 0);
  l.Each(n, false, [&](Number step) {
    const Place k = Place::Of(step);
    // The first largest magnitude, or the first NaN.
    const Memory best = l.Local(carrier, {}, "largest");
    const Memory place = l.Local(Carrier::kI64, {}, "place");
    l.Store(best, l.Call(FunctionOn("abs", value), carrier, {l.Load(w, {k, k})}));
    l.Store(place, step);
    const Number below = Minus(l, n - 1, step);
    l.EachTo(below, [&](Number counter) {
      const Number x =
          l.Call(FunctionOn("abs", value), carrier, {l.Load(w, {k + Place::Of(counter) + 1, k})});
      const Number before = l.Load(best);
      const Number leads = l.Call("leads_max_" + name, Carrier::kBool, {before, x});
      l.Store(best, l.Select(leads, x, before, carrier));
      const Number next = l.Call("add_i64", Carrier::kI64, {step, counter});
      const Number here = l.Call("add_i64", Carrier::kI64, {next, l.Integer(Carrier::kI64, 1)});
      l.Store(place, l.Select(leads, here, l.Load(place), Carrier::kI64));
    });
    const Number found = l.Load(place);
    const Place pivot = Place::At(l.Clamped(found, Carrier::kI64, n));
    const auto swap = [&](const Memory& memory, const Places& a, const Places& b) {
      const Number x = l.Load(memory, a);
      const Number y = l.Load(memory, b);
      l.Store(memory, a, y);
      l.Store(memory, b, x);
    };
    l.Each(n, false, [&](Number column) {
      const Place j = Place::Of(column);
      swap(w, {k, j}, {pivot, j});
    });
    swap(rows, {k}, {pivot});
    const Number top = l.Load(w, {k, k});
    const Number is_zero = l.Call(FunctionOn("eq", value), Carrier::kBool, {top, zero});
    l.EachTo(below, [&](Number counter) {
      const Place i = k + Place::Of(counter) + 1;
      const Number quotient = l.Call(FunctionOn("div", value), carrier, {l.Load(w, {i, k}), top});
      const Number multiplier = l.Select(is_zero, zero, quotient, carrier);
      l.Store(w, {i, k}, multiplier);
      const Number minus = l.Call(FunctionOn("neg", value), carrier, {multiplier});
      l.EachTo(below, [&](Number right) {
        const Place j = k + Place::Of(right) + 1;
        const Number above = l.Load(w, {k, j});
        l.Store(w, {i, j},
                l.Call(FunctionOn("fma", value), carrier, {minus, above, l.Load(w, {i, j})}));
      });
    });
  });
  l.Keep("factors", w);
  l.Keep("rows", rows);
  return made;
}

void LowerLuSolve(Lowering& l) {
  const auto to = l.Result();
  const auto b = l.Operand(3);
  const auto factors = l.Operand(1);
  const auto rows = l.Operand(2);
  const bool transposed = l.attributes().transposed;
  const int64_t n = to.shape[0];
  if (transposed) l.Fill(to, l.Integer(to.carrier, 0));
  const Memory x = l.Local(to.carrier, to.shape, "x");
  const auto row_of = [&](Number k) {
    return Place::At(l.Clamped(l.Load(rows, {Place::Of(k)}), Carrier::kI32, n));
  };
  const auto t = [&](const Place& i, const Place& k) {
    return transposed ? l.Load(factors, {k, i}) : l.Load(factors, {i, k});
  };
  l.EachOf({to.shape[1]}, [&](const Places& at) {
    const Place j = at[0];
    l.Each(n, false, [&](Number k) {
      const Place from = transposed ? Place::Of(k) : row_of(k);
      l.Store(x, {Place::Of(k), j}, l.Load(b, {from, j}));
    });
    const auto column = [&](const Place& i) { return Places{i, j}; };
    LowerSubstitution(l, true, !transposed, n, t, x, column);
    LowerSubstitution(l, false, transposed, n, t, x, column);
    l.Each(n, false, [&](Number k) {
      const Place target = transposed ? row_of(k) : Place::Of(k);
      l.Store(to, {target, j}, l.Load(x, {Place::Of(k), j}));
    });
  });
}

// ---- Derivatives ----

// The whole cotangent is present where any of it is.
Mask Joined(VjpRule& r, const Shape& shape) {
  std::vector<int64_t> axes;
  for (size_t k = 0; k < r.type().shape.size(); ++k) axes.push_back(static_cast<int64_t>(k));
  const Mask any = r.MapMask({}, [&] { return AxesOp(OpCode::kAny, axes); });
  if (any.presence != Presence::kMasked) return any;
  Op wide = ShapeOp(OpCode::kBroadcast, shape);
  wide.operands = {any.value};
  return Mask::At(r.EmitMask(std::move(wide), shape));
}

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

// Where the row of an element compares with its column, in every matrix.
ValueId Where(VjpRule& r, const Shape& shape, OpCode comparison) {
  const auto positions = [&](size_t from_behind) {
    Op iota{.code = OpCode::kIota};
    iota.attributes.axes = {static_cast<int64_t>(shape.size() - from_behind)};
    iota.attributes.shape = shape;
    return r.EmitPlain(std::move(iota), {ElementType::kI32, shape});
  };
  const ValueId rows = positions(2);
  const ValueId columns = positions(1);
  return r.EmitMask({.code = comparison, .operands = {rows, columns}}, shape);
}

// g b^T and a^T g. A row of a has a cotangent where a row of g has one, a column of b where a column of g.
void MatmulVjp(VjpRule& r) {
  const Shape shape = r.type().shape;
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (!r.Wants(0) && !r.Wants(1)) return;
  const ValueId g = r.Filled();
  const auto lines = [&](int64_t gone, const Shape& own) {
    Shape reduced = shape;
    reduced.erase(reduced.begin() + static_cast<std::ptrdiff_t>(gone));
    const Mask any = r.MapMask(reduced, [&] { return AxesOp(OpCode::kAny, {gone}); });
    if (any.presence != Presence::kMasked) return any;
    Op wide = ShapeOp(OpCode::kBroadcast, own);
    wide.operands = {any.value};
    for (int64_t axis = 0; axis < rank; ++axis) {
      if (axis != gone) wide.attributes.dims.push_back(axis);
    }
    return Mask::At(r.EmitMask(std::move(wide), own));
  };
  if (r.Wants(1)) {
    const Shape own = r.OperandType(1).shape;
    const Shape other = r.OperandType(0).shape;
    const ValueId a = r.X(0);
    const Mask mask = lines(rank - 2, own);
    Under u(r, mask);
    const ValueId flipped = u.Transposed(a, other);
    r.To(1, {u.Matmul(flipped, g, own), mask});
  }
  if (r.Wants(0)) {
    const Shape own = r.OperandType(0).shape;
    const Shape other = r.OperandType(1).shape;
    const ValueId b = r.X(1);
    const Mask mask = lines(rank - 1, own);
    Under u(r, mask);
    const ValueId flipped = u.Transposed(b, other);
    r.To(0, {u.Matmul(g, flipped, own), mask});
  }
}

// (g x) / n, and 0 where n is 0.
void NormVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Type type = r.OperandType(0);
  const ValueId x = r.X(0);
  const ValueId n = r.Y();
  const ValueId zero = r.Const(0.0);
  const ValueId is_zero = r.EmitMask({.code = OpCode::kEq, .operands = {n, zero}}, r.type().shape);
  const ValueId one = r.Const(1.0);
  const ValueId divisor =
      r.EmitUnder(r.mask(), {.code = OpCode::kSelect, .operands = {is_zero, one, n}}, r.type());
  const Mask mask = r.MapMask(type.shape, [&] { return r.Widen(); });
  Under u(r, mask);
  const auto widened = [&](ValueId of) {
    Op wide = r.Widen();
    wide.operands = {of};
    return u.Do(std::move(wide), type.shape);
  };
  const ValueId g = widened(r.g());
  const ValueId by = widened(divisor);
  const ValueId product = u.Elementwise(OpCode::kMul, {g, x}, type.shape);
  r.To(0, {u.Elementwise(OpCode::kDiv, {product, by}, type.shape), mask});
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
  const Mask whole = Joined(r, shape);
  const ValueId b = Under(r, whole).Triangular(t, g, shape, how);
  if (r.Wants(1)) r.To(1, {b, whole});
  if (!r.Wants(0)) return;
  const ValueId x = r.Y();
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

// The cotangent of the permuted matrix is L^-T (low(L^T gl) + up(gu U^T)) U^-T, where gl is what g has below the
// diagonal, gu the rest, low takes what is below it and up the rest; its rows go back to where they came from.
void LuVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Shape shape = r.type().shape;
  const int64_t n = shape[0];
  const ValueId filled = r.Filled();
  const ValueId rows = r.Kink(OpCode::kLuPermutation, {ElementType::kI32, {n}});
  const ValueId y = r.Y();
  const ValueId below = Where(r, shape, OpCode::kGt);
  const ValueId diagonal = Where(r, shape, OpCode::kEq);
  const Mask mask = Joined(r, shape);
  Under u(r, mask);
  const ValueId zero = u.Zero(shape);
  const ValueId one = r.Splat(1.0, {ElementType::kReal, shape});
  const ValueId ones = u.Select(diagonal, one, zero, shape);
  const ValueId lower = u.Select(below, y, ones, shape);
  const ValueId upper = u.Select(below, zero, y, shape);
  const ValueId of_lower = u.Select(below, filled, zero, shape);
  const ValueId of_upper = u.Select(below, zero, filled, shape);
  const ValueId lower_t = u.Transposed(lower, shape);
  const ValueId low = u.Matmul(lower_t, of_lower, shape);
  const ValueId upper_t = u.Transposed(upper, shape);
  const ValueId up = u.Matmul(of_upper, upper_t, shape);
  const ValueId inner = u.Select(below, low, up, shape);
  const ValueId left = u.Triangular(lower, inner, shape, {.transposed = true, .unit = true});
  const ValueId turned = u.Transposed(left, shape);
  const ValueId solved = u.Triangular(upper, turned, shape, {.upper = true});
  const ValueId permuted = u.Transposed(solved, shape);
  Op back{.code = OpCode::kScatter, .operands = {zero, rows, permuted}};
  back.attributes.axes = {0};
  back.attributes.bounds = Bounds::kDrop;
  back.attributes.combine = Combine::kSet;
  r.To(0, {u.Do(std::move(back), shape), mask});
}

// One transposed system with the same factors.
void LuSolveVjp(VjpRule& r) {
  if (!r.Wants(0) && !r.Wants(3)) return;
  const bool transposed = r.op().attributes.transposed;
  const Shape shape = r.type().shape;
  const Shape own = r.OperandType(0).shape;
  const ValueId g = r.Filled();
  const ValueId factors = r.X(1);
  const ValueId rows = r.X(2);
  const Mask whole = Joined(r, shape);
  Op solve{.code = OpCode::kLuSolve, .operands = {factors, factors, rows, g}};
  solve.attributes.transposed = !transposed;
  const ValueId b = Under(r, whole).Do(std::move(solve), shape);
  if (r.Wants(3)) r.To(3, {b, whole});
  if (!r.Wants(0)) return;
  const ValueId x = r.Y();
  const Mask mask = Joined(r, own);
  Under u(r, mask);
  const ValueId right = u.Transposed(transposed ? b : x, shape);
  const ValueId product = u.Matmul(transposed ? x : b, right, own);
  r.To(0, {u.Elementwise(OpCode::kNeg, {product}, own), mask});
}

void ExpandSolve(ExpansionWriter& w) {
  const Type type = w.TypeOf(w.X(0));
  const ValueId factors = w.Do(OpCode::kLu, {w.X(0)}, type);
  const ValueId rows = w.Do(OpCode::kLuPermutation, {w.X(0)}, {ElementType::kI32, {type.shape[0]}});
  w.Give(OpCode::kLuSolve, {w.X(0), factors, rows, w.X(1)});
}

bool HasElements(const Carriage& c) {
  return ElementCount(c.program[c.op.results[0]].type.shape) > 0;
}

}  // namespace

const OpInfo kMatmul = Complete({
    .name = "matmul",
    .doc = "The product of matrices [..., m, k] and [..., k, n], with the same axes in front: each "
           "number one "
           "chain of fma over k in the accumulator of the role.",
    .op_class = OpClass::kLinear,
    .operands = "a, b",
    .attributes = {Attribute::kAccumulator},
    .types = MatmulTypes,
    .birth = Birth::kAccumulation,
    .carries = HasElements,
    .made_of = ProductMadeOf,
    .vjp = MatmulVjp,
    .evaluate = EvaluateMatmul,
    .lower = LowerMatmul,
});

const OpInfo kCholesky = Complete({
    .name = "cholesky",
    .doc = "The lower factor of symmetric matrices [..., n, n], of which the lower triangle is "
           "read, +0 above; from "
           "a pivot that is not above 0 on, the lower triangle is NaN.",
    .op_class = OpClass::kLinear,
    .operands = "a",
    .attributes = {Attribute::kAccumulator},
    .types = CholeskyTypes,
    .birth = Birth::kArithmetic,
    .passage = MaskedPassage,
    .vjp = CholeskyVjp,
    .evaluate = EvaluateCholesky,
    .lower = LowerCholesky,
});

const OpInfo kTriangularSolve = Complete({
    .name = "triangular_solve",
    .doc = "x with t x = b, of a lower triangle t [..., n, n] (`upper`: an upper one; "
           "`transposed`: of its "
           "transpose; `unit`: ones on its diagonal) and b [..., n, m]. The rest of t is not read.",
    .op_class = OpClass::kLinear,
    .operands = "t, b",
    .attributes = {Attribute::kUpper, Attribute::kTransposed, Attribute::kUnit,
                   Attribute::kAccumulator},
    .types = TriangularTypes,
    .birth = Birth::kArithmetic,
    .carries = [](const Carriage& c) { return c.operand == 1; },
    .divides_by_zero = DividesByZero,
    .made_of =
        [](const Program& program, const Op& op, Arrays operands, size_t element) {
          return SolutionMadeOf(program, op, *operands[0], *operands[1], element);
        },
    .passage = [](const Program&, const Op&,
                  size_t operand) { return operand == 0 ? Passage::kMasked : Passage::kSame; },
    .vjp = TriangularSolveVjp,
    .evaluate = EvaluateTriangularSolve,
    .lower = LowerTriangularSolve,
});

const OpInfo kLu = Complete({
    .name = "lu",
    .doc = "The factors of a square matrix with its rows in the order of `lu_permutation`: below "
           "the diagonal the "
           "multipliers, from it on the upper factor. A column of zeros has multipliers 0.",
    .op_class = OpClass::kLinear,
    .operands = "a",
    .types = LuTypes,
    .birth = Birth::kArithmetic,
    .vjp = LuVjp,
    .evaluate = EvaluateLu,
    .lower = [](Lowering& l) { l.GiveMemory(LowerFactors(l).factors); },
});

const OpInfo kLuPermutation = Complete({
    .name = "lu_permutation",
    .doc = "Which row of a square matrix each row of its `lu` is: the pivot of a column is the "
           "first largest "
           "magnitude, or the first NaN.",
    .op_class = OpClass::kLinear,
    .operands = "a",
    .result = Result::kI32,
    .types = LuPermutationTypes,
    .evaluate = EvaluateLuPermutation,
    .lower = [](Lowering& l) { l.GiveMemory(LowerFactors(l).rows); },
});

const OpInfo kLuSolve = Complete({
    .name = "lu_solve",
    .doc = "x with a x = b (`transposed`: of the transpose of a) from the factors and the "
           "permutation of a; a "
           "itself is not read, and receives the cotangent.",
    .op_class = OpClass::kLinear,
    .operands = "a, factors, permutation, b",
    .attributes = {Attribute::kTransposed, Attribute::kAccumulator},
    .types = LuSolveTypes,
    .birth = Birth::kArithmetic,
    .divides_by_zero = DividesByZero,
    .made_of =
        [](const Program& program, const Op& op, Arrays operands, size_t element) {
          return SolutionMadeOf(program, op, *operands[1], *operands[3], element);
        },
    .passage =
        [](const Program&, const Op&, size_t operand) {
          return operand == 0 || operand == 3 ? Passage::kSame : Passage::kNone;
        },
    .vjp = LuSolveVjp,
    .evaluate = EvaluateLuSolve,
    .lower = LowerLuSolve,
});

const OpInfo kNorm2 = Complete({
    .name = "norm2",
    .doc = "The Euclidean norm over `axes`, ascending; those axes go. Numbers are scaled by the "
           "power of two of the "
           "largest, squared, and added in the order and accumulator of the role.",
    .op_class = OpClass::kLinear,
    .operands = "a",
    .attributes = {Attribute::kAxes, Attribute::kOrder, Attribute::kAccumulator},
    .types = NormTypes,
    .birth = Birth::kAccumulation,
    .propagates = true,
    .made_of = NormMadeOf,
    .vjp = NormVjp,
    .evaluate = EvaluateNorm,
    .lower = LowerNorm,
});

const OpInfo kSolve = Complete({
    .name = "solve",
    .doc =
        "x with a x = b, of a square matrix a and b [n, m]: `lu`, `lu_permutation` and `lu_solve`.",
    .op_class = OpClass::kLinear,
    .operands = "a, b",
    .types = SolveTypes,
    .expand = ExpandSolve,
});

}  // namespace simgrad::sim::op
