// The one double that an elementary function makes of its DoubleDouble: rounded to nearest, or to odd
// where a narrower format rounds it once more.
//
// Maths: rounded to odd, the double knows on which side of every value of f32 and of every middle of
//   two the sum lies; so the second rounding is as good as the sum (precision/round_to_odd.h).
// Accuracy: exact, but for the rounding that it is. Errors: none. Threads: pure; host and device.
#pragma once

#include "precision/double_double.h"
#include "precision/round_to_odd.h"

namespace simgrad::precision::internal {

template <bool kToOdd>
SIMGRAD_FLAT inline double Joined(DoubleDouble sum) {
  return kToOdd ? AddToOdd(sum.hi, sum.lo) : sum.hi + sum.lo;
}

// m 2^e. To odd it is exact down to 2^-1022, far below the smallest number of f32.
template <bool kToOdd>
SIMGRAD_FLAT inline double RoundScaledAs(DoubleDouble m, int64_t e) {
  const int64_t half = e >> 1;
  return kToOdd ? (AddToOdd(m.hi, m.lo) * PowerOfTwo(half)) * PowerOfTwo(e - half)
                : RoundScaled(m, e);
}

}  // namespace simgrad::precision::internal
