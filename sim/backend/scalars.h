// The scalar functions of plans, each a few lines over precision/: written once for every executor.
//
// One function per name that a plan calls (sim/plan/plan.h). The compiler of plans takes their bodies
// from bitcode (compiled/scalars/scalar_bitcode.cc), widens them to vectors where they are straight code, and
// calls them lane by lane where they are not; texts for CUDA include this header.
//
// Names: function_format for what rounds or whose NaN depends on the format, function_carrier else.
// Errors: none; every function is pure. Threads: any.
#pragma once

#include "precision/arithmetic.h"
#include "precision/elementary.h"
#include "precision/exact_sum.h"
#include "precision/hash.h"
#include "precision/lane.h"
#include "precision/narrow_elementary.h"
#include "precision/next_after.h"
#include "precision/norm.h"
#include "precision/philox.h"
#include "precision/quantize.h"
#include "precision/tf32.h"
#include "precision/ulp.h"
#include "sim/backend/cuda/device/buckets.h"
#include "sim/backend/cuda/device/integers.h"
#include "sim/backend/cuda/device/margin.h"
#include "sim/backend/cuda/device/ranges.h"

namespace precision = simgrad::precision;
namespace device = simgrad::sim::cuda::device;
using precision::Format;
using precision::Lane;

// Long functions of a text for CUDA stand there once each, which keeps the time short that it takes to
// compile.
#if defined(__CUDACC__) || defined(__CUDA_HOST_SHIM__)
#define SCALAR __device__ inline
#define LONG_FUNCTION __device__ __noinline__ inline
#else
// All that they call is part of them, so that most are straight code.
#define SCALAR extern "C" [[gnu::used, gnu::flatten]] inline
#define LONG_FUNCTION inline
#endif

// The functions that round to the result in format F: precision/elementary.h for f64, else
// precision/narrow_elementary.h.
#define OF_FORMAT(Name)                  \
  template <Format F>                    \
  LONG_FUNCTION double Name(double x) {  \
    if constexpr (F == Format::kF64) {   \
      return precision::Name(x);         \
    } else {                             \
      return precision::narrow::Name(x); \
    }                                    \
  }
OF_FORMAT(Exp)
OF_FORMAT(Log)
OF_FORMAT(Log1p)
OF_FORMAT(Expm1)
OF_FORMAT(Sin)
OF_FORMAT(Cos)
OF_FORMAT(Tanh)
OF_FORMAT(Sigmoid)
OF_FORMAT(Softplus)
OF_FORMAT(Exp2)
OF_FORMAT(Log2)
OF_FORMAT(Rsqrt)
OF_FORMAT(Cbrt)
OF_FORMAT(Tan)
OF_FORMAT(Asin)
OF_FORMAT(Acos)
OF_FORMAT(Atan)
OF_FORMAT(Sinh)
OF_FORMAT(Cosh)
OF_FORMAT(Erf)
OF_FORMAT(Erfc)

template <Format F>
LONG_FUNCTION double Atan2(double y, double x) {
  if constexpr (F == Format::kBf16) {
    return precision::narrow::Atan2OfBf16(y, x);
  } else {
    return precision::Atan2(y, x);
  }
}

LONG_FUNCTION double Pow(double x, double y) { return precision::Pow(x, y); }
template <Format F>
LONG_FUNCTION double Mod(double a, double b) {
  return precision::Mod(F, a, b);
}

template <Format F>
LONG_FUNCTION double NextAfter(double a, double b) {
  return precision::NextAfter(F, a, b);
}
// By the counters of a draw (precision/philox.h).
LONG_FUNCTION precision::PhiloxBlock DrawnBlock(int64_t key, int64_t draw, int64_t step,
                                                int64_t iteration, int64_t element) {
  return precision::Draw(static_cast<uint64_t>(key), draw, step, iteration, element);
}
LONG_FUNCTION double DrawnNormal(int64_t key, int64_t draw, int64_t step, int64_t iteration,
                                 int64_t element) {
  return precision::NormalOf(DrawnBlock(key, draw, step, iteration, element));
}
// A cast that does not round to nearest even; `bits` matter to a stochastic one.
template <Format F, precision::CastRounding kRounding, precision::Overflow kOverflow>
LONG_FUNCTION double RoundedBy(double x, uint32_t bits) {
  return precision::RoundTo(F, x, kOverflow, kRounding, bits);
}
LONG_FUNCTION double Rem(double a, double b) { return precision::Rem(a, b); }

