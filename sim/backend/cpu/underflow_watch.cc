#include "sim/backend/cpu/underflow_watch.h"

#if defined(SIMGRAD_CPU_X86)
#include <xmmintrin.h>
#endif

namespace simgrad::sim::cpu {

#if defined(SIMGRAD_CPU_X86)

namespace {

// Of MXCSR: an operand was subnormal, a result was tiny and inexact.
constexpr uint32_t kNearZero = (1u << 1) | (1u << 4);

bool SubnormalsAreSlow() {
  static const bool slow = __builtin_cpu_is("intel") != 0;
  return slow;
}

}  // namespace

void UnderflowWatch::Begin(Lanes& lanes) const {
  if (!SubnormalsAreSlow()) return;
  lanes.evades_subnormals = evades_;
  lanes.met_subnormals = false;
  if (!evades_) _mm_setcsr(_mm_getcsr() & ~kNearZero);
}

void UnderflowWatch::End(Lanes& lanes) {
  if (!SubnormalsAreSlow()) return;
  evades_ = evades_ ? lanes.met_subnormals : (_mm_getcsr() & kNearZero) != 0;
  lanes.evades_subnormals = false;
}

#else

void UnderflowWatch::Begin(Lanes&) const {}
void UnderflowWatch::End(Lanes&) {}

#endif

}  // namespace simgrad::sim::cpu
