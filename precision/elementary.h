// The project's own elementary functions on double: one sequence of operations for host and device.
//
// Maths: Exp, Exp2, Expm1, Log, Log2, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh,
//   Sigmoid, Softplus, Rsqrt, Cbrt, Erf, Erfc, Atan2(y, x), Pow(x, y). Each uses only add, multiply,
//   divide, square root and integer operations, no fma and no library call. With contraction off,
//   every compiler therefore gives the same bits (docs/numerics.md section 2).
// Accuracy: at most 1 ulp for every argument, subnormals and large arguments included. The bound
//   measured against MPFR (elementary_test) is stated with each function. Exact results are exact.
//   Special cases follow Annex F of C. Every NaN returned is the canonical one.
// Narrower formats: precision/narrow_elementary.h, but for Pow and Atan2. Those are evaluated in f64
//   and rounded once with RoundTo: one ulp of f64 is 2^-29 ulp of f32, so the result is within
//   0.5 + 2^-28 ulp in f32.
// Errors: none. Threads: all functions are pure; rounding is to nearest, subnormals are on.
#pragma once

#include "precision/elementary_activation.h"
#include "precision/elementary_arc.h"
#include "precision/elementary_atan.h"
#include "precision/elementary_erf.h"
#include "precision/elementary_exp.h"
#include "precision/elementary_exp2.h"
#include "precision/elementary_hyperbolic.h"
#include "precision/elementary_log.h"
#include "precision/elementary_log2.h"
#include "precision/elementary_pow.h"
#include "precision/elementary_root.h"
#include "precision/elementary_tan.h"
#include "precision/elementary_trig.h"
