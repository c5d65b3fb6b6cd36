// The tables of the elementary functions are the rounded values of the formulas they state.
#include "precision/elementary_tables.h"

#include <gtest/gtest.h>

#include <functional>

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

}  // namespace
}  // namespace simgrad::precision::internal