// ---- reals, by format ----

#define UNARY(name, Format_, suffix, text)                                                  \
  SCALAR Lane<Format::Format_>::Carrier name##_##suffix(Lane<Format::Format_>::Carrier a) { \
    using L = Lane<Format::Format_>;                                                        \
    return static_cast<L::Carrier>(text);                                                   \
  }
#define BINARY(name, Format_, suffix, text)                                                 \
  SCALAR Lane<Format::Format_>::Carrier name##_##suffix(Lane<Format::Format_>::Carrier a,   \
                                                        Lane<Format::Format_>::Carrier b) { \
    using L = Lane<Format::Format_>;                                                        \
    return static_cast<L::Carrier>(text);                                                   \
  }
#define COMPARE(name, Format_, suffix, text)                      \
  SCALAR bool name##_##suffix(Lane<Format::Format_>::Carrier a,   \
                              Lane<Format::Format_>::Carrier b) { \
    return text;                                                  \
  }

#define REALS(F, s)                                                                               \
  BINARY(add, F, s, L::Add(a, b))                                                                 \
  BINARY(sub, F, s, L::Sub(a, b))                                                                 \
  BINARY(mul, F, s, L::Mul(a, b))                                                                 \
  BINARY(div, F, s, L::Div(a, b))                                                                 \
  UNARY(neg, F, s, precision::Neg(a))                                                             \
  UNARY(abs, F, s, precision::Abs(a))                                                             \
  UNARY(sign, F, s, precision::Sign(a))                                                           \
  BINARY(min, F, s, precision::Min(a, b))                                                         \
  BINARY(max, F, s, precision::Max(a, b))                                                         \
  UNARY(relu, F, s, precision::Relu(a))                                                           \
  BINARY(at_least, F, s, precision::AtLeast(a, b))                                                \
  BINARY(at_most, F, s, precision::AtMost(a, b))                                                  \
  UNARY(sqrt, F, s, L::Sqrt(a))                                                                   \
  UNARY(floor, F, s, precision::Floor(a))                                                         \
  UNARY(round, F, s, precision::Round(a))                                                         \
  BINARY(mod, F, s, Mod<Format::F>(a, b))                                                         \
  UNARY(exp, F, s, L::Round(Exp<Format::F>(a)))                                                   \
  UNARY(log, F, s, L::Round(Log<Format::F>(a)))                                                   \
  UNARY(log1p, F, s, L::Round(Log1p<Format::F>(a)))                                               \
  UNARY(expm1, F, s, L::Round(Expm1<Format::F>(a)))                                               \
  UNARY(sin, F, s, L::Round(Sin<Format::F>(a)))                                                   \
  UNARY(cos, F, s, L::Round(Cos<Format::F>(a)))                                                   \
  BINARY(atan2, F, s, L::Round(Atan2<Format::F>(a, b)))                                           \
  UNARY(tanh, F, s, L::Round(Tanh<Format::F>(a)))                                                 \
  UNARY(sigmoid, F, s, L::Round(Sigmoid<Format::F>(a)))                                           \
  UNARY(softplus, F, s, L::Round(Softplus<Format::F>(a)))                                         \
  BINARY(pow, F, s, L::Round(Pow(a, b)))                                                          \
  UNARY(ceil, F, s, precision::Ceil(a))                                                           \
  UNARY(trunc, F, s, precision::Trunc(a))                                                         \
  BINARY(rem, F, s, Rem(a, b))                                                                    \
  BINARY(quot, F, s, precision::Trunc(L::Div(a, b)))                                              \
  BINARY(next_after, F, s, NextAfter<Format::F>(a, b))                                            \
  UNARY(exp2, F, s, L::Round(Exp2<Format::F>(a)))                                                 \
  UNARY(log2, F, s, L::Round(Log2<Format::F>(a)))                                                 \
  UNARY(rsqrt, F, s, L::Round(Rsqrt<Format::F>(a)))                                               \
  UNARY(cbrt, F, s, L::Round(Cbrt<Format::F>(a)))                                                 \
  UNARY(tan, F, s, L::Round(Tan<Format::F>(a)))                                                   \
  UNARY(asin, F, s, L::Round(Asin<Format::F>(a)))                                                 \
  UNARY(acos, F, s, L::Round(Acos<Format::F>(a)))                                                 \
  UNARY(atan, F, s, L::Round(Atan<Format::F>(a)))                                                 \
  UNARY(sinh, F, s, L::Round(Sinh<Format::F>(a)))                                                 \
  UNARY(cosh, F, s, L::Round(Cosh<Format::F>(a)))                                                 \
  UNARY(erf, F, s, L::Round(Erf<Format::F>(a)))                                                   \
  UNARY(erfc, F, s, L::Round(Erfc<Format::F>(a)))                                                 \
  COMPARE(lt, F, s, a < b)                                                                        \
  COMPARE(le, F, s, a <= b)                                                                       \
  COMPARE(gt, F, s, a > b)                                                                        \
  COMPARE(ge, F, s, a >= b)                                                                       \
  COMPARE(eq, F, s, a == b)                                                                       \
  COMPARE(ne, F, s, (a < b) | (a > b))                                                            \
  SCALAR Lane<Format::F>::Carrier fma_##s(Lane<Format::F>::Carrier a, Lane<Format::F>::Carrier b, \
                                          Lane<Format::F>::Carrier c) {                           \
    return Lane<Format::F>::Fma(a, b, c);                                                         \
  }                                                                                               \
  SCALAR Lane<Format::F>::Carrier select_##s(bool c, Lane<Format::F>::Carrier a,                  \
                                             Lane<Format::F>::Carrier b) {                        \
    return c ? a : b;                                                                             \
  }                                                                                               \
  BINARY(scale_up, F, s,                                                                          \
         L::Round(precision::ScaleUp(static_cast<double>(a), static_cast<double>(b))))            \
  BINARY(scale_down, F, s,                                                                        \
         L::Round(precision::ScaleDown(static_cast<double>(a), static_cast<double>(b))))          \
  SCALAR Lane<Format::F>::Carrier uniform_##s(int64_t key, int64_t draw, int64_t step,            \
                                              int64_t iteration, int64_t element) {               \
    return static_cast<Lane<Format::F>::Carrier>(                                                 \
        precision::UniformOf(DrawnBlock(key, draw, step, iteration, element).first,               \
                             precision::UniformBits(Format::F)));                                 \
  }                                                                                               \
  SCALAR Lane<Format::F>::Carrier normal_##s(int64_t key, int64_t draw, int64_t step,             \
                                             int64_t iteration, int64_t element) {                \
    return Lane<Format::F>::Round(DrawnNormal(key, draw, step, iteration, element));              \
  }                                                                                               \
  SCALAR double add_wide_##s(double a, double b) { return precision::Add(Format::F, a, b); }      \
  SCALAR Lane<Format::F>::Carrier round_f32_##s(float x) { return Lane<Format::F>::Round(x); }    \
  SCALAR Lane<Format::F>::Carrier round_f64_##s(double x) { return Lane<Format::F>::Round(x); }   \
  SCALAR Lane<Format::F>::Carrier round_f32_##s##_saturate(float x) {                             \
    return Lane<Format::F>::Round(x, precision::Overflow::kSaturate);                             \
  }                                                                                               \
  SCALAR Lane<Format::F>::Carrier round_f64_##s##_saturate(double x) {                            \
    return Lane<Format::F>::Round(x, precision::Overflow::kSaturate);                             \
  }                                                                                               \
  SCALAR Lane<Format::F>::Carrier convert_i32_##s(int32_t n) {                                    \
    return device::ToReal<Format::F>(n);                                                          \
  }                                                                                               \
  SCALAR Lane<Format::F>::Carrier convert_i64_##s(int64_t n) {                                    \
    return device::ToReal<Format::F>(n);                                                          \
  }                                                                                               \
  SCALAR Lane<Format::F>::Carrier convert_u32_##s(uint32_t n) {                                   \
    return device::ToReal<Format::F>(n);                                                          \
  }                                                                                               \
  SCALAR Lane<Format::F>::Carrier convert_u8_##s(uint32_t n) {                                    \
    return device::ToReal<Format::F>(n);                                                          \
  }                                                                                               \
  SCALAR Lane<Format::F>::Carrier convert_bool_##s(bool n) { return n ? 1 : 0; }

