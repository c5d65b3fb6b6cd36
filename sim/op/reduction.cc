// Reductions over axes of one value, in row-major order of the elements.
#include "precision/reduction.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "precision/arithmetic.h"
#include "precision/selection.h"
#include "sim/op/evaluate.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"
#include "sim/program/permutation.h"

namespace simgrad::sim {
std::vector<size_t> ReducedElements(const Program& program, const Op& op, size_t result,
                                    WorkMeter* meter) {
  const Shape& shape = program[op.operands[0]].type.shape;
  const std::vector<int64_t> strides = StridesOf(shape);
  const bool cumulative = op.code == OpCode::kCumsum;
  const bool keeps_axes = cumulative || op.code == OpCode::kExclusiveProd;
  // Unflatten `result` over the axes that the result keeps.
  int64_t rest = static_cast<int64_t>(result);
  int64_t base = 0;
  int64_t own = 0;  // cumsum: position on its axis
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (!keeps_axes && IsReduced(op, axis)) continue;
    const int64_t at = rest % shape[axis];
    rest /= shape[axis];
    if (IsReduced(op, axis)) {
      own = at;  // of a cumulative sum
    } else {
      base += at * strides[axis];
    }
  }
  std::vector<size_t> elements = {static_cast<size_t>(base)};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (!IsReduced(op, axis)) continue;
    std::vector<size_t> wider;
    for (size_t element : elements) {
      if (meter != nullptr) meter->Add(shape[axis]);
      for (int64_t at = 0; at < shape[axis]; ++at) {
        wider.push_back(element + static_cast<size_t>(at * strides[axis]));
      }
    }
    elements = std::move(wider);
  }
  if (cumulative) {
    if (op.attributes.reverse) {
      std::reverse(elements.begin(), elements.end());
      own = static_cast<int64_t>(elements.size()) - 1 - own;
    }
    elements.resize(static_cast<size_t>(own) + 1);
  }
  return elements;
}

namespace {

// Counts the additions of a sum in an order. Of a compensated sum those are absorbed that leave its
// correction as it was, too; an exact one loses none.
void CountAdditions(Order order, Format accumulator, const std::vector<double>& x,
                    ArithmeticCounter& counter) {
  const auto add = [&](double a, double b) {
    const double sum = precision::Add(accumulator, a, b);
    counter.Added(a, b, sum);
    counter.Rounded(accumulator, a + b, sum);
    return sum;
  };
  const auto silently = [&](double a, double b) { return precision::Add(accumulator, a, b); };
  double total = 0.0;
  switch (order) {
    case Order::kShuffled:
    case Order::kSequential:
      for (double each : x) total = add(total, each);
      break;
    case Order::kReversed:
      for (size_t i = x.size(); i-- > 0;) total = add(total, x[i]);
      break;
    case Order::kPairwise: {
      precision::PairwiseCounter<double> tree;
      for (double each : x) tree.Push(each, add);
      if (!x.empty()) tree.Total(add);
      break;
    }
    case Order::kCompensated: {
      precision::CompensatedSum<double> sum;
      for (double each : x) {
        const precision::CompensatedSum<double> before = sum;
        sum.Push(each, silently);
        const bool corrects = sum.correction != before.correction;
        counter.Added(before.sum, each,
                      corrects ? std::numeric_limits<double>::quiet_NaN() : sum.sum);
        counter.Rounded(accumulator, before.sum + each, sum.sum);
      }
      break;
    }
    case Order::kExact:
      break;
  }
}

}  // namespace

double LineSum::Of(const std::vector<double>& line) {
  const int64_t n = static_cast<int64_t>(line.size());
  std::vector<double> shuffled;
  if (order_.kind == Order::kShuffled) {
    if (permutation_.size() != line.size()) {
      e_.meter.Add(n * kElementWork);
      permutation_ = PermutationOf(PermutationKeyOf(e_.op, n));
    }
    for (int64_t i : permutation_) shuffled.push_back(line[static_cast<size_t>(i)]);
  }
  const std::vector<double>& x = order_.kind == Order::kShuffled ? shuffled : line;
  const Format accumulator = e_.op.attributes.accumulator;
  const Format format = *e_.result().format;
  const double sum = precision::Sum(order_.kind, accumulator, format, x.data(), n);
  if (e_.arithmetic != nullptr) {
    e_.meter.Add(n * kElementWork);
    CountAdditions(order_.kind, accumulator, x, *e_.arithmetic);
    const Format sums_in = order_.kind == Order::kExact ? Format::kF64 : accumulator;
    const double before = precision::Sum(order_.kind, sums_in, sums_in, x.data(), n);
    e_.arithmetic->Rounded(format, before, sum);
  }
  return sum;
}

