// Products of matrices and norms; docs/numerics.md section 10.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "precision/norm.h"
#include "precision/selection.h"
#include "precision/tf32.h"
#include "sim/op/linear.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

Types MatmulTypes(const Program& program, const Op& op) {
  for (size_t k : {0, 1}) {
    if (absl::Status s = NeedsMatrix(program, op, k); !s.ok()) return s;
  }
  if (absl::Status s = Meets(program, op, 0, 1); !s.ok()) return s;
  Type type = TypeOf(program, op, 0);
  type.shape.back() = TypeOf(program, op, 1).shape.back();
  return std::vector<Type>{type};
}

// The operand of matmul as it is read; `rounded` holds it where it is rounded to tf32.
const std::vector<double>& AsRead(const Evaluation& e, size_t operand,
                                  std::vector<double>& rounded) {
  const std::vector<double>& x = e.operands[operand]->real;
  if (!e.op.attributes.rounding) return x;
  for (const double number : x) {
    e.meter.Add(kElementWork);
    rounded.push_back(
        precision::RoundToTf32(static_cast<float>(number), *e.op.attributes.rounding));
  }
  return rounded;
}

// The sum of n products x(k) y(k): a chain, or in the order of the operation.
template <class X, class Y>
double SumOfProducts(const Evaluation& e, LineSum& sums, int64_t n, const X& x, const Y& y) {
  const Format accumulator = e.op.attributes.accumulator;
  Chain chain(e, accumulator, 0.0);
  std::vector<double> products;
  for (int64_t k = 0; k < n; ++k) {
    e.meter.Add(kElementWork);
    if (e.op.attributes.ordered) {
      const double a = precision::RoundTo(accumulator, x(k));
      const double b = precision::RoundTo(accumulator, y(k));
      products.push_back(precision::Mul(accumulator, a, b));
      if (e.arithmetic != nullptr) {
        e.arithmetic->Rounded(accumulator, x(k), a);
        e.arithmetic->Rounded(accumulator, y(k), b);
        e.arithmetic->Multiplied(accumulator, a, b, products.back());
      }
    } else {
      chain.Add(x(k), y(k));
    }
  }
  if (e.op.attributes.ordered) return sums.Of(products);
  return chain.Total(*e.result().format);
}

Array EvaluateMatmul(const Evaluation& e) {
  const Matrices a = MatricesOf(e, 0);
  const Matrices b = MatricesOf(e, 1);
  const Matrices c = MatricesOf(e.result().type.shape);
  std::vector<double> rounded[2];
  const std::vector<double>& left = AsRead(e, 0, rounded[0]);
  const std::vector<double>& right = AsRead(e, 1, rounded[1]);
  Array result = ZerosOf(e.result().type);
  LineSum sums(e);
  for (int64_t matrix = 0; matrix < c.count; ++matrix) {
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < c.columns; ++j) {
        e.Begin(At(c, matrix, i, j));
        result.real[At(c, matrix, i, j)] = SumOfProducts(
            e, sums, a.columns, [&](int64_t k) { return left[At(a, matrix, i, k)]; },
            [&](int64_t k) { return right[At(b, matrix, k, j)]; });
      }
    }
  }
  return result;
}