REALS(kF64, f64)
REALS(kF32, f32)
REALS(kBf16, bf16)
REALS(kF16, f16)
REALS(kE4m3, e4m3)
REALS(kE5m2, e5m2)

// Casts that do not round to nearest even; a stochastic one takes word w0 of its block.
#define DIRECTED_CAST(F, s, T, t, Rounding, rounding, Mode, mode)                                  \
  SCALAR Lane<Format::F>::Carrier round_##t##_##s##_##rounding##mode(T x) {                        \
    return static_cast<Lane<Format::F>::Carrier>(                                                  \
        RoundedBy<Format::F, precision::CastRounding::Rounding, precision::Overflow::Mode>(x, 0)); \
  }
#define STOCHASTIC_CAST(F, s, T, t, Mode, mode)                                                \
  SCALAR Lane<Format::F>::Carrier round_##t##_##s##_stochastic##mode(                          \
      T x, int64_t key, int64_t draw, int64_t step, int64_t iteration, int64_t element) {      \
    const precision::PhiloxBlock block = DrawnBlock(key, draw, step, iteration, element);      \
    return static_cast<Lane<Format::F>::Carrier>(                                              \
        RoundedBy<Format::F, precision::CastRounding::kStochastic, precision::Overflow::Mode>( \
            x, static_cast<uint32_t>(block.first >> 32)));                                     \
  }
