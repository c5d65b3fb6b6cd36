// Factors of a matrix with pivots, and systems of square ones; docs/numerics.md section 10.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "sim/op/expansion.h"
#include "sim/op/linear.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

absl::Status NeedsOneMatrix(const Program& program, const Op& op) {
  if (absl::Status s = NeedsMatrix(program, op, 0); !s.ok()) return s;
  const Type& type = TypeOf(program, op, 0);
  if (type.shape.size() == 2) return absl::OkStatus();
  return FieldError("operands[0]",
                    absl::StrCat(NameOf(op), " needs one matrix, has ", TypeText(type)));
}

// The second operand, if there is one, says which row of the matrix each column's pivot is.
bool HasRows(const Op& op) { return op.operands.size() > 1; }

absl::Status NeedsMatrixAndRows(const Program& program, const Op& op) {
  if (absl::Status s = NeedsOneMatrix(program, op); !s.ok()) return s;
  const Type rows = {ElementType::kI32, {TypeOf(program, op, 0).shape[0]}};
  if (!HasRows(op) || TypeOf(program, op, 1) == rows) return absl::OkStatus();
  return FieldError("operands[1]", absl::StrCat("the rows of the pivots are ", TypeText(rows),
                                                ", an i32 per row"));
}

// Certificates show no row number as an operand. Where given rows make a multiplier of the row a number
// divided by 0, they show that pivot too.
std::vector<double> FactorMadeOf(const Program& program, const Op& op, Arrays operands,
                                 const Array& result, size_t element) {
  const int64_t n = program[op.results[0]].type.shape[1];
  const int64_t i = static_cast<int64_t>(element) / n;
  const int64_t j = static_cast<int64_t>(element) % n;
  const auto at = [&](int64_t row, int64_t column) {
    return result.real[static_cast<size_t>(row * n + column)];
  };
  bool by_zero = false;
  for (int64_t k = 0; HasRows(op) && k < i && k <= j; ++k) {
    by_zero = by_zero || (at(k, k) == 0.0 && std::isinf(at(i, k)));
  }
  std::vector<double> made_of = {operands[0]->AsDouble(element)};
  if (by_zero) made_of.push_back(0.0);
  return made_of;
}
bool FactorDividesByZero(std::span<const double> operands) { return operands.size() == 2; }

Passage OfMatrix(const Program&, const Op&, size_t operand) {
  return operand == 0 ? Passage::kSame : Passage::kNone;
}

Types LuTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsMatrixAndRows(program, op); !s.ok()) return s;
  return SameAsOperand(program, op);
}

Types LuPermutationTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsMatrixAndRows(program, op); !s.ok()) return s;
  return std::vector<Type>{{ElementType::kI32, {TypeOf(program, op, 0).shape[0]}}};
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

Types SolveTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsSquare(program, op, 0, true); !s.ok()) return s;
  if (absl::Status s = NeedsMatrix(program, op, 1); !s.ok()) return s;
  if (absl::Status s = Meets(program, op, 0, 1); !s.ok()) return s;
  return std::vector<Type>{TypeOf(program, op, 1)};
}

Types LuPivotsTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsMatrixAndRows(program, op); !s.ok()) return s;
  const Shape& shape = TypeOf(program, op, 0).shape;
  return std::vector<Type>{{ElementType::kReal, {2, std::min(shape[0], shape[1])}}};
}

// A row or a column, whichever is shorter, for every element.
int64_t FactorWork(const Program& program, const Op& op) {
  const Shape& shape = TypeOf(program, op, 0).shape;
  return ElementCount(shape) * std::min(shape[0], shape[1]);
}

// The largest magnitude that was not taken.
double RunnerUp(const std::vector<double>& magnitudes, size_t taken) {
  double second = 0.0;
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    if (i != taken) second = precision::Max(second, magnitudes[i]);
  }
  return second;
}

// The pivots of one matrix.
struct Pivoting {
  // By column: the row to take; the first that is left, if that one is not.
  const std::vector<int64_t>* given = nullptr;
  std::vector<int64_t> rows;    // by row of the factors: which row of the matrix it is
  std::vector<int64_t> chosen;  // the same, but by column which row is the pivot by its magnitude
  std::vector<double> pivots;   // by column: that magnitude; then by column that of the runner-up
};

