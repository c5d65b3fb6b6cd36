// Numbers as an 8-bit format keeps them under a scale; docs/numerics.md section 11.
#include "precision/quantize.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "precision/arithmetic.h"
#include "precision/rounding.h"
#include "sim/op/linear.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

constexpr size_t kScale = 1;  // the operand

bool HasScale(const Op& op) { return op.operands.size() > kScale; }

Types QuantizeTypes(const Program& program, const Op& op) {
  if (absl::Status s = NeedsElement(program, op, 0, ElementType::kReal); !s.ok()) return s;
  const std::optional<Format> to = op.attributes.format;
  if (to != Format::kE4m3 && to != Format::kE5m2) {
    return FieldError("format", absl::StrCat(NameOf(op), " rounds to e4m3 or e5m2, not ",
                                             to ? precision::Traits(*to).name : "to no format"));
  }
  if (absl::Status s = CheckAxes(program, op); !s.ok()) return s;
  const Type scale{ElementType::kReal, KeptShape(program, op)};
  if (HasScale(op) && TypeOf(program, op, kScale) != scale) {
    return FieldError(
        "operands[1]",
        absl::StrCat("the scale, one number for the elements along `axes`, is ", TypeText(scale),
                     ", not ", TypeText(TypeOf(program, op, kScale))));
  }
  return SameAsOperand(program, op);
}

Types KeptTypes(const Program& program, const Op& op) {
  Types types = QuantizeTypes(program, op);
  if (types.ok()) types->front().element = ElementType::kBool;
  return types;
}

// A scale that is no positive finite number is 1.
double Usable(double scale) { return std::isfinite(scale) && scale > 0.0 ? scale : 1.0; }

Array EvaluateQuantize(const Evaluation& e) {
  const Format to = *e.op.attributes.format;
  const Format format = *e.result().format;
  const std::vector<double>& x = e.operands[0]->real;
  Array result = ZerosOf(e.result().type);
  const int64_t lines = ElementCount(KeptShape(e.program, e.op));
  for (int64_t line = 0; line < lines; ++line) {
    const auto elements = ReducedElements(e.program, e.op, static_cast<size_t>(line), &e.meter);
    double amax = 0.0;
    for (size_t i : elements) {
      e.meter.Add(2 * kElementWork);
      if (std::isfinite(x[i])) amax = std::max(amax, std::abs(x[i]));
    }
    for (size_t i : elements) {
      if (!HasScale(e.op)) {
        result.real[i] =
            precision::RoundTo(format, precision::Quantized(to, x[i], amax), Overflow::kSaturate);
        continue;
      }
      const double scale = Usable(e.operands[kScale]->real[static_cast<size_t>(line)]);
      const double divided = precision::RoundTo(format, x[i] / scale, Overflow::kSaturate);
      const double kept = precision::RoundTo(to, divided, Overflow::kSaturate);
      result.real[i] = precision::RoundTo(format, kept * scale, Overflow::kSaturate);
    }
  }
  return result;
}

Array EvaluateKept(const Evaluation& e) {
  const Format format = *e.program[e.op.operands[0]].format;
  const std::vector<double>& x = e.operands[0]->real;
  Array result = ZerosOf(e.result().type);
  for (size_t line = 0; line < e.operands[kScale]->real.size(); ++line) {
    const double scale = Usable(e.operands[kScale]->real[line]);
    for (size_t i : ReducedElements(e.program, e.op, line, &e.meter)) {
      e.meter.Add(kElementWork);
      const double divided = precision::RoundTo(format, x[i] / scale);
      const bool fits = std::isfinite(precision::RoundTo(*e.op.attributes.format, divided));
      result.integer[i] = fits || x[i] != x[i] ? 1 : 0;
    }
  }
  return result;
}

// Functions of the scalars of one operand's format.
class Scalars {
 public:
  explicit Scalars(Lowering& l)
      : l_(l),
        carrier_(l.Operand(0).carrier),
        format_(precision::FormatName(*l.OperandValue(0).format)),
        to_(precision::FormatName(*l.attributes().format)) {}

  Number Like(const char* name, std::vector<Number> operands) {
    return l_.Call(Named(name), carrier_, std::move(operands));
  }
  Number Asks(const char* name, std::vector<Number> operands) {
    return l_.Call(Named(name), Carrier::kBool, std::move(operands));
  }
  Number Whole(int64_t number) { return l_.Integer(carrier_, number); }
  Number Widened(Number x) {
    return carrier_ == Carrier::kF64 ? x : l_.Call("widen_f32", Carrier::kF64, {x});
  }
  Number Wide(const char* name, std::vector<Number> operands) {
    return l_.Call(name, Carrier::kF64, std::move(operands));
  }
  Number Quantized(Number x, Number amax) { return Wide(("quantized_" + to_).c_str(), {x, amax}); }
  // A number of carrier f64 in the operand's format; "_saturate" or "".
  Number Rounded(Number x, const std::string& mode) {
    return l_.Call("round_f64_" + format_ + mode, carrier_, {x});
  }
  // A number of the operand's format in the small one.
  Number Small(Number x, const std::string& mode) {
    return l_.Call("round_" + l_.NameOf(carrier_) + "_" + to_ + mode, Carrier::kF32, {x});
  }
  Number SmallIsFinite(Number x) { return l_.Call("is_finite_" + to_, Carrier::kBool, {x}); }
  Number Choose(Number condition, Number a, Number b) {
    return l_.Select(condition, a, b, carrier_);
  }
  Number Usable(Number scale) {
    const Number positive = Asks("gt", {scale, Whole(0)});
    const Number finite = Asks("is_finite", {scale});
    return Choose(l_.Call("and_bool", Carrier::kBool, {positive, finite}), scale, Whole(1));
  }
  Carrier carrier() const { return carrier_; }