#define CASTS_OF(F, s, T, t, Mode, mode)                            \
  DIRECTED_CAST(F, s, T, t, kNearestAway, nearest_away, Mode, mode) \
  DIRECTED_CAST(F, s, T, t, kTowardZero, toward_zero, Mode, mode)   \
  STOCHASTIC_CAST(F, s, T, t, Mode, mode)
#define CASTS(F, s)                                \
  CASTS_OF(F, s, float, f32, kIeee, )              \
  CASTS_OF(F, s, double, f64, kIeee, )             \
  CASTS_OF(F, s, float, f32, kSaturate, _saturate) \
  CASTS_OF(F, s, double, f64, kSaturate, _saturate)
CASTS(kF64, f64)
CASTS(kF32, f32)
CASTS(kBf16, bf16)
CASTS(kF16, f16)
CASTS(kE4m3, e4m3)
CASTS(kE5m2, e5m2)

// Rounds an operand of matmul to tf32.
#define TF32(Rounding, rounding)                                         \
  SCALAR float round_f32_tf32##rounding(float x) {                       \
    return precision::RoundToTf32<precision::CastRounding::Rounding>(x); \
  }
TF32(kNearestEven, )
TF32(kNearestAway, _nearest_away)
TF32(kTowardZero, _toward_zero)

// The exact sum of x[0], x[stride], ..., rounded once. Called lane by lane.
#define EXACT_SUM(T, t, F, s)                                                                  \
  SCALAR Lane<Format::F>::Carrier exact_sum_##t##_##s(const T* x, int64_t stride, int64_t n) { \
    precision::ExactSum sum;                                                                   \
    for (int64_t i = 0; i < n; ++i) sum.Add(static_cast<double>(x[i * stride]));               \
    return static_cast<Lane<Format::F>::Carrier>(sum.Result(Format::F));                       \
  }
#define EXACT_SUMS(F, s) EXACT_SUM(float, f32, F, s) EXACT_SUM(double, f64, F, s)
EXACT_SUMS(kF64, f64)
EXACT_SUMS(kF32, f32)
EXACT_SUMS(kBf16, bf16)
EXACT_SUMS(kF16, f16)
EXACT_SUMS(kE4m3, e4m3)
EXACT_SUMS(kE5m2, e5m2)

// ---- reals, by carrier ----

using U32 = device::Natural<0xFFFFFFFFu>;
using U8 = device::Natural<0xFFu>;