namespace op {
namespace {

// ---- Types ----

// Reals or integers.
absl::Status CheckNumbers(const Program& program, const Op& op) {
  if (absl::Status status = CheckAxes(program, op); !status.ok()) return status;
  const Type& type = TypeOf(program, op, 0);
  return type.element == ElementType::kBool ? NotDefinedOn(op, type) : absl::OkStatus();
}

Types BoolTypes(const Program& program, const Op& op) {
  if (absl::Status status = CheckAxes(program, op); !status.ok()) return status;
  if (absl::Status status = NeedsElement(program, op, 0, ElementType::kBool); !status.ok()) {
    return status;
  }
  return std::vector<Type>{{ElementType::kBool, KeptShape(program, op)}};
}

Types NumberTypes(const Program& program, const Op& op) {
  if (absl::Status status = CheckNumbers(program, op); !status.ok()) return status;
  return std::vector<Type>{{TypeOf(program, op, 0).element, KeptShape(program, op)}};
}

Types ExclusiveTypes(const Program& program, const Op& op) {
  if (absl::Status status = CheckNumbers(program, op); !status.ok()) return status;
  return SameAsOperand(program, op);
}

Types CumsumTypes(const Program& program, const Op& op) {
  if (absl::Status status = CheckNumbers(program, op); !status.ok()) return status;
  if (op.attributes.axes.size() != 1) return FieldError("axes", "cumsum takes one axis");
  return SameAsOperand(program, op);
}

template <bool kIsIndex>
Types ExtremeTypes(const Program& program, const Op& op) {
  if (absl::Status status = CheckNumbers(program, op); !status.ok()) return status;
  const auto& axes = op.attributes.axes;
  if (axes.size() != 1) return FieldError("axes", NameOf(op) + " takes one axis");
  if (TypeOf(program, op, 0).shape[static_cast<size_t>(axes[0])] == 0) {
    return FieldError("axes", NameOf(op) + " of no elements is not defined");
  }
  const ElementType element = TypeOf(program, op, 0).element;
  return std::vector<Type>{{kIsIndex ? ElementType::kI32 : element, KeptShape(program, op)}};
}

// ---- Evaluation ----

template <class Number, class F>
void ReduceNumbers(const Evaluation& e, const std::vector<Number>& operand, Array& result,
                   const F& f) {
  std::vector<Number> x;
  for (size_t k = 0; k < SizeOf(result); ++k) {
    x.clear();
    e.Begin(k);
    for (size_t i : ReducedElements(e.program, e.op, k, &e.meter)) {
      e.meter.Add(kElementWork);
      x.push_back(operand[i]);
    }
    if (result.real.empty()) {
      result.integer[k] = WrapTo(e.result().type.element, static_cast<int64_t>(f(x)));
    } else {
      result.real[k] = static_cast<double>(f(x));
    }
  }
}

// Each element of the result from the elements of the operand that it reads, a vector of doubles or
// of integers.
template <class F>
Array Reduce(const Evaluation& e, const F& f) {
  Array result = ZerosOf(e.result().type);
  if (e.program.IsReal(e.op.operands[0])) {
    ReduceNumbers(e, e.operands[0]->real, result, f);
  } else {
    ReduceNumbers(e, e.operands[0]->integer, result, f);
  }
  return result;
}

// Integers wrap.
int64_t SumOf(LineSum&, const std::vector<int64_t>& x) {
  uint64_t sum = 0;
  for (int64_t each : x) sum += static_cast<uint64_t>(each);
  return static_cast<int64_t>(sum);
}

double SumOf(LineSum& sum, const std::vector<double>& x) { return sum.Of(x); }

Array EvaluateSum(const Evaluation& e) {
  LineSum sum(e);
  return Reduce(e, [&](const auto& x) { return SumOf(sum, x); });
}

// Calls f(elements) for each line of the reduced axes, in the order of the operation.
template <class F>
void EachLine(const Evaluation& e, const F& f) {
  Op line = e.op;
  line.code = OpCode::kProd;
  const size_t all = SizeOf(*e.operands[0]);
  if (all == 0) return;
  const size_t count = ReducedElements(e.program, line, 0, &e.meter).size();
  for (size_t k = 0; k * count < all; ++k) {
    std::vector<size_t> elements = ReducedElements(e.program, line, k, &e.meter);
    if (e.op.attributes.reverse) std::reverse(elements.begin(), elements.end());
    f(elements);
  }
}

// Counts the additions of a line once, by its last element.
void CountCumulative(const Evaluation& e, const std::vector<size_t>& elements, double total) {
  std::vector<double> line;
  for (size_t i : elements) {
    e.meter.Add(kElementWork);
    line.push_back(e.operands[0]->real[i]);
  }
  e.Begin(elements.back());
  CountAdditions(Order::kSequential, e.op.attributes.accumulator, line, *e.arithmetic);
  e.arithmetic->Rounded(*e.result().format, total, precision::RoundTo(*e.result().format, total));
}

// Element by element of a line: the sum so far, rounded to the format of the result.
Array CumulativeSums(const Evaluation& e) {
  const Array& x = *e.operands[0];
  const Value& value = e.result();
  Array result = ZerosOf(value.type);
  EachLine(e, [&](const std::vector<size_t>& elements) {
    double total = 0.0;
    uint64_t of_integers = 0;
    for (size_t i : elements) {
      e.meter.Add(kElementWork);
      if (result.real.empty()) {
        of_integers += static_cast<uint64_t>(x.integer[i]);
        result.integer[i] = WrapTo(value.type.element, static_cast<int64_t>(of_integers));
      } else {
        total = precision::Add(e.op.attributes.accumulator, total, x.real[i]);
        result.real[i] = precision::RoundTo(*value.format, total);
      }
    }
    if (e.arithmetic != nullptr) CountCumulative(e, elements, total);
  });
  return result;
}

int64_t ProductOf(const Evaluation&, const std::vector<int64_t>& x) {
  uint64_t product = 1;
  for (int64_t each : x) product *= static_cast<uint64_t>(each);
  return static_cast<int64_t>(product);
}

// Ascending, rounded after each factor.
double ProductOf(const Evaluation& e, const std::vector<double>& x) {
  double product = 1.0;
  const Format format = *e.result().format;
  for (double each : x) {
    const double next = precision::Mul(format, product, each);
    if (e.arithmetic != nullptr) e.arithmetic->Multiplied(format, product, each, next);
    product = next;
  }
  return product;
}

// For each element the product of those before it, or behind it, in its line of the reduced axes
// in row-major order.
Array ExclusiveProducts(const Evaluation& e) {
  const std::vector<double>& x = e.operands[0]->real;
  const Format format = *e.result().format;
  Array result = ZerosOf(e.result().type);
  EachLine(e, [&](const std::vector<size_t>& elements) {
    double product = 1.0;
    for (size_t i : elements) {
      e.meter.Add(kElementWork);
      result.real[i] = product;
      if (i == elements.back()) break;
      const double next = precision::Mul(format, product, x[i]);
      e.Begin(i);
      if (e.arithmetic != nullptr) e.arithmetic->Multiplied(format, product, x[i], next);
      product = next;
    }
  });
  return result;
}

template <bool kLargest>
double Further(double a, double b) {
  return precision::Canonical(kLargest ? precision::Max(a, b) : precision::Min(a, b));
}
template <bool kLargest>
int64_t Further(int64_t a, int64_t b) {
  return kLargest ? std::max(a, b) : std::min(a, b);
}

template <bool kLargest>
Array ReduceToExtreme(const Evaluation& e) {
  return Reduce(e, [](const auto& x) {
    auto extreme = x[0];
    for (size_t i = 0; i < x.size(); ++i) extreme = Further<kLargest>(extreme, x[i]);
    return extreme;
  });
}

// The first extreme; a NaN counts as the extreme, and the first NaN wins.
template <bool kLargest>
Array IndexOfExtreme(const Evaluation& e) {
  return Reduce(e, [](const auto& x) {
    size_t best = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] != x[i]) return i;
      if (kLargest ? x[i] > x[best] : x[i] < x[best]) best = i;
    }
    return best;
  });
}

