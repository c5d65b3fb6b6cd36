// a b + c where one rounding is as good as two.
//
// Maths: round(a b + c), or round(round(a b) + c): which of them is the caller's processor's matter. So
//   it is used only by sequences whose results, rounded to a narrower format, are the same both ways for
//   all arguments (precision/narrow_*.h; every_float and every_float_fused of tests/precision show it).
// Accuracy: at most two roundings. Errors: none.
// Cost: one instruction where there is a fused one, else two. Host compilers write two; machine code
//   of plans (sim/backend/compiled) and CUDA write one where they can. Threads: pure; host and device.
#pragma once

#include "precision/double_double.h"

// SIMGRAD_MULTIPLY_ADD: a function of (a, b, c) that is called for it.
#if defined(__CUDACC__) && !defined(SIMGRAD_MULTIPLY_ADD)
#define SIMGRAD_MULTIPLY_ADD ::fma
#endif

namespace simgrad::precision::internal {

SIMGRAD_FLAT constexpr double MultiplyAdd(double a, double b, double c) {
#ifdef SIMGRAD_MULTIPLY_ADD
  if (!__builtin_is_constant_evaluated()) return SIMGRAD_MULTIPLY_ADD(a, b, c);
#endif
  return a * b + c;
}

}  // namespace simgrad::precision::internal