// The smallest and largest number of the row and of the column.
std::vector<double> ProductMadeOf(const Program& program, const Op& op, Arrays operands,
                                  const Array&, size_t element) {
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

// The operand of matmul as it is read.
Memory AsRead(Lowering& l, const Memory& operand) {
  const std::optional<CastRounding> rounding = l.attributes().rounding;
  if (!rounding) return operand;
  const bool is_nearest = rounding == CastRounding::kNearestEven;
  const std::string function =
      "round_f32_tf32" +
      (is_nearest ? "" : "_" + std::string(precision::CastRoundingName(*rounding)));
  const Memory rounded = l.Local(operand.carrier, operand.shape, "tf32");
  l.EachOf(operand.shape, [&](const Places& at) {
    l.Store(rounded, at, l.Call(function, operand.carrier, {l.Load(operand, at)}));
  });
  return rounded;
}

// Cells of a product that are added up side by side: each waits for its own additions alone, and
// neighbours share what they read.
constexpr int64_t kCellsAtOnce = 4;

Place Scaled(Place place, int64_t times) {
  place.base *= times;
  for (auto& [counter, stride] : place.counters) stride *= times;
  return place;
}

void LowerOrderedMatmul(Lowering& l, const Memory& to, const Memory& a, const Memory& b) {
  l.EachOf(to.shape, [&](const Places& at) {
    LoweredChain chain(l, FormatOf(l));
    const Memory line = l.Local(chain.carrier(), {a.shape[2]}, "products");
    l.Each(a.shape[2], false, [&](Number counter) {
      const Place k = Place::Of(counter);
      const Number x = l.Load(a, {at[0], at[1], k});
      l.Store(line, {k}, chain.Product(x, l.Load(b, {at[0], k, at[2]})));
    });
    l.Store(to, at, l.Sum(line, l.attributes().accumulator));
  });
}

void LowerMatmul(Lowering& l) {
  const auto to = AsMatrices(l, l.Result());
  const auto a = AsRead(l, AsMatrices(l, l.Operand(0)));
  const auto b = AsRead(l, AsMatrices(l, l.Operand(1)));
  if (l.attributes().ordered) return LowerOrderedMatmul(l, to, a, b);
  const int64_t length = a.shape[2];
  const size_t axis = to.shape[2] < kCellsAtOnce ? 1 : 2;  // along which cells of a turn adjoin
  // The cells [first, first + count) on the axis.
  const auto add_up = [&](const Places& at, const Place& first, int64_t count) {
    std::vector<LoweredChain> chains(static_cast<size_t>(count), LoweredChain(l, FormatOf(l)));
    std::vector<Places> cells(chains.size(), at);
    for (size_t c = 0; c < chains.size(); ++c) {
      cells[c][axis] = first + Place(static_cast<int64_t>(c));
      chains[c].Begin();
      chains[c].StartAtZero();
    }
    const auto add = [&](const Place& k) {
      const auto of_a = [&](const Places& cell) { return l.Load(a, {cell[0], cell[1], k}); };
      const auto of_b = [&](const Places& cell) { return l.Load(b, {cell[0], k, cell[2]}); };
      const Number common = axis == 2 ? of_a(at) : of_b(at);
      for (size_t c = 0; c < chains.size(); ++c) {
        axis == 2 ? chains[c].Add(common, of_b(cells[c])) : chains[c].Add(of_a(cells[c]), common);
      }
    };
    if (length == 1) {
      add({});  // no loop, so that nests behind it may join this one
    } else {
      l.Each(length, false, [&](Number counter) { add(Place::Of(counter)); });
    }
    for (size_t c = 0; c < chains.size(); ++c) l.Store(to, cells[c], chains[c].Total());
  };
  const int64_t cells = to.shape[axis];
  const int64_t at_once = length == 1 ? 1 : std::clamp<int64_t>(cells, 1, kCellsAtOnce);
  const int64_t rest = cells % at_once;
  Shape turns = to.shape;
  turns[axis] = cells / at_once;
  l.EachOf(turns, [&](const Places& at) { add_up(at, Scaled(at[axis], at_once), at_once); });
  if (rest == 0) return;
  turns[axis] = 1;
  l.EachOf(turns, [&](const Places& at) { add_up(at, Place(cells - rest), rest); });
}

// g b^T and a^T g. A row of a has a cotangent where a row of g has one, a column of b where a column of
// g has one; the others count as +0, unless they are inputs or literals.
void MatmulVjp(VjpRule& r) {
  const int64_t rank = static_cast<int64_t>(r.type().shape.size());
  if (!r.Wants(0) && !r.Wants(1)) return;
  const ValueId g = r.Filled();
  const auto mask_of = [&](size_t side) {
    return JoinedAlong(r, side == 1 ? rank - 2 : rank - 1, r.OperandType(side).shape);
  };
  for (const size_t side : {1, 0}) {
    if (!r.Wants(side)) continue;
    const size_t other = 1 - side;
    const Shape own = r.OperandType(side).shape;
    const Shape read = r.OperandType(other).shape;
    const bool may_be_infinite = r.mask().presence == Presence::kMasked && !r.IsGiven(other);
    ValueId x = r.X(other);
    if (may_be_infinite) x = Within(r, mask_of(other), x, read);
    const Mask mask = mask_of(side);
    Under u(r, mask);
    const ValueId flipped = u.Transposed(x, read);
    r.To(side, {side == 1 ? u.Matmul(flipped, g, own) : u.Matmul(g, flipped, own), mask});
  }
}

Types NormTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsElement(program, op, 0, ElementType::kReal); !s.ok()) return s;
  if (absl::Status s = CheckAxes(program, op); !s.ok()) return s;
  return std::vector<Type>{{ElementType::kReal, KeptShape(program, op)}};
}