#define CARRIED(T, s)                                                                         \
  SCALAR bool is_finite_##s(T x) { return precision::IsFinite(x); }                           \
  SCALAR T canonical_##s(T x) { return precision::Canonical(x); }                             \
  SCALAR T larger_magnitude_##s(T a, T b) { return device::LargerMagnitude(a, b); }           \
  SCALAR bool not_smaller_##s(T a, T b) { return precision::Abs(a) >= precision::Abs(b); }    \
  SCALAR bool leads_max_##s(T best, T x) { return (best == best) & ((x > best) | (x != x)); } \
  SCALAR bool leads_min_##s(T best, T x) { return (best == best) & ((x < best) | (x != x)); } \
  SCALAR int32_t convert_##s##_i32(T x) { return device::ToInteger<int32_t>(x); }             \
  SCALAR int64_t convert_##s##_i64(T x) { return device::ToInteger<int64_t>(x); }             \
  SCALAR uint32_t convert_##s##_u32(T x) { return U32::Of(x); }                               \
  SCALAR uint32_t convert_##s##_u8(T x) { return U8::Of(x); }                                 \
  SCALAR bool convert_##s##_bool(T x) { return device::ToInteger<bool>(x); }                  \
  SCALAR float convert_##s##_f32(T x) { return static_cast<float>(x); }                       \
  SCALAR double convert_##s##_f64(T x) { return static_cast<double>(x); }

CARRIED(float, f32)
CARRIED(double, f64)
#define IS_FINITE(F, s) \
  SCALAR bool is_finite_##s(Lane<Format::F>::Carrier x) { return precision::IsFinite(x); }
IS_FINITE(kBf16, bf16)
IS_FINITE(kF16, f16)
IS_FINITE(kE4m3, e4m3)
IS_FINITE(kE5m2, e5m2)
SCALAR double magnitude_of_product_f64(double a, double b) { return precision::Abs(a * b); }
SCALAR double magnitude_of_quotient_f64(double a, double b) { return precision::Abs(a / b); }
SCALAR double magnitude_of_quotient_but_by_zero_f64(double a, double b) {
  return b == 0.0 ? 0.0 : precision::Abs(a / b);
}
SCALAR double widen_f32(float x) { return static_cast<double>(x); }
SCALAR float narrow_f64(double x) { return static_cast<float>(x); }
SCALAR double quantized_e4m3(double x, double amax) {
  return precision::Quantized<Format::kE4m3>(x, amax);
}
SCALAR double quantized_e5m2(double x, double amax) {
  return precision::Quantized<Format::kE5m2>(x, amax);
}

// ---- integers ----

#define INTEGERS(T, s)                                                    \
  SCALAR T add_##s(T a, T b) { return device::Add(a, b); }                \
  SCALAR T sub_##s(T a, T b) { return device::Sub(a, b); }                \
  SCALAR T mul_##s(T a, T b) { return device::Mul(a, b); }                \
  SCALAR T div_##s(T a, T b) { return device::FloorDivide(a, b); }        \
  SCALAR T mod_##s(T a, T b) { return device::FloorRemainder(a, b); }     \
  SCALAR T quot_##s(T a, T b) { return device::TruncatedQuotient(a, b); } \
  SCALAR T rem_##s(T a, T b) { return device::TruncatedRemainder(a, b); } \
  SCALAR T neg_##s(T a) { return device::Neg(a); }                        \
  SCALAR T abs_##s(T a) { return device::Abs(a); }                        \
  SCALAR T sign_##s(T a) { return device::Sign(a); }                      \
  SCALAR T shl_##s(T a, T b) { return device::ShiftLeft(a, b); }          \
  SCALAR T shr_##s(T a, T b) { return device::ShiftRight(a, b); }         \
  SCALAR T not_##s(T a) { return ~a; }                                    \
  WHOLE(T, s)

