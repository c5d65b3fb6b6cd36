// The float environment of the specification for the current thread, restored on destruction.
//
// Maths: round to nearest even, subnormals kept (no flush to zero, no denormals are zero).
// Errors: none. Cost: a few register moves; flags and exception masks stay as they are.
// Threads: acts on the constructing thread; destroy it there. Host only.
// A compiler may move floating-point operations over the change of a control register: construct
// the object in one function and compute in another that is not inlined into it.
// Source: docs/numerics.md section 2.
#pragma once

#include <cfenv>
#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace simgrad::precision {

class ScopedFloatEnvironment {
 public:
  ScopedFloatEnvironment() : rounding_(std::fegetround()), control_(Control()) {
    std::fesetround(FE_TONEAREST);
    SetControl(Control() & ~kFlushBits);
  }
  ~ScopedFloatEnvironment() {
    std::fesetround(rounding_);
    SetControl(control_);
  }
  ScopedFloatEnvironment(const ScopedFloatEnvironment&) = delete;
  ScopedFloatEnvironment& operator=(const ScopedFloatEnvironment&) = delete;

 private:
#if defined(__x86_64__) || defined(__i386__)
  // MXCSR: flush to zero is bit 15, denormals are zero bit 6.
  static constexpr uint64_t kFlushBits = (uint64_t{1} << 15) | (uint64_t{1} << 6);
  static uint64_t Control() { return _mm_getcsr(); }
  static void SetControl(uint64_t control) { _mm_setcsr(static_cast<uint32_t>(control)); }
#elif defined(__aarch64__)
  // FPCR: FZ is bit 24, FZ16 bit 19 and, on newer processors, FIZ (flushes operands) bit 0.
  static constexpr uint64_t kFlushBits = (uint64_t{1} << 24) | (uint64_t{1} << 19) | 1;
  static uint64_t Control() {
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void SetControl(uint64_t control) { asm volatile("msr fpcr, %0" ::"r"(control)); }
#else
  static constexpr uint64_t kFlushBits = 0;
  static uint64_t Control() { return 0; }
  static void SetControl(uint64_t) {}
#endif

  int rounding_;
  uint64_t control_;
};

}  // namespace simgrad::precision
