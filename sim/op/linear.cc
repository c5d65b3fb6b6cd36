#include "sim/op/linear.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {

Matrices MatricesOf(const Shape& shape) {
  const size_t rank = shape.size();
  return {ElementCount(Shape(shape.begin(), shape.end() - 2)), shape[rank - 2], shape[rank - 1]};
}

Matrices MatricesOf(const Evaluation& e, size_t operand) {
  return MatricesOf(TypeOf(e.program, e.op, operand).shape);
}

size_t At(const Matrices& m, int64_t matrix, int64_t row, int64_t column) {
  return static_cast<size_t>((matrix * m.rows + row) * m.columns + column);
}

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

absl::Status Meets(const Program& program, const Op& op, size_t a, size_t b) {
  const Shape& x = TypeOf(program, op, a).shape;
  const Shape& y = TypeOf(program, op, b).shape;
  const bool same = x.size() == y.size() && std::equal(x.begin(), x.end() - 2, y.begin());
  if (same && x[x.size() - 1] == y[y.size() - 2]) return absl::OkStatus();
  return FieldError(absl::StrCat("operands[", b, "]"),
                    absl::StrCat(TypeText(TypeOf(program, op, a)), " and ",
                                 TypeText(TypeOf(program, op, b)), " do not meet"));
}

int64_t WorkPerRow(const Program& program, const Op& op, size_t elements, size_t rows) {
  return ElementCount(TypeOf(program, op, elements).shape) *
         MatricesOf(TypeOf(program, op, rows).shape).columns;
}

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

int64_t LengthOfLine(const Op& op, const Shape& shape) {
  int64_t length = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    length *= IsReduced(op, axis) ? shape[axis] : 1;
  return length;
}

void EachOfLine(Lowering& l, const Shape& shape, const Places& outer, bool parallel,
                const std::function<void(const Places& at, const Place& number)>& body) {
  Shape reduced;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (IsReduced(l.op(), axis)) reduced.push_back(shape[axis]);
  }
  const std::vector<int64_t> strides = StridesOf(reduced);
  Places at(shape.size());
  // k axes that are left and r that go lie in front of `axis`.
  const std::function<void(size_t, size_t, size_t, const Place&)> nest =
      [&](size_t axis, size_t k, size_t r, const Place& number) {
        if (axis == shape.size()) return body(at, number);
        if (!IsReduced(l.op(), axis)) {
          at[axis] = outer[k];
          return nest(axis + 1, k + 1, r, number);
        }
        l.Each(shape[axis], parallel, [&](Number counter) {
          at[axis] = Place::Of(counter);
          nest(axis + 1, k, r + 1, number + Place::Of(counter, strides[r]));
        });
      };
  nest(0, 0, 0, {});
}

LoweredChain::LoweredChain(Lowering& l, Format from)
    : l_(l),
      from_(from),
      accumulator_(l.attributes().accumulator),
      name_(precision::FormatName(accumulator_)),
      carrier_(accumulator_ == Format::kF64 ? Carrier::kF64 : Carrier::kF32),
      operand_(from == Format::kF64 ? Carrier::kF64 : Carrier::kF32) {}

void LoweredChain::Subtract(Number a, Number b) {
  Link(l_.Call("neg_" + name_, carrier_, {Bring(a)}), Bring(b));
}

Number LoweredChain::Product(Number a, Number b) {
  const Number x = Bring(a);
  return l_.Call("mul_" + name_, carrier_, {x, Bring(b)});
}

Number LoweredChain::Total() {
  const Number sum = l_.Load(sum_);
  if (accumulator_ == from_) return sum;
  return l_.Call("round_" + l_.NameOf(carrier_) + "_" + std::string(precision::FormatName(from_)),
                 operand_, {sum});
}

Number LoweredChain::Bring(Number x) {
  if (accumulator_ == from_) return x;
  if (precision::Narrows(from_, accumulator_)) {
    return l_.Call("round_" + l_.NameOf(operand_) + "_" + name_, carrier_, {x});
  }
  return carrier_ == operand_ ? x : l_.Call("widen_f32", carrier_, {x});
}

void LoweredChain::Link(Number a, Number b) {
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

Memory AsMatrices(Lowering& l, const Memory& memory) {
  const Matrices m = MatricesOf(memory.shape);
  return l.Split(memory, {m.count, m.rows, m.columns});
}

Number Minus(Lowering& l, int64_t n, Number counter) {
  return l.Call("sub_i64", Carrier::kI64, {l.Integer(Carrier::kI64, n), counter});
}

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

namespace {

// Any of the result's mask over `axes`, for all elements of `shape` along these axes.
Mask JoinedOver(VjpRule& r, const std::vector<int64_t>& axes, const Shape& shape) {
  const Shape& all = r.type().shape;
  Shape reduced;
  std::vector<int64_t> kept;
  for (int64_t axis = 0; axis < static_cast<int64_t>(all.size()); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    kept.push_back(axis);
    reduced.push_back(all[static_cast<size_t>(axis)]);
  }
  const Mask any = r.MapMask(reduced, [&] { return AxesOp(OpCode::kAny, axes); });
  if (any.presence != Presence::kMasked) return any;
  Op wide = ShapeOp(OpCode::kBroadcast, shape);
  wide.operands = {any.value};
  wide.attributes.dims = kept;
  return Mask::At(r.EmitMask(std::move(wide), shape));
}

}  // namespace

Mask Joined(VjpRule& r, const Shape& shape) {
  const int64_t rank = static_cast<int64_t>(r.type().shape.size());
  return JoinedOver(r, {rank - 2, rank - 1}, shape);
}

Mask JoinedAlong(VjpRule& r, int64_t axis, const Shape& shape) {
  return JoinedOver(r, {axis}, shape);
}

ValueId Within(VjpRule& r, const Mask& mask, ValueId x, const Shape& shape) {
  if (mask.presence != Presence::kMasked) return x;
  const Type type{ElementType::kReal, shape};
  const ValueId zero = r.Splat(0.0, type);
  return r.EmitUnder({}, {.code = OpCode::kSelect, .operands = {mask.value, x, zero}}, type);
}

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

}  // namespace simgrad::sim::op