// ---- Derivatives ----

// The reverse of a prefix sum is a suffix sum: g[i] + g[i + 1] + ... A whole line of cotangents is
// present where any of its elements is.
void CumsumVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Shape shape = r.type().shape;
  const auto from_the_other_end = [&](ValueId of) {
    Op sum = AxesOp(OpCode::kCumsum, r.op().attributes.axes);
    sum.attributes.reverse = !r.op().attributes.reverse;
    sum.operands = {of};
    return sum;
  };
  Mask mask = r.mask();
  if (mask.presence == Presence::kMasked) {
    // An element is in the prefixes from itself on: it is used where any of those is.
    const Type counts{ElementType::kI32, shape};
    const ValueId one = r.EmitPlain({.code = OpCode::kConvert, .operands = {mask.value}}, counts);
    const ValueId uses = r.EmitPlain(from_the_other_end(one), counts);
    const ValueId none = r.Splat(0.0, counts);
    mask = Mask::At(r.EmitMask({.code = OpCode::kNe, .operands = {uses, none}}, shape));
  }
  Op sum = from_the_other_end(r.Filled());
  const ValueId cotangent = r.EmitUnder(mask, std::move(sum), r.type());
  r.To(0, {cotangent, mask});
}

// The product of the factors before each, times that of the factors behind it: nothing is divided.
void ProductVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Type type = r.OperandType(0);
  const Mask mask = r.MapMask(type.shape, [&] { return r.Widen(); });
  const ValueId x = r.X(0);
  const auto products = [&](bool reverse) {
    Op op = AxesOp(OpCode::kExclusiveProd, r.op().attributes.axes);
    op.attributes.reverse = reverse;
    op.operands = {x};
    return r.EmitUnder(mask, std::move(op), type);
  };
  const ValueId before = products(false);
  const ValueId behind = products(true);
  const ValueId others =
      r.EmitUnder(mask, {.code = OpCode::kMul, .operands = {before, behind}}, type);
  Op spread = r.Widen();
  spread.operands = {r.g()};
  const ValueId wide = r.EmitUnder(mask, std::move(spread), type);
  r.To(0, {r.EmitUnder(mask, {.code = OpCode::kMul, .operands = {wide, others}}, type), mask});
}