// The factors of one matrix, in place.
Pivoting Factor(const Evaluation& e, Format format, std::vector<double>& w) {
  const auto [count, m, width] = MatricesOf(e, 0);
  const int64_t n = width;                 // a lambda of clang 14 takes no structured binding
  const int64_t columns = std::min(m, n);  // that have a pivot
  const auto at = [&](int64_t i, int64_t j) -> double& {
    return w[static_cast<size_t>(i * n + j)];
  };
  Pivoting p;
  if (HasRows(e.op)) p.given = &e.operands[1]->integer;
  std::vector<int64_t>& rows = p.rows;
  for (int64_t i = 0; i < m; ++i) rows.push_back(i);
  p.pivots.resize(static_cast<size_t>(2 * columns));
  for (int64_t k = 0; k < columns; ++k) {
    int64_t best_row = k;
    std::vector<double> magnitudes;
    for (int64_t i = k; i < m; ++i) {
      const double best = std::abs(at(best_row, k));
      const double x = std::abs(at(i, k));
      if (best == best && (x > best || x != x)) best_row = i;
      magnitudes.push_back(x);
    }
    const size_t taken = static_cast<size_t>(best_row - k);
    p.pivots[static_cast<size_t>(k)] = precision::Canonical(magnitudes[taken]);
    p.pivots[static_cast<size_t>(columns + k)] = precision::Canonical(RunnerUp(magnitudes, taken));
    p.chosen.push_back(rows[static_cast<size_t>(best_row)]);
    int64_t pivot = best_row;
    if (p.given != nullptr) {
      const auto left = rows.begin() + k;
      const auto found = std::find(left, rows.end(), (*p.given)[static_cast<size_t>(k)]);
      pivot = found == rows.end() ? k : found - rows.begin();
    }
    for (int64_t j = 0; j < n; ++j) std::swap(at(k, j), at(pivot, j));
    std::swap(rows[static_cast<size_t>(k)], rows[static_cast<size_t>(pivot)]);
    for (int64_t i = k + 1; i < m; ++i) {
      const double top = at(k, k);
      const bool is_nothing = top == 0.0 && at(i, k) == 0.0;
      at(i, k) = is_nothing ? 0.0 : Quotient(e, format, at(i, k), top);
      for (int64_t j = k + 1; j < n; ++j) {
        e.meter.Add(kElementWork);
        const double before = at(i, j);
        at(i, j) = precision::Fma(format, -at(i, k), at(k, j), before);
        if (e.arithmetic != nullptr) {
          e.arithmetic->Chained(format, -at(i, k), at(k, j), before, at(i, j));
        }
      }
    }
  }
  p.chosen.insert(p.chosen.end(), rows.begin() + columns, rows.end());
  return p;
}

Array EvaluateLu(const Evaluation& e) {
  Array result = *e.operands[0];
  Factor(e, *e.result().format, result.real);
  return result;
}

Array EvaluateLuPermutation(const Evaluation& e) {
  Array factors = *e.operands[0];
  const Format format = *e.program[e.op.operands[0]].format;
  Array result;
  result.integer = Factor(Uncounted(e), format, factors.real).chosen;
  return result;
}

