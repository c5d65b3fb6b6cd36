// A float environment that no run may be changed by: flush to zero, round toward zero.
//
// On x86-64 operands that are subnormal count as zero too; on arm64 one flag says both.
// Threads: acts on the thread that constructs it, which also destroys it; that restores it.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#if defined(__x86_64__) || defined(__aarch64__)
#define SIMGRAD_HOSTILE_ENVIRONMENT

namespace simgrad::tests {

class HostileEnvironment {
 public:
  HostileEnvironment() : saved_(Control()) { SetControl(saved_ | kHostile); }
  ~HostileEnvironment() { SetControl(saved_); }
  HostileEnvironment(const HostileEnvironment&) = delete;
  HostileEnvironment& operator=(const HostileEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: flush to zero is bit 15, denormals are zero bit 6, the rounding bits 13 and 14.
  static constexpr uint64_t kHostile = 0x8040 | 0x6000;
  static uint64_t Control() { return _mm_getcsr(); }
  static void SetControl(uint64_t control) { _mm_setcsr(static_cast<uint32_t>(control)); }
#else
  // FPCR: FZ is bit 24, the rounding bits 22 and 23.
  static constexpr uint64_t kHostile = (uint64_t{1} << 24) | (uint64_t{3} << 22);
  static uint64_t Control() {
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void SetControl(uint64_t control) { asm volatile("msr fpcr, %0" ::"r"(control)); }
#endif

  const uint64_t saved_;
};

}  // namespace simgrad::tests

#endif
