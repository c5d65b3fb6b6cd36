#include "tests/sim/nonfinite/exact_rounding.h"

#include <mpfr.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

namespace simgrad::nonfinite {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Enough for every exact product, sum and fused multiply-add of doubles: their digits lie between
// 2^1024 and 2^-1074, those of a product between 2^2048 and 2^-2148.
constexpr mpfr_prec_t kExact = 4300;
// Quotients, roots and functions have no end; this many digits leave no doubt how they round.
constexpr mpfr_prec_t kLong = 300;

class Number {
 public:
  explicit Number(mpfr_prec_t digits) { mpfr_init2(value, digits); }
  Number(mpfr_prec_t digits, double x) : Number(digits) { mpfr_set_d(value, x, MPFR_RNDN); }
  ~Number() { mpfr_clear(value); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  mpfr_t value;
};

double Rounded(Format format, const Number& x) {
  if (mpfr_nan_p(x.value)) return kNaN;
  if (mpfr_zero_p(x.value)) return mpfr_signbit(x.value) ? -0.0 : 0.0;
  const Range range = RangeOf(format);
  const double sign = mpfr_signbit(x.value) ? -1.0 : 1.0;
  const double beyond = format == Format::kE4m3 ? kNaN : sign * kInf;
  if (mpfr_inf_p(x.value)) return beyond;
  // |x| lies in [2^(e-1), 2^e): a unit in the last place is 2^(e-digits), not below the smallest.
  const long unit = std::max<long>(mpfr_get_exp(x.value) - range.digits, range.smallest);
  Number scaled(mpfr_get_prec(x.value));
  mpfr_mul_2si(scaled.value, x.value, -unit, MPFR_RNDN);
  mpfr_rint(scaled.value, scaled.value, MPFR_RNDN);
  mpfr_mul_2si(scaled.value, scaled.value, unit, MPFR_RNDN);
  if (mpfr_cmpabs(scaled.value, Number(64, range.largest).value) > 0) return beyond;
  const double result = mpfr_get_d(scaled.value, MPFR_RNDN);
  return result == 0.0 ? sign * 0.0 : result;
}

bool Function(const std::string& what, const std::vector<double>& in, Number& r) {
  const Number a(64, in[0]);
  if (what == "sqrt") return mpfr_sqrt(r.value, a.value, MPFR_RNDN), true;
  if (what == "exp") return mpfr_exp(r.value, a.value, MPFR_RNDN), true;
  if (what == "expm1") return mpfr_expm1(r.value, a.value, MPFR_RNDN), true;
  if (what == "log") return mpfr_log(r.value, a.value, MPFR_RNDN), true;
  if (what == "log1p") return mpfr_log1p(r.value, a.value, MPFR_RNDN), true;
  if (what == "sin") return mpfr_sin(r.value, a.value, MPFR_RNDN), true;
  if (what == "cos") return mpfr_cos(r.value, a.value, MPFR_RNDN), true;
  if (what == "tanh") return mpfr_tanh(r.value, a.value, MPFR_RNDN), true;
  if (what == "exp2") return mpfr_exp2(r.value, a.value, MPFR_RNDN), true;
  if (what == "log2") return mpfr_log2(r.value, a.value, MPFR_RNDN), true;
  if (what == "cbrt") return mpfr_cbrt(r.value, a.value, MPFR_RNDN), true;
  if (what == "tan") return mpfr_tan(r.value, a.value, MPFR_RNDN), true;
  if (what == "asin") return mpfr_asin(r.value, a.value, MPFR_RNDN), true;
  if (what == "acos") return mpfr_acos(r.value, a.value, MPFR_RNDN), true;
  if (what == "atan") return mpfr_atan(r.value, a.value, MPFR_RNDN), true;
  if (what == "sinh") return mpfr_sinh(r.value, a.value, MPFR_RNDN), true;
  if (what == "cosh") return mpfr_cosh(r.value, a.value, MPFR_RNDN), true;
  if (what == "erf") return mpfr_erf(r.value, a.value, MPFR_RNDN), true;
  if (what == "erfc") return mpfr_erfc(r.value, a.value, MPFR_RNDN), true;
  if (what == "rsqrt") {
    mpfr_rec_sqrt(r.value, a.value, MPFR_RNDN);
    if (in[0] == 0.0) mpfr_set_inf(r.value, std::signbit(in[0]) ? -1 : 1);
    return true;
  }
  if (what == "pow") {
    return mpfr_pow(r.value, a.value, Number(64, in[1]).value, MPFR_RNDN), true;
  }
  if (what == "atan2") {
    return mpfr_atan2(r.value, a.value, Number(64, in[1]).value, MPFR_RNDN), true;
  }
  if (what == "softplus") {
    mpfr_exp(r.value, a.value, MPFR_RNDN);
    return mpfr_log1p(r.value, r.value, MPFR_RNDN), true;
  }
  if (what != "sigmoid") return false;
  // 1 / (1 + exp(-a))
  mpfr_neg(r.value, a.value, MPFR_RNDN);
  mpfr_exp(r.value, r.value, MPFR_RNDN);
  mpfr_add_ui(r.value, r.value, 1, MPFR_RNDN);
  mpfr_ui_div(r.value, 1, r.value, MPFR_RNDN);
  return true;
}

bool Exact(const std::string& what, const std::vector<double>& in, Number& r) {
  const Number a(64, in[0]);
  const Number b(64, in.size() > 1 ? in[1] : 0.0);
  if (what == "add" || what == "merge" || what == "merge2" || what == "accumulate") {
    return mpfr_add(r.value, a.value, b.value, MPFR_RNDN), true;
  }
  if (what == "sub") return mpfr_sub(r.value, a.value, b.value, MPFR_RNDN), true;
  if (what == "mul") return mpfr_mul(r.value, a.value, b.value, MPFR_RNDN), true;
  if (what != "fma") return false;
  return mpfr_fma(r.value, a.value, b.value, Number(64, in[2]).value, MPFR_RNDN), true;
}

// No rounding: what moves or chooses.
bool Chosen(const std::string& what, const std::vector<double>& in, double& r) {
  const bool nan = std::any_of(in.begin(), in.end(), [](double x) { return x != x; });
  if (what == "neg") return r = -in[0], true;
  if (what == "abs") return r = std::abs(in[0]), true;
  if (what == "sign") return r = nan ? kNaN : double((in[0] > 0) - (in[0] < 0)), true;
  if (what == "floor") return r = std::floor(in[0]), true;
  if (what == "round") return r = std::nearbyint(in[0]), true;
  if (what == "ceil") return r = std::ceil(in[0]), true;
  if (what == "trunc") return r = std::trunc(in[0]), true;
  if (what == "rem") return r = std::fmod(in[0], in[1]), true;
  // +0 is above -0.
  if (what == "max") {
    r = nan              ? kNaN
        : in[0] == in[1] ? (std::signbit(in[0]) ? in[1] : in[0])
                         : std::max(in[0], in[1]);
    return true;
  }
  if (what == "min") {
    r = nan              ? kNaN
        : in[0] == in[1] ? (std::signbit(in[0]) ? in[0] : in[1])
                         : std::min(in[0], in[1]);
    return true;
  }
  if (what == "mod" && in[1] == 0.0) return r = kNaN, true;
  if (what == "mod") {
    // The witness meets small integers only, where fmod is exact.
    const double rest = std::fmod(in[0], in[1]);
    return r = rest != 0.0 && (rest < 0) != (in[1] < 0) ? rest + in[1] : rest, true;
  }
  return false;
}

}  // namespace

Range RangeOf(Format format) {
  switch (format) {
    case Format::kF64:
      return {53, -1074, 0x1.fffffffffffffp1023};
    case Format::kF32:
      return {24, -149, 0x1.fffffep127};
    case Format::kBf16:
      return {8, -133, 0x1.fep127};
    case Format::kF16:
      return {11, -24, 65504.0};
    case Format::kE5m2:
      return {3, -16, 57344.0};
    case Format::kE4m3:
      break;
  }
  return {4, -9, 448.0};
}

double Nearest(Format format, double x, Overflow overflow) {
  const double r = Rounded(format, Number(64, x));
  if (overflow == Overflow::kIeee || x != x || std::isfinite(r)) return r;
  return std::copysign(RangeOf(format).largest, x);
}

namespace {

// The first value of the format that is met beyond a: half an ulp of a at least is needed to leave
// it, and two ulps are beyond.
double Neighbour(Format format, double a, double b) {
  if (a != a || b != b) return kNaN;
  if (a == b) return b;
  const double way = b > a ? 1.0 : -1.0;
  const Range range = RangeOf(format);
  if (std::isinf(a)) return way * -1.0 * -range.largest;
  const double unit = std::ldexp(
      1.0, std::max(a == 0.0 ? range.smallest : std::ilogb(a) + 1 - range.digits, range.smallest));
  for (double eighths = 1.0; eighths <= 16.0; eighths += 1.0) {
    const double next = Nearest(format, a + way * unit * eighths / 8.0);
    if (next != a) return next == 0.0 ? std::copysign(0.0, a) : next;
  }
  return kNaN;
}

std::optional<double> Computed(const std::string& what, Format format,
                               const std::vector<double>& in) {
  double chosen = 0.0;
  if (Chosen(what, in, chosen)) return chosen;
  // Narrow formats need no more than f32's digits: products lie above 2^-298, sums below 2^130.
  Number exact(format == Format::kF64 ? kExact : 600);
  if (Exact(what, in, exact)) return Rounded(format, exact);
  Number longer(kLong);
  if (what == "div") {
    mpfr_div(longer.value, Number(64, in[0]).value, Number(64, in[1]).value, MPFR_RNDN);
    return Rounded(format, longer);
  }
  if (what == "quot") return std::trunc(Compute("div", format, in));
  if (what == "next_after") return Neighbour(format, in[0], in[1]);
  if (Function(what, in, longer)) return Rounded(format, longer);
  return std::nullopt;
}

}  // namespace

bool Computes(const std::string& what) {
  return Computed(what, Format::kF64, {0.5, 0.5, 0.5}).has_value();
}

double Compute(const std::string& what, Format format, const std::vector<double>& in) {
  if (const std::optional<double> computed = Computed(what, format, in)) return *computed;
  std::fprintf(stderr, "the witness does not know '%s'\n", what.c_str());
  std::abort();
}

double ProductOf(const std::vector<double>& x, Format format) {
  double product = 1.0;
  for (double factor : x) product = Compute("mul", format, {product, factor});
  return product;
}

double SumOf(const std::vector<double>& x, SumOrder order, Format accumulator, Format result) {
  const auto add = [&](double a, double b) { return Compute("add", accumulator, {a, b}); };
  if (x.empty()) return 0.0;
  if (order == Order::kSequential) {
    double sum = 0.0;
    for (double term : x) sum = add(sum, term);
    return Nearest(result, sum);
  }
  if (order == Order::kReversed) {
    double sum = 0.0;
    for (size_t i = x.size(); i-- > 0;) sum = add(sum, x[i]);
    return Nearest(result, sum);
  }
  // Level by level; an absent partner passes its sibling through.
  std::vector<double> level = x;
  while (level.size() > 1) {
    std::vector<double> above;
    for (size_t i = 0; i < level.size(); i += 2) {
      above.push_back(i + 1 < level.size() ? add(level[i], level[i + 1]) : level[i]);
    }
    level = std::move(above);
  }
  return Nearest(result, level[0]);
}

}  // namespace simgrad::nonfinite
