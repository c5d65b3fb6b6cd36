// Elementary functions, elementwise on reals: evaluated in f64 and rounded once to the format.
#include "precision/narrow_elementary.h"
#include "precision/rounding.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

namespace narrow = precision::narrow;
using precision::RoundTo;

template <double (*kFunction)(double, double)>
double Rounded(Format format, double a, double b, double) {
  return RoundTo(format, kFunction(a, b));
}

// The function of f64, or the one of f32 and narrower.
template <double (*kWide)(double), double (*kNarrow)(double)>
double Rounded(Format format, double a, double, double) {
  return RoundTo(format, format == Format::kF64 ? kWide(a) : kNarrow(a));
}

// 1 - y^2.
void TanhVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId y = r.Y();
  const ValueId one = r.Const(1.0);
  const ValueId squared = r.Mul(y, y);
  r.To(0, r.Mul(r.g(), r.Sub(one, squared)));
}

// y (1 - y).
void SigmoidVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId y = r.Y();
  const ValueId t = r.Mul(r.g(), y);
  const ValueId one = r.Const(1.0);
  r.To(0, r.Mul(t, r.Sub(one, y)));
}

void Log1pVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId one = r.Const(1.0);
  const ValueId x = r.X(0);
  r.To(0, r.Div(r.g(), r.Add(one, x)));
}

void Expm1Vjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId y = r.Y();
  const ValueId one = r.Const(1.0);
  r.To(0, r.Mul(r.g(), r.Add(y, one)));
}

// atan2(y, x), d = x x + y y: (g x)/d and -((g y)/d).
void AngleVjp(VjpRule& r) {
  if (!r.Wants(0) && !r.Wants(1)) return;
  const ValueId y = r.X(0);
  const ValueId x = r.X(1);
  const ValueId xx = r.Mul(x, x);
  const ValueId yy = r.Mul(y, y);
  const ValueId d = r.Add(xx, yy);
  if (r.Wants(1)) r.To(1, r.Neg(r.Div(r.Mul(r.g(), y), d)));
  if (r.Wants(0)) r.To(0, r.Div(r.Mul(r.g(), x), d));
}

// y = 1/sqrt x: -(((0.5 g) y)/x).
void RsqrtVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId half = r.Const(0.5);
  const ValueId t = r.Mul(half, r.g());
  const ValueId u = r.Mul(t, r.Y());
  r.To(0, r.Neg(r.Div(u, r.X(0))));
}

// 3 y^2.
void CbrtVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId y = r.Y();
  const ValueId three = r.Const(3.0);
  const ValueId squared = r.Mul(y, y);
  r.To(0, r.Div(r.g(), r.Mul(three, squared)));
}

void Exp2Vjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId ln2 = r.Const(0x1.62e42fefa39efp-1);
  const ValueId t = r.Mul(r.g(), r.Y());
  r.To(0, r.Mul(t, ln2));
}

void Log2Vjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId ln2 = r.Const(0x1.62e42fefa39efp-1);
  r.To(0, r.Div(r.g(), r.Mul(r.X(0), ln2)));
}

// 1 + y^2.
void TanVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId y = r.Y();
  const ValueId one = r.Const(1.0);
  const ValueId squared = r.Mul(y, y);
  r.To(0, r.Mul(r.g(), r.Add(one, squared)));
}

// g / sqrt((1 - x)(1 + x)), negative for acos.
template <bool kNegative>
void ArcVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId x = r.X(0);
  const ValueId one = r.Const(1.0);
  const ValueId below = r.Sub(one, x);
  const ValueId above = r.Add(one, x);
  const ValueId root = r.Do(OpCode::kSqrt, r.Mul(below, above));
  const ValueId slope = r.Div(r.g(), root);
  r.To(0, kNegative ? r.Neg(slope) : slope);
}

void AtanVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId x = r.X(0);
  const ValueId one = r.Const(1.0);
  const ValueId squared = r.Mul(x, x);
  r.To(0, r.Div(r.g(), r.Add(one, squared)));
}

// 2/sqrt(pi) e^(-x^2), negative for erfc.
template <bool kNegative>
void ErrorFunctionVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const ValueId x = r.X(0);
  const ValueId factor = r.Const(kNegative ? -0x1.20dd750429b6dp+0 : 0x1.20dd750429b6dp+0);
  const ValueId decay = r.Do(OpCode::kExp, r.Neg(r.Mul(x, x)));
  r.To(0, r.Mul(r.g(), r.Mul(factor, decay)));
}

