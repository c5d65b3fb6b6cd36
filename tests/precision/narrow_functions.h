// The functions of precision/narrow_elementary.h beside their oracles, and the test of many at once.
//
// Maths: the functions of f64 err by less than 2^-52 of the result (elementary_test). So where all
//   numbers within 2^-49 of their result round to one f32, that is the correctly rounded value; MPFR
//   decides the others, the hard ones.
// Cost: one evaluation of each sequence, and MPFR for some ten of 2^32 arguments to one in a
//   million. Threads: pure, but for the numbers that MPFR works with.
#pragma once

#include <ostream>
#include <vector>

#include "precision/narrow_elementary.h"
#include "precision/rounding.h"
#include "tests/precision/mpfr_oracle.h"

namespace simgrad::precision {

// `size` values of x and what becomes of them.
using ManyDoubles = void (*)(const double* x, double* y, int size);

template <auto kFunction>
void OfMany(const double* x, double* y, int size) {
  for (int i = 0; i < size; ++i) y[i] = kFunction(x[i]);
}

struct NarrowFunction {
  const char* name;
  double (*narrow)(double);
  ManyDoubles narrow_of_many;
  ManyDoubles wide_of_many;
  int (*oracle)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);
};

// For messages of tests.
inline void PrintTo(const NarrowFunction& function, std::ostream* out) { *out << function.name; }

#define SIMGRAD_NARROW(Name, oracle) \
  { #Name, narrow::Name, OfMany < narrow::Name>, OfMany < precision::Name>, oracle }
inline constexpr NarrowFunction kNarrowFunctions[] = {SIMGRAD_NARROW(Exp, mpfr_exp),
                                                      SIMGRAD_NARROW(Expm1, mpfr_expm1),
                                                      SIMGRAD_NARROW(Log, mpfr_log),
                                                      SIMGRAD_NARROW(Log1p, mpfr_log1p),
                                                      SIMGRAD_NARROW(Sin, mpfr_sin),
                                                      SIMGRAD_NARROW(Cos, mpfr_cos),
                                                      SIMGRAD_NARROW(Tanh, mpfr_tanh),
                                                      SIMGRAD_NARROW(Sigmoid, OracleSigmoid),
                                                      SIMGRAD_NARROW(Softplus, OracleSoftplus),
                                                      SIMGRAD_NARROW(Exp2, mpfr_exp2),
                                                      SIMGRAD_NARROW(Log2, mpfr_log2),
                                                      SIMGRAD_NARROW(Tan, mpfr_tan),
                                                      SIMGRAD_NARROW(Asin, mpfr_asin),
                                                      SIMGRAD_NARROW(Acos, mpfr_acos),
                                                      SIMGRAD_NARROW(Atan, mpfr_atan),
                                                      SIMGRAD_NARROW(Sinh, mpfr_sinh),
                                                      SIMGRAD_NARROW(Cosh, mpfr_cosh),
                                                      SIMGRAD_NARROW(Rsqrt, OracleRsqrt),
                                                      SIMGRAD_NARROW(Cbrt, mpfr_cbrt),
                                                      SIMGRAD_NARROW(Erf, mpfr_erf),
                                                      SIMGRAD_NARROW(Erfc, OracleErfc)};
#undef SIMGRAD_NARROW

// The value of `format` next to the exact one, which `near` is to 256 bits: below it where the
// oracle returned ternary > 0, above where ternary < 0. Every NaN is the canonical NaN.
inline double RoundedOracle(Format format, mpfr_srcptr near, int ternary) {
  if (mpfr_nan_p(near)) return internal::QuietNan();
  // Rounded to odd at 53 bits: a second rounding to nearest is then the only one.
  static thread_local Real truncated(53);
  const bool is_cut = mpfr_set(truncated.get(), near, MPFR_RNDZ) != 0;
  const double value = mpfr_get_d(truncated.get(), MPFR_RNDZ);
  const bool is_odd = (BitsOf(value) & 1) != 0;
  const bool is_exact = !is_cut && ternary == 0;
  if (is_odd || is_exact || mpfr_regular_p(near) == 0) return RoundTo(format, value);
  const bool is_above_exact = !is_cut && (ternary > 0) == (mpfr_sgn(near) > 0);
  return RoundTo(format, DoubleOf(is_above_exact ? BitsOf(value) - 1 : BitsOf(value) | 1));
}

// Whether an exact value within 2^-49 of y lies next to the middle of two values of f32.
inline bool IsHard(double y) {
  const double low = static_cast<double>(static_cast<float>(y - y * 0x1p-49));
  const double high = static_cast<double>(static_cast<float>(y + y * 0x1p-49));
  return (low < high) | (low > high);  // not where y is infinite
}

// Checks arguments given by the bits of an f32, a piece at a time.
class FloatCheck {
 public:
  static constexpr int kPiece = 4096;

  struct Hard {
    uint32_t argument;
    uint32_t result;  // correctly rounded
  };

  explicit FloatCheck(const NarrowFunction& function)
      : function_(function), x_(kPiece), narrow_(kPiece), wide_(kPiece) {}

  // bits_of(i) for i below kPiece.
  template <class BitsOfIndex>
  void Piece(BitsOfIndex bits_of) {
    for (int i = 0; i < kPiece; ++i) {
      x_[static_cast<size_t>(i)] = static_cast<double>(FloatOf(bits_of(i)));
    }
    function_.narrow_of_many(x_.data(), narrow_.data(), kPiece);
    function_.wide_of_many(x_.data(), wide_.data(), kPiece);
    bool is_plain = true;
    for (size_t i = 0; i < kPiece; ++i) {
      const bool is_same = Bits(narrow_[i]) == Bits(wide_[i]);
      is_plain &= is_same & !IsHard(wide_[i]);
    }
    if (is_plain) return;
    for (int i = 0; i < kPiece; ++i) {
      const size_t at = static_cast<size_t>(i);
      const bool is_same = Bits(narrow_[at]) == Bits(wide_[at]);
      if (!is_same || IsHard(wide_[at])) Ask(bits_of(i), Bits(narrow_[at]), is_same);
    }
  }

  const std::vector<Hard>& hard() const { return hard_; }
  // Arguments with a wrong result.
  const std::vector<uint32_t>& wrong() const { return wrong_; }
  // Arguments at which the f64 function, rounded once, gives another result.
  int64_t differing() const { return differing_; }

 private:
  static uint32_t Bits(double y) {
    const uint32_t bits = BitsOf(static_cast<float>(y));
    return y == y ? bits : kFloatNanBits;
  }

  void Ask(uint32_t argument, uint32_t result, bool is_same) {
    mpfr_set_flt(exact_.get(), FloatOf(argument), MPFR_RNDN);
    const int ternary = function_.oracle(exact_.get(), exact_.get(), MPFR_RNDN);
    const double rounded = RoundedOracle(Format::kF32, exact_.get(), ternary);
    const uint32_t expected = static_cast<uint32_t>(Encode(Format::kF32, rounded));
    if (expected != result) wrong_.push_back(argument);
    if (!is_same) ++differing_;
    hard_.push_back({argument, expected});
  }

  const NarrowFunction& function_;
  std::vector<double> x_;
  std::vector<double> narrow_;
  std::vector<double> wide_;
  Real exact_;
  std::vector<Hard> hard_;
  std::vector<uint32_t> wrong_;
  int64_t differing_ = 0;
};

}  // namespace simgrad::precision
