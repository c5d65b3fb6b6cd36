// Functions of two operands in a 16-bit format beside MPFR, at many pairs at once.
//
// Maths: the functions of f64 err by less than 2^-52 of the result (elementary_test). Where all numbers
//   within 2^-49 of it round to one value of the format, that is the right one; MPFR decides others.
// Threads: pure, but for the numbers that MPFR works with.
#pragma once

#include <vector>

#include "precision/lane.h"
#include "tests/precision/narrow_functions.h"

namespace simgrad::precision {

template <Format F>
struct PairFunction {
  const char* name;
  void (*of_row)(double a, const double* b, double* y, int size);
  double (*wide)(double, double);
  int (*oracle)(mpfr_ptr, mpfr_srcptr, mpfr_srcptr, mpfr_rnd_t);
};

template <auto kFunction>
void OfRow(double a, const double* b, double* y, int size) {
  for (int i = 0; i < size; ++i) y[i] = kFunction(a, b[i]);
}

inline constexpr PairFunction<Format::kBf16> kPowOfBf16 = {"Pow", OfRow<Pow>, Pow, mpfr_pow};
inline constexpr PairFunction<Format::kF16> kPowOfF16 = {"Pow", OfRow<Pow>, Pow, mpfr_pow};
inline constexpr PairFunction<Format::kBf16> kAtan2OfBf16 = {"Atan2", OfRow<narrow::Atan2OfBf16>,
                                                             Atan2, mpfr_atan2};
inline constexpr PairFunction<Format::kF16> kAtan2OfF16 = {"Atan2", OfRow<Atan2>, Atan2,
                                                           mpfr_atan2};

// Checks pairs of which the first is one value and the second all 65536.
template <Format F>
class PairCheck {
 public:
  explicit PairCheck(const PairFunction<F>& function) : function_(function), b_(65536), y_(65536) {
    for (uint32_t i = 0; i < 65536; ++i) b_[i] = Decode(F, i);
  }

  void Row(uint16_t encoding) {
    const double a = Decode(F, encoding);
    function_.of_row(a, b_.data(), y_.data(), 65536);
    for (size_t i = 0; i < 65536; ++i) {
      const double y = y_[i];
      const bool is_easy = RoundDouble<F>(y - y * 0x1p-49) == RoundDouble<F>(y + y * 0x1p-49);
      // Infinite results and NaN are those of f64 (elementary_test).
      const bool is_finite = internal::Magnitude(y) < internal::Infinity();
      if (is_finite & !is_easy) Ask(a, b_[i], y);
    }
  }

  int64_t asked() const { return asked_; }
  int64_t wrong() const { return wrong_; }
  int64_t differing() const { return differing_; }

 private:
  void Ask(double a, double b, double y) {
    ++asked_;
    mpfr_set_d(x_.get(), a, MPFR_RNDN);
    mpfr_set_d(exact_.get(), b, MPFR_RNDN);
    const int ternary = function_.oracle(exact_.get(), x_.get(), exact_.get(), MPFR_RNDN);
    const double expected = RoundedOracle(F, exact_.get(), ternary);
    if (BitsOf(RoundTo(F, y)) != BitsOf(expected)) ++wrong_;
    if (BitsOf(RoundTo(F, function_.wide(a, b))) != BitsOf(expected)) ++differing_;
  }

  const PairFunction<F>& function_;
  std::vector<double> b_;
  std::vector<double> y_;
  Real x_;
  Real exact_;
  int64_t asked_ = 0;
  int64_t wrong_ = 0;
  int64_t differing_ = 0;
};

}  // namespace simgrad::precision
