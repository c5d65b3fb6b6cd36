// Correctly rounded results in a format, from MPFR: the oracle of rounding and arithmetic.
//
// Maths: MPFR computes with the format's precision and an unbounded exponent and reports on which
//   side of the exact result it landed; mpfr_check_range and mpfr_subnormalize then apply the
//   format's exponent range without a second rounding. Only the format's parameters are shared with
//   the code under test.
#pragma once

#include <gmp.h>
#include <mpfr.h>

#include <cmath>
#include <limits>

#include "precision/format.h"

namespace simgrad::precision {

class FormatOracle {
 public:
  explicit FormatOracle(Format format) : traits_(Traits(format)) {
    mpfr_init2(result_, traits_.precision);
    mpfr_inits2(53, a_, b_, c_, static_cast<mpfr_ptr>(nullptr));
  }
  ~FormatOracle() { mpfr_clears(result_, a_, b_, c_, static_cast<mpfr_ptr>(nullptr)); }
  FormatOracle(const FormatOracle&) = delete;
  FormatOracle& operator=(const FormatOracle&) = delete;

  double Round(double x, mpfr_rnd_t mode = MPFR_RNDN) {
    return Finish(mpfr_set_d(result_, x, mode), mode);
  }
  double Add(double a, double b) { return Binary(mpfr_add, a, b); }
  double Sub(double a, double b) { return Binary(mpfr_sub, a, b); }
  double Mul(double a, double b) { return Binary(mpfr_mul, a, b); }
  double Div(double a, double b) { return Binary(mpfr_div, a, b); }
  double Sqrt(double a) {
    mpfr_set_d(a_, a, MPFR_RNDN);
    return Finish(mpfr_sqrt(result_, a_, MPFR_RNDN), MPFR_RNDN);
  }
  double Fma(double a, double b, double c) {
    mpfr_set_d(a_, a, MPFR_RNDN);
    mpfr_set_d(b_, b, MPFR_RNDN);
    mpfr_set_d(c_, c, MPFR_RNDN);
    return Finish(mpfr_fma(result_, a_, b_, c_, MPFR_RNDN), MPFR_RNDN);
  }
  double Rational(const mpq_t exact) {
    return Finish(mpfr_set_q(result_, exact, MPFR_RNDN), MPFR_RNDN);
  }

 private:
  template <class Operation>
  double Binary(Operation operation, double a, double b) {
    mpfr_set_d(a_, a, MPFR_RNDN);
    mpfr_set_d(b_, b, MPFR_RNDN);
    return Finish(operation(result_, a_, b_, MPFR_RNDN), MPFR_RNDN);
  }

  // MPFR's exponents belong to significands in [1/2, 1), hence the + 1.
  double Finish(int ternary, mpfr_rnd_t mode) {
    const mpfr_exp_t emin = mpfr_get_emin();
    const mpfr_exp_t emax = mpfr_get_emax();
    mpfr_set_emin(traits_.emin + 1);
    mpfr_set_emax(std::ilogb(traits_.max_finite) + 1);
    ternary = mpfr_check_range(result_, ternary, mode);
    mpfr_subnormalize(result_, ternary, mode);
    const double value = mpfr_get_d(result_, MPFR_RNDN);
    mpfr_set_emin(emin);
    mpfr_set_emax(emax);
    // e4m3's top binade holds one number less than an IEEE format's, and no infinity.
    if (!traits_.has_infinity && std::abs(value) > traits_.max_finite) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    return value;
  }

  FormatTraits traits_;
  mpfr_t result_, a_, b_, c_;
};

}  // namespace simgrad::precision
