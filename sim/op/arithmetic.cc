// Arithmetic, elementwise: rounded once on reals, two's complement on integers.
#include "precision/arithmetic.h"

#include "precision/next_after.h"
#include "precision/selection.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

using precision::Add;
using precision::Div;
using precision::Mod;
using precision::Mul;
using precision::Sub;

// Unsigned arithmetic wraps.
int64_t Signed(uint64_t n) { return static_cast<int64_t>(n); }
uint64_t Unsigned(int64_t n) { return static_cast<uint64_t>(n); }
int64_t Negated(int64_t n) { return Signed(0 - Unsigned(n)); }

// Toward minus infinity; 0 for a zero divisor; the smallest number by -1 wraps to itself.
int64_t FloorDivide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return Negated(a);
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// The remainder of FloorDivide: it has the sign of b.
int64_t FloorRemainder(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

// Toward zero; all ones for a zero divisor; the smallest number by -1 wraps to itself.
int64_t TruncatedQuotient(int64_t a, int64_t b) {
  if (b == 0) return -1;
  return b == -1 ? Negated(a) : a / b;
}

// The remainder of TruncatedQuotient: it has the sign of a, which it is for a zero divisor.
int64_t TruncatedRemainder(int64_t a, int64_t b) {
  if (b == 0) return a;
  return b == -1 ? 0 : a % b;
}

// In what follows the last operand, the later use, comes first.

void ProductVjp(VjpRule& r) {
  if (r.Wants(1)) r.To(1, r.Mul(r.g(), r.X(0)));
  if (r.Wants(0)) r.To(0, r.Mul(r.g(), r.X(1)));
}

// q = a / b: g/b and -((g/b) q).
void QuotientVjp(VjpRule& r) {
  if (!r.Wants(0) && !r.Wants(1)) return;
  const ValueId t = r.Div(r.g(), r.X(1));
  if (r.Wants(1)) r.To(1, r.Neg(r.Mul(t, r.Y())));
  if (r.Wants(0)) r.To(0, t);
}

// y = a - b q with a whole q: g and -(g q). q is round(a/b - y/b), as a/b may round up to the next whole
// number, and a - y be beyond the format. From about 2^(p-2) on, p the precision, q may be off by one.
void RemainderVjp(VjpRule& r) {
  if (r.Wants(1)) {
    const ValueId a = r.X(0);
    const ValueId b = r.X(1);
    const ValueId q = r.Do(OpCode::kRound, r.Sub(r.Div(a, b), r.Div(r.Y(), b)));
    r.To(1, r.Neg(r.Mul(r.g(), q)));
  }
  if (r.Wants(0)) r.To(0, r.g());
}

void SqrtVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId half = r.Const(0.5);
  const ValueId t = r.Mul(half, r.g());
  r.To(0, r.Div(t, r.Y()));
}

// The cotangent goes to the operand taken only.
template <OpCode kComparison>
void ExtremeVjp(VjpRule& r) {
  const ValueId taken = r.Kink(kComparison, {ElementType::kBool, r.type().shape});
  r.Choice(taken, 0, 1);
}

}  // namespace

const OpInfo kAdd = Complete({
    .name = "add",
    .doc = "a + b, real or integer.",
    .operands = "a, b",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .scale = ScaleRule::kSum,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(1)) r.To(1, r.g());
          if (r.Wants(0)) r.To(0, r.g());
        },
    .on_reals = [](Format f, double a, double b, double) { return Add(f, a, b); },
    .on_integers = [](int64_t a, int64_t b) { return Signed(Unsigned(a) + Unsigned(b)); },
});

const OpInfo kSub = Complete({
    .name = "sub",
    .doc = "a - b, real or integer.",
    .operands = "a, b",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .scale = ScaleRule::kSum,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(1)) r.To(1, r.Neg(r.g()));
          if (r.Wants(0)) r.To(0, r.g());
        },
    .on_reals = [](Format f, double a, double b, double) { return Sub(f, a, b); },
    .on_integers = [](int64_t a, int64_t b) { return Signed(Unsigned(a) - Unsigned(b)); },
});

const OpInfo kMul = Complete({
    .name = "mul",
    .doc = "a b, real or integer.",
    .operands = "a, b",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .underflows = true,
    .scale = ScaleRule::kProduct,
    .vjp = ProductVjp,
    .domains = {Domain::kBounded},
    .on_reals = [](Format f, double a, double b, double) { return Mul(f, a, b); },
    .on_integers = [](int64_t a, int64_t b) { return Signed(Unsigned(a) * Unsigned(b)); },
});

const OpInfo kDiv = Complete({
    .name = "div",
    .doc = "a / b, real; of integers toward minus infinity, and 0 for a zero divisor.",
    .operands = "a, b",
    .birth = Birth::kArithmetic,
    .carries = [](const Carriage& c) { return c.operand == 0; },  // x / Inf is finite
    .divides_by_zero = [](std::span<const double> x) { return x[1] == 0.0; },
    .underflows = true,
    .scale = ScaleRule::kQuotient,
    .vjp = QuotientVjp,
    .domains = {Domain::kAll, Domain::kPositive},
    .on_reals = [](Format f, double a, double b, double) { return Div(f, a, b); },
    .on_integers = FloorDivide,
});

const OpInfo kNeg = Complete({
    .name = "neg",
    .doc = "-a, real or integer.",
    .operands = "a",
    .propagates = true,
    .scale = ScaleRule::kSame,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Neg(r.g()));
        },
    .on_reals = [](Format, double a, double, double) { return precision::Neg(a); },
    .on_integers = [](int64_t a, int64_t) { return Negated(a); },
});

