// Integer operations and conversions of a generated kernel.
//
// Maths: two's complement at the width of T; divisions as sim/op/arithmetic.cc has them. An integer becomes a real by one rounding of its exact value.
// Errors: none. Threads: pure.
#pragma once

#include "precision/arithmetic.h"
#include "precision/lane.h"

namespace simgrad::sim::cuda::device {

using precision::Format;
using precision::Lane;

template <class T>
struct UnsignedOf;
template <>
struct UnsignedOf<int32_t> {
  using Type = uint32_t;
};
template <>
struct UnsignedOf<int64_t> {
  using Type = uint64_t;
};

template <class T>
SIMGRAD_HD inline T Add(T a, T b) {
  using U = typename UnsignedOf<T>::Type;
  return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
}
template <class T>
SIMGRAD_HD inline T Sub(T a, T b) {
  using U = typename UnsignedOf<T>::Type;
  return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
}
template <class T>
SIMGRAD_HD inline T Mul(T a, T b) {
  using U = typename UnsignedOf<T>::Type;
  return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
}
template <class T>
SIMGRAD_HD inline T Neg(T a) {
  return Sub(T{0}, a);
}
template <class T>
SIMGRAD_HD inline T Abs(T a) {
  return a < 0 ? Neg(a) : a;
}
template <class T>
SIMGRAD_HD inline T Sign(T a) {
  return a > 0 ? T{1} : (a < 0 ? T{-1} : T{0});
}
template <class T>
SIMGRAD_HD inline T Min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
SIMGRAD_HD inline T Max(T a, T b) {
  return a > b ? a : b;
}

template <class T>
SIMGRAD_HD inline T FloorDivide(T a, T b) {
  if (b == 0) return 0;
  if (b == -1) return Neg(a);
  const T quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// The remainder of FloorDivide: it has the sign of b.
template <class T>
SIMGRAD_HD inline T FloorRemainder(T a, T b) {
  if (b == 0 || b == -1) return 0;
  const T remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

// Toward zero; all ones for a zero divisor.
template <class T>
SIMGRAD_HD inline T TruncatedQuotient(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  return b == -1 ? Neg(a) : a / b;
}

// The remainder of TruncatedQuotient; a for a zero divisor.
template <class T>
SIMGRAD_HD inline T TruncatedRemainder(T a, T b) {
  if (b == 0) return a;
  return b == -1 ? T{0} : a % b;
}

// By the width or more, and so by a negative count: nothing of a is left.
template <class T>
SIMGRAD_HD inline T ShiftLeft(T a, T b) {
  using U = typename UnsignedOf<T>::Type;
  constexpr U kBits = 8 * sizeof(T);
  const U count = static_cast<U>(b);
  const U shifted = static_cast<U>(a) << (count % kBits);
  return count < kBits ? static_cast<T>(shifted) : T{0};
}

// By the width or more the sign is left.
template <class T>
SIMGRAD_HD inline T ShiftRight(T a, T b) {
  using U = typename UnsignedOf<T>::Type;
  constexpr U kBits = 8 * sizeof(T);
  const U count = static_cast<U>(b);
  return a >> (count < kBits ? count : kBits - 1);
}

// ---- u32, and u8, which lies in 32 bits: numbers up to kLargest ----

template <uint32_t kLargest>
struct Natural {
  using U = uint32_t;
  static constexpr U kBits = kLargest > 255 ? 32 : 8;
  SIMGRAD_HD static U Add(U a, U b) { return (a + b) & kLargest; }
  SIMGRAD_HD static U Sub(U a, U b) { return (a - b) & kLargest; }
  SIMGRAD_HD static U Mul(U a, U b) { return (a * b) & kLargest; }
  SIMGRAD_HD static U Neg(U a) { return Sub(0, a); }
  SIMGRAD_HD static U Not(U a) { return a ^ kLargest; }
  SIMGRAD_HD static U Sign(U a) { return a != 0 ? 1 : 0; }
  // Every quotient; `by_zero` for a zero divisor.
  SIMGRAD_HD static U Divide(U a, U b, U by_zero) {
    const U quotient = a / (b == 0 ? 1 : b);
    return b == 0 ? by_zero : quotient;
  }
  SIMGRAD_HD static U Remainder(U a, U b, U by_zero) {
    const U remainder = a % (b == 0 ? 1 : b);
    return b == 0 ? by_zero : remainder;
  }
  SIMGRAD_HD static U ShiftLeft(U a, U b) { return b < kBits ? (a << (b % kBits)) & kLargest : 0; }
  SIMGRAD_HD static U ShiftRight(U a, U b) { return b < kBits ? a >> (b % kBits) : 0; }
  // Toward zero, saturating; NaN to 0.
  SIMGRAD_HD static U Of(double x) {
    const U inside = static_cast<U>(x > 0 && x < kLargest ? x : 0.0);
    return x >= kLargest ? kLargest : inside;
  }
};

template <class T>
SIMGRAD_HD inline T WrapTo(int64_t n) {
  return static_cast<T>(static_cast<uint64_t>(n));
}
template <>
SIMGRAD_HD inline bool WrapTo<bool>(int64_t n) {
  return n != 0;
}

// An i64 need not be a double: its two halves are, and their sum is rounded once.
template <Format F>
SIMGRAD_HD inline typename Lane<F>::Carrier ToReal(int64_t n) {
  const int64_t low = n & 0xFFFFFFFF;
  return static_cast<typename Lane<F>::Carrier>(
      precision::Add(F, static_cast<double>(n - low), static_cast<double>(low)));
}

// Toward zero, saturating; NaN to 0.
template <class T>
SIMGRAD_HD inline T ToInteger(double x) {
  if (x != x) return 0;
  const double low = sizeof(T) == 4 ? -0x1p31 : -0x1p63;
  const T smallest = static_cast<T>(typename UnsignedOf<T>::Type{1} << (8 * sizeof(T) - 1));
  if (x <= low) return smallest;
  if (x >= -low) return static_cast<T>(~smallest);
  return static_cast<T>(x);
}
template <>
SIMGRAD_HD inline bool ToInteger<bool>(double x) {
  return x != 0.0 && x == x;
}

}  // namespace simgrad::sim::cuda::device