#define NATURALS(U, s)                                                                    \
  SCALAR uint32_t add_##s(uint32_t a, uint32_t b) { return U::Add(a, b); }                \
  SCALAR uint32_t sub_##s(uint32_t a, uint32_t b) { return U::Sub(a, b); }                \
  SCALAR uint32_t mul_##s(uint32_t a, uint32_t b) { return U::Mul(a, b); }                \
  SCALAR uint32_t div_##s(uint32_t a, uint32_t b) { return U::Divide(a, b, 0); }          \
  SCALAR uint32_t mod_##s(uint32_t a, uint32_t b) { return U::Remainder(a, b, 0); }       \
  SCALAR uint32_t quot_##s(uint32_t a, uint32_t b) { return U::Divide(a, b, U::Not(0)); } \
  SCALAR uint32_t rem_##s(uint32_t a, uint32_t b) { return U::Remainder(a, b, a); }       \
  SCALAR uint32_t neg_##s(uint32_t a) { return U::Neg(a); }                               \
  SCALAR uint32_t abs_##s(uint32_t a) { return a; }                                       \
  SCALAR uint32_t sign_##s(uint32_t a) { return U::Sign(a); }                             \
  SCALAR uint32_t shl_##s(uint32_t a, uint32_t b) { return U::ShiftLeft(a, b); }          \
  SCALAR uint32_t shr_##s(uint32_t a, uint32_t b) { return U::ShiftRight(a, b); }         \
  SCALAR uint32_t not_##s(uint32_t a) { return U::Not(a); }                               \
  WHOLE(uint32_t, s)

// The functions of every integer type.
#define WHOLE(T, s)                                                           \
  SCALAR bool leads_max_##s(T best, T x) { return x > best; }                 \
  SCALAR bool leads_min_##s(T best, T x) { return x < best; }                 \
  SCALAR T and_##s(T a, T b) { return a & b; }                                \
  SCALAR T or_##s(T a, T b) { return a | b; }                                 \
  SCALAR T xor_##s(T a, T b) { return a ^ b; }                                \
  SCALAR T min_##s(T a, T b) { return device::Min(a, b); }                    \
  SCALAR T max_##s(T a, T b) { return device::Max(a, b); }                    \
  SCALAR bool lt_##s(T a, T b) { return a < b; }                              \
  SCALAR bool le_##s(T a, T b) { return a <= b; }                             \
  SCALAR bool gt_##s(T a, T b) { return a > b; }                              \
  SCALAR bool ge_##s(T a, T b) { return a >= b; }                             \
  SCALAR bool eq_##s(T a, T b) { return a == b; }                             \
  SCALAR bool ne_##s(T a, T b) { return a != b; }                             \
  SCALAR T select_##s(bool c, T a, T b) { return c ? a : b; }                 \
  SCALAR int32_t convert_##s##_i32(T n) { return static_cast<int32_t>(n); }   \
  SCALAR int64_t convert_##s##_i64(T n) { return static_cast<int64_t>(n); }   \
  SCALAR uint32_t convert_##s##_u32(T n) { return static_cast<uint32_t>(n); } \
  SCALAR uint32_t convert_##s##_u8(T n) { return static_cast<uint8_t>(n); }   \
  SCALAR bool convert_##s##_bool(T n) { return n != 0; }

INTEGERS(int32_t, i32)
INTEGERS(int64_t, i64)
NATURALS(U32, u32)
NATURALS(U8, u8)

SCALAR bool and_bool(bool a, bool b) { return a & b; }
SCALAR bool or_bool(bool a, bool b) { return a | b; }
SCALAR bool xor_bool(bool a, bool b) { return a != b; }
SCALAR bool not_bool(bool a) { return !a; }
SCALAR bool select_bool(bool c, bool a, bool b) { return c ? a : b; }
SCALAR bool eq_bool(bool a, bool b) { return a == b; }
SCALAR bool ne_bool(bool a, bool b) { return a != b; }
SCALAR int32_t convert_bool_i32(bool n) { return n ? 1 : 0; }
SCALAR int64_t convert_bool_i64(bool n) { return n ? 1 : 0; }
SCALAR uint32_t convert_bool_u32(bool n) { return n ? 1 : 0; }
SCALAR uint32_t convert_bool_u8(bool n) { return n ? 1 : 0; }
SCALAR bool convert_bool_bool(bool n) { return n; }

// ---- records (sim/backend/columns.h) ----