const OpInfo kAbs = Complete({
    .name = "abs",
    .doc = "|a|, real or integer.",
    .operands = "a",
    .propagates = true,
    .scale = ScaleRule::kSame,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Mul(r.g(), r.Kink(OpCode::kSign, r.type())));
        },
    .on_reals = [](Format, double a, double, double) { return precision::Abs(a); },
    .on_integers = [](int64_t a, int64_t) { return a < 0 ? Negated(a) : a; },
});

const OpInfo kSign = Complete({
    .name = "sign",
    .doc = "-1, 0 or 1, real or integer; NaN of NaN.",
    .operands = "a",
    .smooth = false,
    .on_reals = [](Format, double a, double, double) { return precision::Sign(a); },
    .on_integers = [](int64_t a, int64_t) -> int64_t { return a > 0   ? 1
                                                              : a < 0 ? -1
                                                                      : 0; },
});

const OpInfo kMin = Complete({
    .name = "min",
    .doc = "The smaller of a and b, real or integer; the cotangent goes to the one taken.",
    .operands = "a, b",
    .passage = MaskedPassage,
    .vjp = ExtremeVjp<OpCode::kLt>,
    .on_reals = [](Format, double a, double b, double) { return precision::Min(a, b); },
    .on_integers = [](int64_t a, int64_t b) { return a < b ? a : b; },
});

const OpInfo kMax = Complete({
    .name = "max",
    .doc = "The larger of a and b, real or integer; the cotangent goes to the one taken.",
    .operands = "a, b",
    .passage = MaskedPassage,
    .vjp = ExtremeVjp<OpCode::kGt>,
    .on_reals = [](Format, double a, double b, double) { return precision::Max(a, b); },
    .on_integers = [](int64_t a, int64_t b) { return a > b ? a : b; },
});

const OpInfo kFma = Complete({
    .name = "fma",
    .doc = "a b + c, rounded once.",
    .operands = "a, b, c",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .underflows = true,
    .scale = ScaleRule::kFusedSum,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(2)) r.To(2, r.g());
          ProductVjp(r);
        },
    .domains = {Domain::kBounded},
    .on_reals = precision::Fma,
});

const OpInfo kSqrt = Complete({
    .name = "sqrt",
    .doc = "The square root of a.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .scale = ScaleRule::kRoot,
    .vjp = SqrtVjp,
    .domains = {Domain::kPositive},
    .on_reals = [](Format f, double a, double, double) { return precision::Sqrt(f, a); },
});

const OpInfo kFloor = Complete({
    .name = "floor",
    .doc = "The largest integer not above a, as a real.",
    .operands = "a",
    .propagates = true,
    .smooth = false,
    .on_reals = [](Format, double a, double, double) { return precision::Floor(a); },
});

const OpInfo kRound = Complete({
    .name = "round",
    .doc = "The nearest integer as a real, ties to even.",
    .operands = "a",
    .propagates = true,
    .smooth = false,
    .on_reals = [](Format, double a, double, double) { return precision::Round(a); },
});

const OpInfo kMod = Complete({
    .name = "mod",
    .doc = "a - b floor(a / b), real or integer; of integers 0 for a zero divisor.",
    .operands = "a, b",
    .birth = Birth::kArithmetic,
    .vjp = RemainderVjp,
    .domains = {Domain::kAll, Domain::kPositive},
    .on_reals = [](Format f, double a, double b, double) { return Mod(f, a, b); },
    .on_integers = FloorRemainder,
});

const OpInfo kRem = Complete({
    .name = "rem",
    .doc = "a - b trunc(a / b), real, exact, or integer; of integers a for a zero divisor.",
    .operands = "a, b",
    .birth = Birth::kArithmetic,
    .vjp = RemainderVjp,
    .domains = {Domain::kAll, Domain::kPositive},
    .on_reals = [](Format, double a, double b, double) { return precision::Rem(a, b); },
    .on_integers = TruncatedRemainder,
});

const OpInfo kQuot = Complete({
    .name = "quot",
    .doc = "trunc(a / b), real, or integer; of integers -1, or the largest unsigned, for a zero "
           "divisor.",
    .operands = "a, b",
    .birth = Birth::kArithmetic,
    .carries = [](const Carriage& c) { return c.operand == 0; },  // x / Inf is finite
    .divides_by_zero = [](std::span<const double> x) { return x[1] == 0.0; },
    .smooth = false,
    .on_reals = [](Format f, double a, double b, double) { return precision::Quot(f, a, b); },
    .on_integers = TruncatedQuotient,
});

const OpInfo kCeil = Complete({
    .name = "ceil",
    .doc = "The smallest integer not below a, as a real.",
    .operands = "a",
    .propagates = true,
    .smooth = false,
    .on_reals = [](Format, double a, double, double) { return precision::Ceil(a); },
});

const OpInfo kTrunc = Complete({
    .name = "trunc",
    .doc = "a without its fraction.",
    .operands = "a",
    .propagates = true,
    .smooth = false,
    .on_reals = [](Format, double a, double, double) { return precision::Trunc(a); },
});

const OpInfo kNextAfter = Complete({
    .name = "next_after",
    .doc = "The number next to a in the format of the role, on the side of b; b where they are "
           "equal. The cotangent goes to a.",
    .operands = "a, b",
    .passage = [](const Program&, const Op&,
                  size_t operand) { return operand == 0 ? Passage::kSame : Passage::kNone; },
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.g());
        },
    .smooth = false,
    .on_reals = [](Format f, double a, double b, double) { return precision::NextAfter(f, a, b); },
});

}  // namespace simgrad::sim::op
