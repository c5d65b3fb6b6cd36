// The means to write headers that are both C++ and CUDA C++: the function mark and bit access.
//
// Errors: none. Threads: all functions are pure.
// Every header that includes only this one, <cstdint> and <math.h> compiles under NVRTC, where the
// standard headers are absent.
#pragma once

#ifdef __CUDACC_RTC__
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
#ifdef __LP64__
using int64_t = long;
using uint64_t = unsigned long;
#else
using int64_t = long long;
using uint64_t = unsigned long long;
#endif
#else
#include <cstdint>
#endif

#ifdef __CUDACC__
#define SIMGRAD_HD __host__ __device__
#else
#define SIMGRAD_HD
#endif

namespace simgrad::precision {

SIMGRAD_HD constexpr uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
SIMGRAD_HD constexpr uint64_t BitsOf(double x) { return __builtin_bit_cast(uint64_t, x); }
SIMGRAD_HD constexpr float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
SIMGRAD_HD constexpr double DoubleOf(uint64_t bits) { return __builtin_bit_cast(double, bits); }

inline constexpr uint32_t kFloatInfinityBits = 0x7F800000u;
inline constexpr uint32_t kFloatNanBits = 0x7FC00000u;
inline constexpr uint64_t kDoubleInfinityBits = 0x7FF0000000000000u;
inline constexpr uint64_t kDoubleNanBits = 0x7FF8000000000000u;

// 2^exponent, for exponents of normal numbers; from bits, so it is exact in every environment.
SIMGRAD_HD constexpr float FloatPowerOfTwo(int exponent) {
  return FloatOf(static_cast<uint32_t>(exponent + 127) << 23);
}
SIMGRAD_HD constexpr double DoublePowerOfTwo(int exponent) {
  return DoubleOf(static_cast<uint64_t>(exponent + 1023) << 52);
}

}  // namespace simgrad::precision