#define DISTANCES(F, s, E, e)                                                                   \
  SCALAR double distance_##s##_##e(Lane<Format::F>::Carrier a, Lane<Format::F>::Carrier b,      \
                                   E extra) {                                                   \
    return device::DistanceOf<Format::F>(a, b, extra).absolute;                                 \
  }                                                                                             \
  SCALAR double distance_ulps_##s##_##e(Lane<Format::F>::Carrier a, Lane<Format::F>::Carrier b, \
                                        E extra) {                                              \
    return device::DistanceOf<Format::F>(a, b, extra).ulps;                                     \
  }                                                                                             \
  SCALAR bool is_negative_##s##_##e(Lane<Format::F>::Carrier a, Lane<Format::F>::Carrier b,     \
                                    E extra) {                                                  \
    return device::DistanceOf<Format::F>(a, b, extra).negative;                                 \
  }                                                                                             \
  SCALAR bool is_number_##s##_##e(Lane<Format::F>::Carrier a, Lane<Format::F>::Carrier b,       \
                                  E extra) {                                                    \
    return device::DistanceOf<Format::F>(a, b, extra).number;                                   \
  }
#define RANGES(F, s)                                                                              \
  DISTANCES(F, s, float, f32)                                                                     \
  DISTANCES(F, s, double, f64)                                                                    \
  SCALAR bool underflows_f32_##s(float x, Lane<Format::F>::Carrier r) {                           \
    return precision::IsFinite(x) & (x != 0) & device::IsTiny<Format::F>(static_cast<double>(r)); \
  }                                                                                               \
  SCALAR bool underflows_f64_##s(double x, Lane<Format::F>::Carrier r) {                          \
    return precision::IsFinite(x) & (x != 0) & device::IsTiny<Format::F>(static_cast<double>(r)); \
  }                                                                                               \
  SCALAR bool overflows_f32_##s(float x) {                                                        \
    return precision::IsFinite(x) & !precision::IsFinite(Lane<Format::F>::Round(x));              \
  }                                                                                               \
  SCALAR bool overflows_f64_##s(double x) {                                                       \
    return precision::IsFinite(x) & !precision::IsFinite(Lane<Format::F>::Round(x));              \
  }                                                                                               \
  SCALAR bool stores_tiny_##s(Lane<Format::F>::Carrier x) {                                       \
    return (x != 0) & device::IsTiny<Format::F>(static_cast<double>(x));                          \
  }                                                                                               \
  SCALAR bool stores_infinity_##s(Lane<Format::F>::Carrier x) {                                   \
    return (x == x) & !precision::IsFinite(x);                                                    \
  }

// 2^52 of the ulps in which the margin of a and b is told.
#define UNIT(F, s, E, e)                                                                          \
  SCALAR double unit_##s##_##e(Lane<Format::F>::Carrier a, Lane<Format::F>::Carrier b, E extra) { \
    const auto largest = device::LargerMagnitude(device::LargerMagnitude(a, b), extra);           \
    return precision::Ulp(Format::F, static_cast<double>(largest)) * 0x1p52;                      \
  }
#define UNITS(F, s) UNIT(F, s, float, f32) UNIT(F, s, double, f64)
UNITS(kF64, f64)
UNITS(kF32, f32)
UNITS(kBf16, bf16)
UNITS(kF16, f16)
UNITS(kE4m3, e4m3)
UNITS(kE5m2, e5m2)
// Orders deciding tests with equal margins: a test of reals before none, then the first in text.
SCALAR bool comes_first(double unit, int32_t test, double other_unit, int32_t other_test) {
  const bool equal = (unit == 0.0) == (other_unit == 0.0);
  return (equal & (test <= other_test)) | (!equal & (other_unit == 0.0));
}
// Whether the first of two tests decides a formula that has the smaller margin (decision_margin.h).
SCALAR bool decides_smaller(double margin, double unit, int32_t test, double other,
                            double other_unit, int32_t other_test) {
  return (margin < other) | ((margin == other) & comes_first(unit, test, other_unit, other_test));
}
// The same for the larger margin. A formula that integers alone make true needs no test of reals.
SCALAR bool decides_larger(double margin, double unit, int32_t test, double other,
                           double other_unit, int32_t other_test) {
  const bool without = (margin > 0.0) & ((unit == 0.0) != (other_unit == 0.0));
  const bool first =
      (without & (unit == 0.0)) | (!without & comes_first(unit, test, other_unit, other_test));
  return (margin > other) | ((margin == other) & first);
}

RANGES(kF64, f64)
RANGES(kF32, f32)
RANGES(kBf16, bf16)
RANGES(kF16, f16)
RANGES(kE4m3, e4m3)
RANGES(kE5m2, e5m2)