Array EvaluateNorm(const Evaluation& e) {
  const Format format = *e.result().format;
  Array result = ZerosOf(e.result().type);
  LineSum sums(e);
  for (size_t k = 0; k < result.real.size(); ++k) {
    std::vector<double> squares;
    double largest = 0.0;
    e.Begin(k);
    for (size_t i : ReducedElements(e.program, e.op, k, &e.meter)) {
      squares.push_back(e.operands[0]->real[i]);
      largest = precision::Max(largest, std::abs(squares.back()));
    }
    for (double& x : squares) {
      e.meter.Add(kElementWork);
      const double scaled = precision::ScaleDown(x, largest);
      const double rounded = precision::RoundTo(format, scaled);
      x = precision::Mul(format, rounded, rounded);
      if (e.arithmetic == nullptr) continue;
      e.arithmetic->Rounded(format, scaled, rounded);
      e.arithmetic->Multiplied(format, rounded, rounded, x);
    }
    const double root = precision::Sqrt(format, sums.Of(squares));
    const bool scales = std::isfinite(largest) && largest != 0.0;
    result.real[k] = scales ? precision::RoundTo(format, precision::ScaleUp(root, largest))
                            : precision::Canonical(largest);
  }
  return result;
}

std::vector<double> NormMadeOf(const Program& program, const Op& op, Arrays operands, const Array&,
                               size_t element) {
  std::vector<double> found;
  AppendRange(*operands[0], ReducedElements(program, op, element), found);
  return found;
}

void LowerNorm(Lowering& l) {
  const auto to = l.Result();
  const auto from = l.Operand(0);
  const Value& value = l.ResultValue();
  const int64_t length = LengthOfLine(l.op(), from.shape);
  const auto call = [&](const char* name, std::vector<Number> operands) {
    return l.Call(FunctionOn(name, value), to.carrier, std::move(operands));
  };
  l.EachOf(KeptShape(l.program(), l.op()), [&](const Places& outer) {
    // Calls with each number of the line and its place there.
    const auto each = [&](const std::function<void(Number x, const Place& place)>& body) {
      EachOfLine(l, from.shape, outer, false,
                 [&](const Places& at, const Place& place) { body(l.Load(from, at), place); });
    };
    const Memory largest = l.Local(to.carrier, {}, "largest");
    l.Store(largest, l.Integer(to.carrier, 0));
    each([&](Number x, const Place&) {
      l.Store(largest, call("max", {l.Load(largest), call("abs", {x})}));
    });
    const Number scale = l.Load(largest);
    const Memory line = l.Local(to.carrier, {length}, "squares");
    each([&](Number x, const Place& place) {
      const Number scaled = call("scale_down", {x, scale});
      l.Store(line, {place}, call("mul", {scaled, scaled}));
    });
    const Number root = call("sqrt", {l.Sum(line, FormatOf(l))});
    const Number norm = call("scale_up", {root, scale});
    const Number zero = l.Integer(to.carrier, 0);
    const Number positive = l.Call(FunctionOn("gt", value), Carrier::kBool, {scale, zero});
    const Number finite = l.Call("is_finite_" + l.NameOf(to.carrier), Carrier::kBool, {scale});
    const Number scales = l.Call("and_bool", Carrier::kBool, {positive, finite});
    const Number itself = l.Call("canonical_" + l.NameOf(to.carrier), to.carrier, {scale});
    l.Store(to, outer, l.Select(scales, norm, itself, to.carrier));
  });
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

bool HasElements(const Carriage& c) {
  return ElementCount(c.program[c.op.results[0]].type.shape) > 0;
}

}  // namespace

const OpInfo kMatmul = Complete({
    .name = "matmul",
    .doc = "The product of matrices [..., m, k] and [..., k, n], with the same axes in front: "
           "each number one chain of fma over k in the accumulator of the role, or its products "
           "in another order where the policy says so.",
    .op_class = OpClass::kLinear,
    .operands = "a, b",
    .attributes = {Attribute::kInputs, Attribute::kProducts, Attribute::kAccumulator},
    .types = MatmulTypes,
    .work =
        [](const Program& program, const Op& op) {
          return ElementCount(program[op.results[0]].type.shape) *
                 MatricesOf(TypeOf(program, op, 0).shape).columns;
        },
    .birth = Birth::kAccumulation,
    .carries = HasElements,
    .made_of = ProductMadeOf,
    .vjp = MatmulVjp,
    .evaluate = EvaluateMatmul,
    .lower = LowerMatmul,
});

const OpInfo kNorm2 = Complete({
    .name = "norm2",
    .doc = "The Euclidean norm over `axes`, ascending; those axes go. Numbers are scaled by the "
           "power of two of the largest, squared, and added in the order and accumulator of the "
           "role.",
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

}  // namespace simgrad::sim::op