Array EvaluateLuPivots(const Evaluation& e) {
  Array factors = *e.operands[0];
  Array result;
  result.real = Factor(Uncounted(e), *e.result().format, factors.real).pivots;
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

// All that the operations on one matrix give: what one of them has made, the others take.
struct Factors {
  Memory factors;
  Memory rows;    // LuPermutationTypes
  Memory pivots;  // LuPivotsTypes
};

// With a second operand the pivots are the rows that it gives (Factor).
Factors LowerFactors(Lowering& l) {
  Factors made;
  const bool is_given = HasRows(l.op());
  const std::string prefix = is_given ? absl::StrCat(Index(l.op().operands[1]), " ") : "";
  if (l.Recall(prefix + "factors", &made.factors)) {
    l.Recall(prefix + "rows", &made.rows);
    l.Recall(prefix + "pivots", &made.pivots);
    return made;
  }
  const Value& value = l.OperandValue(0);
  const Carrier carrier = CarrierOf(value);
  const int64_t m = value.type.shape[0];
  const int64_t n = value.type.shape[1];
  const int64_t columns = std::min(m, n);  // that have a pivot
  const Memory w = made.factors = l.Local(carrier, value.type.shape, "factors");
  const Memory rows = made.rows = l.Local(Carrier::kI32, {m}, "rows");
  const Memory pivots = made.pivots = l.Local(carrier, {2, columns}, "pivots");
  l.Copy(w, l.Operand(0));
  l.EachOf({m}, [&](const Places& at) {
    const Number row = m == 1 ? l.Integer(Carrier::kI64, 0) : at[0].counters[0].first;
    l.Store(rows, at, l.Call("convert_i64_i32", Carrier::kI32, {row}));
  });
  const Memory chosen = is_given ? l.Local(Carrier::kI32, {m}, "chosen") : rows;
  const std::string name = l.NameOf(carrier);
  const Number zero = l.Integer(carrier, 0);
  l.Each(columns, false, [&](Number step) {
    const Place k = Place::Of(step);
    const auto place_of = [&](Number counter) {
      const Number next = l.Call("add_i64", Carrier::kI64, {step, counter});
      return l.Call("add_i64", Carrier::kI64, {next, l.Integer(Carrier::kI64, 1)});
    };
    // The first largest magnitude, or the first NaN.
    const Memory best = l.Local(carrier, {}, "largest");
    const Memory place = l.Local(Carrier::kI64, {}, "place");
    l.Store(best, l.Call(FunctionOn("abs", value), carrier, {l.Load(w, {k, k})}));
    l.Store(place, step);
    const Number below = Minus(l, m - 1, step);
    const Number beside = m == n ? below : Minus(l, n - 1, step);
    l.EachTo(below, [&](Number counter) {
      const Number x =
          l.Call(FunctionOn("abs", value), carrier, {l.Load(w, {k + Place::Of(counter) + 1, k})});
      const Number before = l.Load(best);
      const Number leads = l.Call("leads_max_" + name, Carrier::kBool, {before, x});
      l.Store(best, l.Select(leads, x, before, carrier));
      const Number here = place_of(counter);
      l.Store(place, l.Select(leads, here, l.Load(place), Carrier::kI64));
    });
    // Stores the magnitude of the pivot, and the largest other one from row k on, but that at
    // `but`; kNone: of the rows below k.
    const auto tell = [&](Number but) {
      l.Store(pivots, {Place(0), k}, l.Load(best));
      const Memory second = l.Local(carrier, {}, "second");
      l.Store(second, zero);
      const auto meet = [&](const Place& i, Number at) {
        const Number x = l.Call(FunctionOn("abs", value), carrier, {l.Load(w, {i, k})});
        const Number before = l.Load(second);
        Number most = l.Call(FunctionOn("max", value), carrier, {before, x});
        if (but != Lowering::kNone) {
          const Number is_it = l.Call("eq_i64", Carrier::kBool, {at, but});
          most = l.Select(is_it, before, most, carrier);
        }
        l.Store(second, most);
      };
      if (but != Lowering::kNone) meet(k, step);
      l.EachTo(below, [&](Number counter) {
        const Number at = but == Lowering::kNone ? but : place_of(counter);
        meet(k + Place::Of(counter) + 1, at);
      });
      l.Store(pivots, {Place(1), k}, l.Load(second));
    };
    // The place of the given row, or of the first that is left.
    const auto follow = [&] {
      tell(l.Load(place));
      const Place own = Place::At(l.Clamped(l.Load(place), Carrier::kI64, m));
      l.Store(chosen, {k}, l.Load(rows, {own}));
      const Number row = l.Load(l.Operand(1), {k});
      l.Store(place, step);
      const auto meet = [&](const Place& i, Number at) {
        const Number is_it = l.Call("eq_i32", Carrier::kBool, {l.Load(rows, {i}), row});
        l.Store(place, l.Select(is_it, at, l.Load(place), Carrier::kI64));
      };
      l.EachTo(below, [&](Number counter) { meet(k + Place::Of(counter) + 1, place_of(counter)); });
    };
    if (is_given) follow();
    const Number found = l.Load(place);
    const Place pivot = Place::At(l.Clamped(found, Carrier::kI64, m));
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
    // The magnitudes below are those that were not taken.
    if (!is_given) tell(Lowering::kNone);
    const Number top = l.Load(w, {k, k});
    const Number is_zero = l.Call(FunctionOn("eq", value), Carrier::kBool, {top, zero});
    l.EachTo(below, [&](Number counter) {
      const Place i = k + Place::Of(counter) + 1;
      const Number x = l.Load(w, {i, k});
      const Number quotient = l.Call(FunctionOn("div", value), carrier, {x, top});
      Number is_nothing = is_zero;
      if (is_given) {  // a pivot by magnitude is zero only where all below it are
        const Number too = l.Call(FunctionOn("eq", value), Carrier::kBool, {x, zero});
        is_nothing = l.Select(is_zero, too, is_zero, Carrier::kBool);
      }
      const Number multiplier = l.Select(is_nothing, zero, quotient, carrier);
      l.Store(w, {i, k}, multiplier);
      const Number minus = l.Call(FunctionOn("neg", value), carrier, {multiplier});
      l.EachTo(beside, [&](Number right) {
        const Place j = k + Place::Of(right) + 1;
        const Number above = l.Load(w, {k, j});
        l.Store(w, {i, j},
                l.Call(FunctionOn("fma", value), carrier, {minus, above, l.Load(w, {i, j})}));
      });
    });
  });
  if (is_given && m > columns) {
    l.Each(m - columns, false, [&](Number counter) {
      const Place i = Place(columns) + Place::Of(counter);
      l.Store(chosen, {i}, l.Load(rows, {i}));
    });
  }
  made.rows = chosen;
  l.Keep(prefix + "factors", made.factors);
  l.Keep(prefix + "rows", made.rows);
  l.Keep(prefix + "pivots", made.pivots);
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

// The part of a matrix from (row, column) on.
ValueId Part(Under& u, ValueId matrix, const Shape& whole, int64_t row, int64_t column,
             const Shape& shape) {
  if (shape == whole) return matrix;
  Op op{.code = OpCode::kSlice, .operands = {matrix}};
  op.attributes.start = {row, column};
  op.attributes.shape = shape;
  return u.Do(std::move(op), shape);
}

// Maths: the row of the matrix that each row of `lu` is, with given pivots. These are the pivots by
// magnitude of the matrix [m, min(m, n)] that is 1 at the given row of each column, else 0: its
// columns are eliminated without changing others, and where no 1 is left the first row is taken.
ValueId OrderOf(VjpRule& r, ValueId rows, const Shape& whole) {
  const int64_t columns = std::min(whole[0], whole[1]);
  const Shape shape = {whole[0], columns};
  const Type integers = {ElementType::kI32, shape};
  Op part{.code = OpCode::kSlice, .operands = {rows}};
  part.attributes.start = {0};
  part.attributes.shape = {columns};
  const ValueId pivots = r.EmitPlain(std::move(part), {ElementType::kI32, {columns}});
  Op along{.code = OpCode::kBroadcast, .operands = {pivots}};
  along.attributes.shape = shape;
  along.attributes.dims = {1};
  const ValueId given = r.EmitPlain(std::move(along), integers);
  Op iota{.code = OpCode::kIota};
  iota.attributes.axes = {0};
  iota.attributes.shape = shape;
  const ValueId row = r.EmitPlain(std::move(iota), integers);
  const ValueId is_given = r.EmitMask({.code = OpCode::kEq, .operands = {row, given}}, shape);
  const Type reals = {ElementType::kReal, shape};
  Op choose{.code = OpCode::kSelect,
            .operands = {is_given, r.Splat(1.0, reals), r.Splat(0.0, reals)}};
  const ValueId ones = r.EmitPlain(std::move(choose), reals);
  return r.EmitPlain({.code = OpCode::kLuPermutation, .operands = {ones}},
                     {ElementType::kI32, {whole[0]}});
}

// Maths: gl is the part of g below the diagonal, gu the rest; low and up take the same parts of a
// matrix. For a square matrix the cotangent of the permuted matrix is
// L^-T (low(L^T gl) + up(gu U^T)) U^-T; the permutation then takes its rows back.
// Columns right of the square are U2 = L^-1 A2: their cotangent is L^-T gu2, and gu2 U2^T is
// subtracted inside low. Rows below the square are L2 = A2 U^-1: their cotangent is gl2 U^-T, and
// L2^T gl2 is subtracted inside up.
void LuVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Shape whole = r.type().shape;
  const int64_t m = whole[0];
  const int64_t n = whole[1];
  const Shape shape = {std::min(m, n), std::min(m, n)};
  const ValueId filled = r.Filled();
  const ValueId rows = HasRows(r.op()) ? OrderOf(r, r.X(1), whole)
                                       : r.Kink(OpCode::kLuPermutation, {ElementType::kI32, {m}});
  const ValueId y = r.Y();
  const ValueId below = Where(r, shape, OpCode::kGt);
  const ValueId diagonal = Where(r, shape, OpCode::kEq);
  const Mask mask = Joined(r, whole);
  Under u(r, mask);
  const ValueId zero = u.Zero(shape);
  const ValueId one = r.Splat(1.0, {ElementType::kReal, shape});
  const ValueId ones = u.Select(diagonal, one, zero, shape);
  const ValueId y1 = Part(u, y, whole, 0, 0, shape);
  const ValueId g1 = Part(u, filled, whole, 0, 0, shape);
  const ValueId lower = u.Select(below, y1, ones, shape);
  const ValueId upper = u.Select(below, zero, y1, shape);
  const ValueId of_lower = u.Select(below, g1, zero, shape);
  const ValueId of_upper = u.Select(below, zero, g1, shape);
  const ValueId lower_t = u.Transposed(lower, shape);
  ValueId low = u.Matmul(lower_t, of_lower, shape);
  const ValueId upper_t = u.Transposed(upper, shape);
  ValueId up = u.Matmul(of_upper, upper_t, shape);
  ValueId beyond = ValueId::kNone;  // the cotangent outside the square
  if (m < n) {
    const Shape rest = {m, n - m};
    const ValueId g2 = Part(u, filled, whole, 0, m, rest);
    const ValueId u2_t = u.Transposed(Part(u, y, whole, 0, m, rest), rest);
    low = u.Elementwise(OpCode::kSub, {low, u.Matmul(g2, u2_t, shape)}, shape);
    beyond = u.Triangular(lower, g2, rest, {.transposed = true, .unit = true});
  } else if (m > n) {
    const Shape rest = {m - n, n};
    const ValueId g2 = Part(u, filled, whole, n, 0, rest);
    const ValueId l2_t = u.Transposed(Part(u, y, whole, n, 0, rest), rest);
    up = u.Elementwise(OpCode::kSub, {up, u.Matmul(l2_t, g2, shape)}, shape);
    const ValueId turned = u.Transposed(g2, rest);
    const Shape flipped = Under::Flipped(rest);
    beyond = u.Transposed(u.Triangular(upper, turned, flipped, {.upper = true}), flipped);
  }
  const ValueId inner = u.Select(below, low, up, shape);
  const ValueId left = u.Triangular(lower, inner, shape, {.transposed = true, .unit = true});
  const ValueId turned = u.Transposed(left, shape);
  const ValueId solved = u.Triangular(upper, turned, shape, {.upper = true});
  ValueId permuted = u.Transposed(solved, shape);
  if (m != n) {
    Op both{.code = OpCode::kConcat, .operands = {permuted, beyond}};
    both.attributes.axes = {m < n ? 1 : 0};
    permuted = u.Do(std::move(both), whole);
  }
  const ValueId nothing = m == n ? zero : u.Zero(whole);
  Op back{.code = OpCode::kScatter, .operands = {nothing, rows, permuted}};
  back.attributes.axes = {0};
  back.attributes.bounds = Bounds::kDrop;
  back.attributes.combine = Combine::kSet;
  r.To(0, {u.Do(std::move(back), whole), mask});
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
  // A column of b is a system of its own.
  const Mask columns = JoinedAlong(r, 0, shape);
  Op solve{.code = OpCode::kLuSolve, .operands = {factors, factors, rows, g}};
  solve.attributes.transposed = !transposed;
  const ValueId solved = Under(r, columns).Do(std::move(solve), shape);
  if (r.Wants(3)) r.To(3, {solved, columns});
  if (!r.Wants(0)) return;
  const ValueId b = Within(r, columns, solved, shape);
  const ValueId x = Within(r, columns, r.Y(), shape);
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

}  // namespace

const OpInfo kLu = Complete({
    .name = "lu",
    .doc = "The factors of a matrix [m, n] with its rows in the order of `lu_permutation`: below "
           "the diagonal the multipliers, from it on the upper factor. A column of zeros has "
           "multipliers 0. With `rows`, an i32 per row, the pivot of column k is row rows[k] of "
           "the matrix, or the first that is left where that is none or has been one; numbers "
           "from min(m, n) on are not read.",
    .op_class = OpClass::kLinear,
    .operands = "a, rows?",
    .types = LuTypes,
    .work = FactorWork,
    .birth = Birth::kArithmetic,
    .divides_by_zero = FactorDividesByZero,
    .made_of = FactorMadeOf,
    .passage = OfMatrix,
    .vjp = LuVjp,
    .evaluate = EvaluateLu,
    .lower = [](Lowering& l) { l.GiveMemory(LowerFactors(l).factors); },
});

const OpInfo kLuPermutation = Complete({
    .name = "lu_permutation",
    .doc = "The row of a matrix [m, n] that each row of its `lu` is: the pivot of a column is the "
           "first largest magnitude, or the first NaN. With `rows`, as for `lu`: the rows that "
           "would be the pivots by this rule, each behind the given ones before it; that is no "
           "order for `lu_solve`, which takes `rows`.",
    .op_class = OpClass::kLinear,
    .operands = "a, rows?",
    .result = Result::kI32,
    .types = LuPermutationTypes,
    .work = FactorWork,
    .chooses = Chooses::kPivots,
    .evaluate = EvaluateLuPermutation,
    .lower = [](Lowering& l) { l.GiveMemory(LowerFactors(l).rows); },
});

const OpInfo kLuPivots = Complete({
    .name = "lu_pivots",
    .doc = "By pivot of `lu_permutation`, min(m, n) of them: its magnitude, and the largest that "
           "was not taken, 0 where there is none.",
    .op_class = OpClass::kLinear,
    .operands = "a, rows?",
    .in_worlds = false,
    .types = LuPivotsTypes,
    .work = FactorWork,
    .birth = Birth::kArithmetic,
    .passage = OfMatrix,
    .evaluate = EvaluateLuPivots,
    .lower = [](Lowering& l) { l.GiveMemory(LowerFactors(l).pivots); },
});

const OpInfo kLuSolve = Complete({
    .name = "lu_solve",
    .doc = "x with a x = b (`transposed`: of the transpose of a) from the factors and the "
           "permutation of a; a itself is not read, and receives the cotangent.",
    .op_class = OpClass::kLinear,
    .operands = "a, factors, permutation, b",
    .attributes = {Attribute::kTransposed, Attribute::kAccumulator},
    .types = LuSolveTypes,
    .work = [](const Program& p, const Op& op) { return 2 * WorkPerRow(p, op, 3, 0); },
    .birth = Birth::kArithmetic,
    .divides_by_zero = DividesByZero,
    .made_of =
        [](const Program& program, const Op& op, Arrays operands, const Array&, size_t element) {
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

const OpInfo kSolve = Complete({
    .name = "solve",
    .doc = "x with a x = b, of a square matrix a and b [n, m]: `lu`, `lu_permutation` and "
           "`lu_solve`.",
    .op_class = OpClass::kLinear,
    .operands = "a, b",
    .types = SolveTypes,
    .work = [](const Program& p,
               const Op& op) { return 2 * WorkPerRow(p, op, 0, 0) + 2 * WorkPerRow(p, op, 1, 0); },
    .expand = ExpandSolve,
});

}  // namespace simgrad::sim::op
