// MPFR as the oracle of the elementary functions: an owned number and the error of a result in
// ulps.
//
// Accuracy: 256 bits; functions that MPFR lacks are composed of its own and lose a few bits.
// Units: errors are in ulps of the exact value in the format asked for, that is 2^(e-p+1) for
// 2^e <= |exact| < 2^(e+1) and at least the smallest subnormal.
#pragma once

#include <mpfr.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace simgrad::precision {

class Real {
 public:
  explicit Real(mpfr_prec_t bits = 256) { mpfr_init2(value_, bits); }
  ~Real() { mpfr_clear(value_); }
  Real(const Real&) = delete;
  Real& operator=(const Real&) = delete;

  mpfr_ptr get() { return value_; }

 private:
  mpfr_t value_;
};

struct BinaryFormat {
  int precision;
  int min_exponent;  // of the smallest normal number
  int max_exponent;  // of the largest finite number
};
inline constexpr BinaryFormat kBinary64 = {53, -1022, 1023};

// |result - exact| in ulps; infinite where one is NaN and the other not. An infinite result counts
// as the power of two after the largest finite number, and is right from the middle to that on.
inline double ErrorInUlps(double result, mpfr_srcptr exact, BinaryFormat format) {
  if (mpfr_nan_p(exact) || std::isnan(result)) {
    return mpfr_nan_p(exact) && std::isnan(result) ? 0.0 : std::numeric_limits<double>::infinity();
  }
  // Exponents of MPFR belong to a mantissa in [1/2, 1).
  const bool is_regular = mpfr_regular_p(exact);
  const bool is_beyond =
      mpfr_inf_p(exact) || (is_regular && mpfr_get_exp(exact) > format.max_exponent + 1);
  if (is_beyond) {
    const bool is_right = std::isinf(result) && std::signbit(result) == (mpfr_signbit(exact) != 0);
    return is_right ? 0.0 : std::numeric_limits<double>::infinity();
  }
  const long exponent = is_regular ? std::max<long>(mpfr_get_exp(exact) - 1, format.min_exponent)
                                   : format.min_exponent;
  static thread_local Real difference;
  if (std::isinf(result)) {
    mpfr_set_si_2exp(difference.get(), result > 0 ? 1 : -1, format.max_exponent + 1, MPFR_RNDN);
  } else {
    mpfr_set_d(difference.get(), result, MPFR_RNDN);
  }
  mpfr_sub(difference.get(), difference.get(), exact, MPFR_RNDN);
  mpfr_mul_2si(difference.get(), difference.get(), format.precision - 1 - exponent, MPFR_RNDN);
  return std::fabs(mpfr_get_d(difference.get(), MPFR_RNDU));
}

// 1 / (1 + e^-x). The sum loses what is below 2^-256 of it, which changes the quotient as little.
inline int OracleSigmoid(mpfr_ptr y, mpfr_srcptr x, mpfr_rnd_t rounding) {
  mpfr_neg(y, x, rounding);
  mpfr_exp(y, y, rounding);
  mpfr_add_ui(y, y, 1, rounding);
  return mpfr_ui_div(y, 1, y, rounding);
}

// log(1 + e^x) = max(x, 0) + log1p(e^-|x|).
inline int OracleSoftplus(mpfr_ptr y, mpfr_srcptr x, mpfr_rnd_t rounding) {
  static thread_local Real term;
  mpfr_abs(term.get(), x, rounding);
  mpfr_neg(term.get(), term.get(), rounding);
  mpfr_exp(term.get(), term.get(), rounding);
  mpfr_log1p(term.get(), term.get(), rounding);
  if (mpfr_sgn(x) > 0) return mpfr_add(y, term.get(), x, rounding);
  return mpfr_set(y, term.get(), rounding);
}

// erfc(x) to 128 bits: MPFR takes long for more.
inline int OracleErfc(mpfr_ptr y, mpfr_srcptr x, mpfr_rnd_t rounding) {
  static thread_local Real erfc(128);
  const int ternary = mpfr_erfc(erfc.get(), x, rounding);
  mpfr_set(y, erfc.get(), rounding);
  return ternary;
}

// 1 / sqrt(x). Of -0 MPFR gives +Inf, IEEE 754 -Inf.
inline int OracleRsqrt(mpfr_ptr y, mpfr_srcptr x, mpfr_rnd_t rounding) {
  const bool is_negative_zero = mpfr_zero_p(x) != 0 && mpfr_signbit(x) != 0;
  const int ternary = mpfr_rec_sqrt(y, x, rounding);
  if (is_negative_zero) mpfr_set_inf(y, -1);
  return ternary;
}

}  // namespace simgrad::precision