 private:
  std::string Named(const char* name) const { return std::string(name) + "_" + format_; }

  Lowering& l_;
  const Carrier carrier_;
  const std::string format_;
  const std::string to_;
};

void LowerQuantize(Lowering& l) {
  const Memory to = l.Result();
  const Memory from = l.Operand(0);
  const Memory scales = HasScale(l.op()) ? l.Operand(kScale) : Memory{};
  Scalars s(l);
  l.EachOf(KeptShape(l.program(), l.op()), [&](const Places& line) {
    if (HasScale(l.op())) {
      const Number scale = s.Widened(s.Usable(l.Load(scales, line)));
      EachOfLine(l, from.shape, line, true, [&](const Places& at, const Place&) {
        const Number x = s.Widened(l.Load(from, at));
        const Number divided = s.Rounded(s.Wide("div_f64", {x, scale}), "_saturate");
        const Number kept = l.Call("widen_f32", Carrier::kF64, {s.Small(divided, "_saturate")});
        l.Store(to, at, s.Rounded(s.Wide("mul_f64", {kept, scale}), "_saturate"));
      });
      return;
    }
    const Memory largest = l.Local(s.carrier(), {}, "amax");
    l.Store(largest, s.Whole(0));
    EachOfLine(l, from.shape, line, false, [&](const Places& at, const Place&) {
      const Number x = l.Load(from, at);
      const Number magnitude = s.Choose(s.Asks("is_finite", {x}), s.Like("abs", {x}), s.Whole(0));
      l.Store(largest, s.Like("max", {l.Load(largest), magnitude}));
    });
    const Number amax = s.Widened(l.Load(largest));
    EachOfLine(l, from.shape, line, true, [&](const Places& at, const Place&) {
      const Number x = s.Widened(l.Load(from, at));
      l.Store(to, at, s.Rounded(s.Quantized(x, amax), "_saturate"));
    });
  });
}

void LowerKept(Lowering& l) {
  const Memory to = l.Result();
  const Memory from = l.Operand(0);
  const Memory scales = l.Operand(kScale);
  Scalars s(l);
  l.EachOf(KeptShape(l.program(), l.op()), [&](const Places& line) {
    const Number scale = s.Widened(s.Usable(l.Load(scales, line)));
    EachOfLine(l, from.shape, line, true, [&](const Places& at, const Place&) {
      const Number x = l.Load(from, at);
      const Number divided = s.Rounded(s.Wide("div_f64", {s.Widened(x), scale}), "");
      const Number fits = s.SmallIsFinite(s.Small(divided, ""));
      const Number is_number = s.Asks("eq", {x, x});
      const Number is_nan = l.Call("not_bool", Carrier::kBool, {is_number});
      l.Store(to, at, l.Call("or_bool", Carrier::kBool, {fits, is_nan}));
    });
  });
}

// g, where nothing was clamped; by its own scale no finite number is.
void QuantizeVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  if (!HasScale(r.op())) return r.To(0, r.g());
  Op kink = AxesOp(OpCode::kFakeQuantizeKept, r.op().attributes.axes);
  kink.attributes.format = r.op().attributes.format;
  const ValueId kept = r.Kink(std::move(kink), {ElementType::kBool, r.type().shape});
  r.To(0, {r.g(), r.And(kept)});
}

Passage QuantizePassage(const Program&, const Op& op, size_t operand) {
  if (operand == kScale) return Passage::kNone;
  return HasScale(op) ? Passage::kMasked : Passage::kSame;
}

int64_t TwoPerElement(const Program& program, const Op& op) {
  return 2 * ElementCount(TypeOf(program, op, 0).shape);
}

}  // namespace

const OpInfo kFakeQuantize = Complete({
    .name = "fake_quantize",
    .doc = "The rest of a in `format`, e4m3 or e5m2, under a scale: a divided by it, rounded, "
           "saturating, times the scale. The elements along `axes` share a scale: the smallest "
           "power of two that brings their largest finite magnitude within the format, 1 where "
           "that is 0, or `scale`. The cotangent passes where nothing was clamped; the scale has "
           "none.",
    .op_class = OpClass::kPrecision,
    .operands = "a, scale?",
    .attributes = {Attribute::kAxes, Attribute::kTarget},
    .types = QuantizeTypes,
    .work = TwoPerElement,
    .passage = QuantizePassage,
    .vjp = QuantizeVjp,
    .smooth = false,
    .evaluate = EvaluateQuantize,
    .lower = LowerQuantize,
});

const OpInfo kFakeQuantizeKept = Complete({
    .name = "fake_quantize_kept",
    .doc = "Where `fake_quantize` by a given scale clamps nothing.",
    .op_class = OpClass::kPrecision,
    .operands = "a, scale",
    .attributes = {Attribute::kAxes, Attribute::kTarget},
    .in_worlds = false,
    .result = Result::kBool,
    .types = KeptTypes,
    .smooth = false,
    .evaluate = EvaluateKept,
    .lower = LowerKept,
});

}  // namespace simgrad::sim::op