// p = a^b: (g b) a^(b-1) and (g p) log a.
void PowerVjp(VjpRule& r) {
  if (!r.Wants(0) && !r.Wants(1)) return;
  const ValueId a = r.X(0);
  if (r.Wants(1)) {
    const ValueId t = r.Mul(r.g(), r.Y());
    r.To(1, r.Mul(t, r.Do(OpCode::kLog, a)));
  }
  if (r.Wants(0)) {
    const ValueId b = r.X(1);
    const ValueId t = r.Mul(r.g(), b);
    const ValueId one = r.Const(1.0);
    const ValueId less = r.Sub(b, one);
    r.To(0, r.Mul(t, r.Do(OpCode::kPow, a, less)));
  }
}

}  // namespace

const OpInfo kExp = Complete({
    .name = "exp",
    .doc = "e^a.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .underflows = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Mul(r.g(), r.Y()));
        },
    .domains = {Domain::kBounded},
    .on_reals = Rounded<precision::Exp, narrow::Exp>,
});

const OpInfo kLog = Complete({
    .name = "log",
    .doc = "The natural logarithm of a.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .divides_by_zero = [](std::span<const double> x) { return x[0] == 0.0; },
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Div(r.g(), r.X(0)));
        },
    .domains = {Domain::kPositive},
    .on_reals = Rounded<precision::Log, narrow::Log>,
});

const OpInfo kLog1p = Complete({
    .name = "log1p",
    .doc = "log(1 + a), exact near 0.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .divides_by_zero = [](std::span<const double> x) { return x[0] == -1.0; },
    .vjp = Log1pVjp,
    .domains = {Domain::kPositive},
    .on_reals = Rounded<precision::Log1p, narrow::Log1p>,
});

const OpInfo kExpm1 = Complete({
    .name = "expm1",
    .doc = "e^a - 1, exact near 0.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .vjp = Expm1Vjp,
    .domains = {Domain::kBounded},
    .on_reals = Rounded<precision::Expm1, narrow::Expm1>,
});

const OpInfo kSin = Complete({
    .name = "sin",
    .doc = "The sine of a, in radians.",
    .operands = "a",
    .propagates = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Mul(r.g(), r.Do(OpCode::kCos, r.X(0))));
        },
    .on_reals = Rounded<precision::Sin, narrow::Sin>,
});

const OpInfo kCos = Complete({
    .name = "cos",
    .doc = "The cosine of a, in radians.",
    .operands = "a",
    .propagates = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Neg(r.Mul(r.g(), r.Do(OpCode::kSin, r.X(0)))));
        },
    .on_reals = Rounded<precision::Cos, narrow::Cos>,
});

const OpInfo kAtan2 = Complete({
    .name = "atan2",
    .doc = "The angle of the point (x, y), in radians.",
    .operands = "y, x",
    .underflows = true,
    .vjp = AngleVjp,
    .domains = {Domain::kAll, Domain::kPositive},
    .on_reals =
        [](Format f, double a, double b, double) {
          const bool is_bf16 = f == Format::kBf16;
          return RoundTo(f, is_bf16 ? narrow::Atan2OfBf16(a, b) : precision::Atan2(a, b));
        },
});

const OpInfo kTanh = Complete({
    .name = "tanh",
    .doc = "The hyperbolic tangent of a.",
    .operands = "a",
    .vjp = TanhVjp,
    .on_reals = Rounded<precision::Tanh, narrow::Tanh>,
});

const OpInfo kSigmoid = Complete({
    .name = "sigmoid",
    .doc = "1 / (1 + e^-a).",
    .operands = "a",
    .underflows = true,
    .vjp = SigmoidVjp,
    .on_reals = Rounded<precision::Sigmoid, narrow::Sigmoid>,
});

const OpInfo kSoftplus = Complete({
    .name = "softplus",
    .doc = "log(1 + e^a).",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .underflows = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Mul(r.g(), r.Do(OpCode::kSigmoid, r.X(0))));
        },
    .on_reals = Rounded<precision::Softplus, narrow::Softplus>,
});