// Number of each element along the reduced axis.
std::vector<double> Positions(const Op& op, const Shape& shape) {
  const int64_t count = ElementCount(shape);
  std::vector<double> positions(static_cast<size_t>(count));
  int64_t inner = 1;
  const size_t axis = static_cast<size_t>(op.attributes.axes[0]);
  for (size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
  for (int64_t i = 0; i < count; ++i) {
    positions[static_cast<size_t>(i)] = static_cast<double>((i / inner) % shape[axis]);
  }
  return positions;
}

// The cotangent goes to the first extreme.
template <OpCode kIndex>
void ExtremeVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Type type = r.OperandType(0);
  const Type integers{ElementType::kI32, type.shape};
  Op widen = r.Widen();
  widen.operands = {r.Kink(kIndex, {ElementType::kI32, r.type().shape}, r.op().attributes.axes)};
  const ValueId wide = r.EmitPlain(std::move(widen), integers);
  const ValueId positions = r.EmitPlain(
      {.code = OpCode::kLiteral, .attributes = {.literal = Positions(r.op(), type.shape)}},
      integers);
  const ValueId taken =
      r.EmitMask({.code = OpCode::kEq, .operands = {wide, positions}}, type.shape);
  const Mask mask = r.MapMask(type.shape, [&] { return r.Widen(); });
  const Mask where = r.And(mask, taken);
  Op spread = r.Widen();
  spread.operands = {r.g()};
  const ValueId cotangent = r.EmitUnder(where, std::move(spread), type);
  r.To(0, {cotangent, where});
}

template <bool kLargest>
consteval OpInfo ExtremeEntry(std::string_view name, std::string_view doc) {
  return Complete({.name = name,
                   .doc = doc,
                   .op_class = OpClass::kReduction,
                   .operands = "a",
                   .attributes = {Attribute::kAxes},
                   .types = ExtremeTypes<false>,
                   .passage = MaskedPassage,
                   .vjp = ExtremeVjp < kLargest ? OpCode::kArgmax : OpCode::kArgmin >,
                   .evaluate = ReduceToExtreme<kLargest>});
}