SCALAR double distance_integer(int64_t a, int64_t b) {
  return device::IntegerDistance(a, b).absolute;
}
SCALAR int32_t margin_bucket(double ulps) { return device::MarginBucket(ulps); }
SCALAR int32_t exponent_bucket_f64(double magnitude) { return device::ExponentBucket(magnitude); }
SCALAR int32_t exponent_bucket_f32(float magnitude) { return device::ExponentBucket(magnitude); }
SCALAR int32_t iteration_bucket(int32_t n) {
  return device::IterationBucket(static_cast<uint32_t>(n));
}
// precision::DecisionHash in three parts: of what all lanes share, of what loops differ in, and of
// the outcome.
SCALAR uint64_t decision_of_step(uint64_t site, int64_t t) {
  return precision::SplitMix64(site ^ static_cast<uint64_t>(t));
}
SCALAR uint64_t decision_of_element(uint64_t step, int64_t iteration, int64_t element) {
  return precision::SplitMix64(precision::SplitMix64(step ^ static_cast<uint64_t>(iteration)) ^
                               static_cast<uint64_t>(element));
}
SCALAR uint64_t decision_of_outcome(uint64_t prefix, uint64_t outcome) {
  return precision::SplitMix64(prefix ^ outcome);
}
SCALAR uint64_t loop_outcome(int32_t ran, int32_t reason) {
  return precision::LoopOutcome(static_cast<uint64_t>(ran), static_cast<uint64_t>(reason));
}
static_assert(precision::DecisionHash(1, 2, 3, 4, 5) ==
              precision::SplitMix64(
                  precision::SplitMix64(
                      precision::SplitMix64(precision::SplitMix64(uint64_t{1} ^ 2) ^ 3) ^ 4) ^
                  5));

#if !defined(__CUDACC__) && !defined(__CUDA_HOST_SHIM__)
// If rare_f is false, f is usual_f, which is straight code.
#define TRIGONOMETRIC(F, s)                                             \
  UNARY(usual_sin, F, s, L::Round(precision::narrow::SinOfModerate(a))) \
  UNARY(usual_cos, F, s, L::Round(precision::narrow::CosOfModerate(a))) \
  SCALAR bool rare_sin_##s(Lane<Format::F>::Carrier a) {                \
    return precision::narrow::IsHugeAngle(a);                           \
  }                                                                     \
  SCALAR bool rare_cos_##s(Lane<Format::F>::Carrier a) { return precision::narrow::IsHugeAngle(a); }
TRIGONOMETRIC(kF32, f32)
TRIGONOMETRIC(kBf16, bf16)
TRIGONOMETRIC(kF16, f16)
#undef TRIGONOMETRIC
// Mod of a moderate quotient; b is no zero.
template <Format F>
inline typename Lane<F>::Carrier ModerateMod(typename Lane<F>::Carrier a,
                                             typename Lane<F>::Carrier b) {
  using Carrier = typename Lane<F>::Carrier;
  const Carrier r = static_cast<Carrier>(precision::FmodOfModerate<F>(a, b));
  const Carrier moved = Lane<F>::Add(r, b);
  const Carrier zero = b < Carrier{0} ? -Carrier{0} : Carrier{0};
  const Carrier remainder = (r < Carrier{0}) == (b < Carrier{0}) ? r : moved;
  return r == Carrier{0} ? zero : remainder;
}
#define REMAINDERS(F, s)                                                             \
  BINARY(usual_mod, F, s, ModerateMod<Format::F>(a, b))                              \
  BINARY(usual_rem, F, s, precision::FmodOfModerate<Format::F>(a, b))                \
  SCALAR bool rare_mod_##s(Lane<Format::F>::Carrier a, Lane<Format::F>::Carrier b) { \
    return !precision::IsModerateQuotient<Format::F>(a, b);                          \
  }                                                                                  \
  SCALAR bool rare_rem_##s(Lane<Format::F>::Carrier a, Lane<Format::F>::Carrier b) { \
    return !precision::IsModerateQuotient<Format::F>(a, b);                          \
  }
REMAINDERS(kF64, f64)
REMAINDERS(kF32, f32)
REMAINDERS(kBf16, bf16)
REMAINDERS(kF16, f16)
#undef REMAINDERS
#endif