const OpInfo kPow = Complete({
    .name = "pow",
    .doc = "a^b.",
    .operands = "a, b",
    .birth = Birth::kArithmetic,
    .divides_by_zero = [](std::span<const double> x) { return x[0] == 0.0; },
    .underflows = true,
    .vjp = PowerVjp,
    .domains = {Domain::kPositive, Domain::kBounded},
    .on_reals = Rounded<precision::Pow>,
});

const OpInfo kExp2 = Complete({
    .name = "exp2",
    .doc = "2^a.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .underflows = true,
    .vjp = Exp2Vjp,
    .domains = {Domain::kBounded},
    .on_reals = Rounded<precision::Exp2, narrow::Exp2>,
});

const OpInfo kLog2 = Complete({
    .name = "log2",
    .doc = "The logarithm of a to base 2.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .divides_by_zero = [](std::span<const double> x) { return x[0] == 0.0; },
    .vjp = Log2Vjp,
    .domains = {Domain::kPositive},
    .on_reals = Rounded<precision::Log2, narrow::Log2>,
});

const OpInfo kRsqrt = Complete({
    .name = "rsqrt",
    .doc = "1 / sqrt(a), rounded once.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .divides_by_zero = [](std::span<const double> x) { return x[0] == 0.0; },
    .vjp = RsqrtVjp,
    .domains = {Domain::kPositive},
    .on_reals = Rounded<precision::Rsqrt, narrow::Rsqrt>,
});

const OpInfo kCbrt = Complete({
    .name = "cbrt",
    .doc = "The real cube root of a.",
    .operands = "a",
    .propagates = true,
    .vjp = CbrtVjp,
    .domains = {Domain::kPositive},
    .on_reals = Rounded<precision::Cbrt, narrow::Cbrt>,
});

const OpInfo kTan = Complete({
    .name = "tan",
    .doc = "The tangent of a, in radians.",
    .operands = "a",
    .birth = Birth::kArithmetic,  // in f16 next to a pole
    .propagates = true,
    .vjp = TanVjp,
    .domains = {Domain::kBounded},
    .on_reals = Rounded<precision::Tan, narrow::Tan>,
});

const OpInfo kAsin = Complete({
    .name = "asin",
    .doc = "The angle in [-pi/2, pi/2] whose sine is a.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .vjp = ArcVjp<false>,
    .domains = {Domain::kInside},
    .on_reals = Rounded<precision::Asin, narrow::Asin>,
});

const OpInfo kAcos = Complete({
    .name = "acos",
    .doc = "The angle in [0, pi] whose cosine is a.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .vjp = ArcVjp<true>,
    .domains = {Domain::kInside},
    .on_reals = Rounded<precision::Acos, narrow::Acos>,
});

const OpInfo kAtan = Complete({
    .name = "atan",
    .doc = "The angle in [-pi/2, pi/2] whose tangent is a.",
    .operands = "a",
    .vjp = AtanVjp,
    .on_reals = Rounded<precision::Atan, narrow::Atan>,
});

const OpInfo kSinh = Complete({
    .name = "sinh",
    .doc = "The hyperbolic sine of a.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Mul(r.g(), r.Do(OpCode::kCosh, r.X(0))));
        },
    .domains = {Domain::kBounded},
    .on_reals = Rounded<precision::Sinh, narrow::Sinh>,
});

const OpInfo kCosh = Complete({
    .name = "cosh",
    .doc = "The hyperbolic cosine of a.",
    .operands = "a",
    .birth = Birth::kArithmetic,
    .propagates = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) r.To(0, r.Mul(r.g(), r.Do(OpCode::kSinh, r.X(0))));
        },
    .domains = {Domain::kBounded},
    .on_reals = Rounded<precision::Cosh, narrow::Cosh>,
});

const OpInfo kErf = Complete({
    .name = "erf",
    .doc = "The error function of a.",
    .operands = "a",
    .vjp = ErrorFunctionVjp<false>,
    .on_reals = Rounded<precision::Erf, narrow::Erf>,
});

const OpInfo kErfc = Complete({
    .name = "erfc",
    .doc = "1 - erf(a), without cancellation.",
    .operands = "a",
    .underflows = true,
    .vjp = ErrorFunctionVjp<true>,
    .on_reals = Rounded<precision::Erfc, narrow::Erfc>,
});

}  // namespace simgrad::sim::op