template <bool kLargest>
consteval OpInfo IndexEntry(std::string_view name, std::string_view doc) {
  return Complete({.name = name,
                   .doc = doc,
                   .op_class = OpClass::kReduction,
                   .operands = "a",
                   .attributes = {Attribute::kAxes},
                   .result = Result::kI32,
                   .types = ExtremeTypes<true>,
                   .chooses = Chooses::kPlaces,
                   .evaluate = IndexOfExtreme<kLargest>});
}

}  // namespace

const OpInfo kSum = Complete({
    .name = "sum",
    .doc = "The sum over `axes`, ascending; those axes go. Of reals, order and accumulator are "
           "the policy's for the role; integers wrap.",
    .op_class = OpClass::kReduction,
    .operands = "a",
    .attributes = {Attribute::kAxes, Attribute::kOrder, Attribute::kAccumulator},
    .types = NumberTypes,
    .birth = Birth::kAccumulation,
    .propagates = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.MapSlot(0, [&] { return r.Widen(); });
        },
    .evaluate = EvaluateSum,
});

const OpInfo kReduceMax = ExtremeEntry<true>(
    "reduce_max",
    "The largest element along the one axis of `axes`; NaN propagates; the cotangent goes to the "
    "first largest.");
const OpInfo kReduceMin = ExtremeEntry<false>(
    "reduce_min",
    "The smallest element along the one axis of `axes`; NaN propagates; the cotangent goes to the "
    "first smallest.");

const OpInfo kArgmax = IndexEntry<true>(
    "argmax",
    "The i32 index of the first largest element, or of the first NaN, along the one axis of "
    "`axes`.");
const OpInfo kArgmin = IndexEntry<false>(
    "argmin",
    "The i32 index of the first smallest element, or of the first NaN, along the one axis of "
    "`axes`.");

const OpInfo kCumsum = Complete({
    .name = "cumsum",
    .doc = "The running sum along the one axis of `axes`; with `reverse` from the last element "
           "down. Sequential; the accumulator is the policy's for the role.",
    .op_class = OpClass::kReduction,
    .operands = "a",
    .attributes = {Attribute::kAxes, Attribute::kReverse, Attribute::kAccumulator},
    .types = CumsumTypes,
    .birth = Birth::kAccumulation,
    .propagates = true,
    .vjp = CumsumVjp,
    .evaluate = CumulativeSums,
});

const OpInfo kAny = Complete({
    .name = "any",
    .doc = "Whether any of the bools over `axes` holds.",
    .op_class = OpClass::kReduction,
    .operands = "a",
    .attributes = {Attribute::kAxes},
    .result = Result::kBool,
    .types = BoolTypes,
    .evaluate =
        [](const Evaluation& e) {
          return Reduce(e, [](const auto& x) {
            return std::any_of(x.begin(), x.end(), [](auto b) { return b != 0; });
          });
        },
});

const OpInfo kAll = Complete({
    .name = "all",
    .doc = "Whether all of the bools over `axes` hold.",
    .op_class = OpClass::kReduction,
    .operands = "a",
    .attributes = {Attribute::kAxes},
    .result = Result::kBool,
    .types = BoolTypes,
    .evaluate =
        [](const Evaluation& e) {
          return Reduce(e, [](const auto& x) {
            return std::all_of(x.begin(), x.end(), [](auto b) { return b != 0; });
          });
        },
});

const OpInfo kProd = Complete({
    .name = "prod",
    .doc = "The product over `axes`, ascending, real, rounded after each factor, or integer; "
           "those axes go.",
    .op_class = OpClass::kReduction,
    .operands = "a",
    .attributes = {Attribute::kAxes},
    .types = NumberTypes,
    .birth = Birth::kAccumulation,
    .propagates = true,
    .vjp = ProductVjp,
    .domains = {Domain::kBounded},
    .evaluate =
        [](const Evaluation& e) {
          return Reduce(e, [&](const auto& x) { return ProductOf(e, x); });
        },
});

const OpInfo kExclusiveProd = Complete({
    .name = "exclusive_prod",
    .doc = "The products of the elements over `axes` before each; with `reverse` of those behind "
           "it, from the last down.",
    .op_class = OpClass::kReduction,
    .operands = "a",
    .attributes = {Attribute::kAxes, Attribute::kReverse},
    .in_worlds = false,
    .types = ExclusiveTypes,
    .birth = Birth::kAccumulation,
    .evaluate = ExclusiveProducts,
});

}  // namespace op
}  // namespace simgrad::sim
