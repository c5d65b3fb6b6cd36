// The tables of the elementary functions are the rounded values of the formulas they state.
#include "precision/elementary_tables.h"

#include <gtest/gtest.h>

#include <functional>

#include "precision/elementary_erf_table.h"
#include "tests/precision/mpfr_oracle.h"

namespace simgrad::precision::internal {
namespace {

using Function = std::function<double(int64_t)>;
using Formula = std::function<void(mpfr_ptr, int64_t)>;

// high is the formula's value rounded by `round_high`, low the rest rounded to f64.
void ExpectRoundedValues(int64_t count, const Function& high, const Function& low,
                         const Formula& formula, const std::function<void(mpfr_ptr)>& round_high) {
  for (int64_t i = 0; i < count; ++i) {
    Real value;
    Real rounded;
    formula(value.get(), i);
    mpfr_set(rounded.get(), value.get(), MPFR_RNDN);
    round_high(rounded.get());
    EXPECT_EQ(high(i), mpfr_get_d(rounded.get(), MPFR_RNDN)) << i;
    mpfr_sub(value.get(), value.get(), rounded.get(), MPFR_RNDN);
    EXPECT_EQ(low(i), mpfr_get_d(value.get(), MPFR_RNDN)) << i;
  }
}

std::function<void(mpfr_ptr)> ToBits(mpfr_prec_t bits) {
  return [bits](mpfr_ptr x) {
    mpfr_prec_round(x, bits, MPFR_RNDN);
    mpfr_prec_round(x, 256, MPFR_RNDN);
  };
}

// To a multiple of 2^-digits.
void RoundToMultiple(mpfr_ptr x, int digits) {
  mpfr_mul_2si(x, x, digits, MPFR_RNDN);
  mpfr_rint(x, x, MPFR_RNDN);
  mpfr_mul_2si(x, x, -digits, MPFR_RNDN);
}

void SetQuotient(mpfr_ptr x, int64_t numerator, unsigned long denominator) {
  mpfr_set_si(x, numerator, MPFR_RNDN);
  mpfr_div_ui(x, x, denominator, MPFR_RNDN);
}

TEST(ElementaryTables, ExponentialTableHoldsPowersOfTwo) {
  const auto formula = [](mpfr_ptr x, int64_t i) {
    SetQuotient(x, i, 128);
    mpfr_exp2(x, x, MPFR_RNDN);
  };
  ExpectRoundedValues(128, ExpTableHigh, ExpTableLow, formula, ToBits(26));
}

TEST(ElementaryTables, LogarithmTableHoldsReciprocalsAndTheirLogarithms) {
  for (int64_t i = 0; i < 128; ++i) {
    Real reciprocal;
    mpfr_set_d(reciprocal.get(), DoubleOf(0x3FE6A00000000000u + (static_cast<uint64_t>(i) << 45)),
               MPFR_RNDN);
    mpfr_ui_div(reciprocal.get(), 1, reciprocal.get(), MPFR_RNDN);
    RoundToMultiple(reciprocal.get(), 13);
    EXPECT_EQ(LogTableReciprocal(i), mpfr_get_d(reciprocal.get(), MPFR_RNDN)) << i;
  }
  EXPECT_EQ(LogTableReciprocal(75), 1.0);
  const auto formula = [](mpfr_ptr x, int64_t i) {
    mpfr_set_d(x, LogTableReciprocal(i), MPFR_RNDN);
    mpfr_log(x, x, MPFR_RNDN);
    mpfr_neg(x, x, MPFR_RNDN);
  };
  ExpectRoundedValues(128, LogTableHigh, LogTableLow, formula,
                      [](mpfr_ptr x) { RoundToMultiple(x, 42); });
}

TEST(ElementaryTables, TurnTablesHoldSinesAndCosines) {
  const auto sine = [](mpfr_ptr x, int64_t j) {
    SetQuotient(x, j, 64);
    mpfr_sin(x, x, MPFR_RNDN);
  };
  const auto cosine = [](mpfr_ptr x, int64_t j) {
    SetQuotient(x, j, 64);
    mpfr_cos(x, x, MPFR_RNDN);
  };
  ExpectRoundedValues(52, SinTableHigh, SinTableLow, sine, ToBits(26));
  ExpectRoundedValues(52, CosTableHigh, CosTableLow, cosine, ToBits(26));
}

TEST(ElementaryTables, ArcTangentTableHoldsArcTangents) {
  const auto formula = [](mpfr_ptr x, int64_t j) {
    SetQuotient(x, j, 64);
    mpfr_atan(x, x, MPFR_RNDN);
  };
  ExpectRoundedValues(65, AtanTableHigh, AtanTableLow, formula, ToBits(53));
}

TEST(ElementaryTables, TwoOverPiWordsAreItsBinaryDigits) {
  Real rest(1600);
  Real word(1600);
  mpfr_const_pi(rest.get(), MPFR_RNDN);
  mpfr_ui_div(rest.get(), 2, rest.get(), MPFR_RNDN);
  EXPECT_EQ(TwoOverPiWord(0), 0u);
  for (int64_t i = 1; i < 21; ++i) {
    mpfr_mul_2ui(rest.get(), rest.get(), 64, MPFR_RNDN);
    mpfr_floor(word.get(), rest.get());
    EXPECT_EQ(TwoOverPiWord(i), mpfr_get_ui(word.get(), MPFR_RNDN)) << i;
    mpfr_sub(rest.get(), rest.get(), word.get(), MPFR_RNDN);
  }
}

// g = erfcx(c), g' = 2 c g - 2/sqrt(pi), and (k + 1) a_{k+1} = 2 c a_k + 2 a_{k-1} for the
// coefficients. The recurrence loses some 60 bits.
TEST(ElementaryTables, ErrorFunctionTableHoldsTaylorCoefficients) {
  constexpr mpfr_prec_t kBits = 600;
  for (int64_t i = 0; i < kErfcxIntervals; ++i) {
    const uint64_t first = BitsOf(0.25) + (static_cast<uint64_t>(i) << 49);
    Real c(kBits);
    mpfr_set_d(c.get(), DoubleOf(first + (uint64_t{1} << 48)), MPFR_RNDN);
    Real before(kBits);
    Real here(kBits);
    Real next(kBits);
    Real rest(kBits);
    mpfr_sqr(before.get(), c.get(), MPFR_RNDN);
    mpfr_exp(before.get(), before.get(), MPFR_RNDN);
    mpfr_erfc(here.get(), c.get(), MPFR_RNDN);
    mpfr_mul(here.get(), before.get(), here.get(), MPFR_RNDN);
    mpfr_const_pi(before.get(), MPFR_RNDN);
    mpfr_sqrt(before.get(), before.get(), MPFR_RNDN);
    mpfr_si_div(before.get(), -1, before.get(), MPFR_RNDN);  // so that 2 a_{-1} is -2/sqrt(pi)
    for (int64_t k = 0; k <= kErfcxDegree; ++k) {
      EXPECT_EQ(ErfcxTable(i, k), mpfr_get_d(here.get(), MPFR_RNDN)) << i << " " << k;
      if (k < 2) {
        mpfr_sub_d(rest.get(), here.get(), ErfcxTable(i, k), MPFR_RNDN);
        EXPECT_EQ(ErfcxTable(i, kErfcxDegree + 1 + k), mpfr_get_d(rest.get(), MPFR_RNDN)) << i;
      }
      mpfr_mul(next.get(), c.get(), here.get(), MPFR_RNDN);
      mpfr_add(next.get(), next.get(), before.get(), MPFR_RNDN);
      mpfr_mul_ui(next.get(), next.get(), 2, MPFR_RNDN);
      mpfr_div_ui(next.get(), next.get(), static_cast<unsigned long>(k + 1), MPFR_RNDN);
      mpfr_swap(before.get(), here.get());
      mpfr_swap(here.get(), next.get());
    }
  }
}

}  // namespace
}  // namespace simgrad::precision::internal
