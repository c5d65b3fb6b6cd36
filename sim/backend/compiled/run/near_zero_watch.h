// Whether arithmetic met a subnormal number, by the flags that the processor leaves.
//
// Threads: a watch belongs to the thread that makes it.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace simgrad::sim::compiled {

// When the reversed steps are those of Part::kNearZero. kWhenRead: when an operand was subnormal; the code
// converts floats to f16, which flags tiny results that no product met.
enum class NearZeroUse : uint8_t { kNever, kWhenMet, kWhenRead, kAlways };

// True for the processors of one maker, whatever a measurement would say: no clock decides what is
// executed.
inline bool SubnormalsAreSlow() {
#if defined(__SSE2__)
  static const bool slow = __builtin_cpu_is("intel") != 0;
  return slow;
#else
  return false;
#endif
}

class NearZeroWatch {
 public:
#if defined(__SSE2__)
  NearZeroWatch() { _mm_setcsr(_mm_getcsr() & ~(kOperand | kResult)); }
  bool Met(NearZeroUse use) const {
    const uint32_t flags = use == NearZeroUse::kWhenRead ? kOperand : kOperand | kResult;
    return (_mm_getcsr() & flags) != 0;
  }

 private:
  // Flags of MXCSR: an operand was subnormal; a result was tiny and inexact.
  static constexpr uint32_t kOperand = 1u << 1, kResult = 1u << 4;
#else
  bool Met(NearZeroUse) const { return false; }
#endif
};

}  // namespace simgrad::sim::compiled
