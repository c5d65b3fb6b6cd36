// The scalar functions of plans as bitcode, kept in the binary (scalar_module.h).

// Becomes one instruction or two when a body is read, by the processor that it is read for.
extern "C" [[gnu::const]] double simgrad_multiply_add(double a, double b, double c) noexcept;
#define SIMGRAD_MULTIPLY_ADD simgrad_multiply_add

#include "precision/lane_rounding.h"

// The value of f16 next to x, or a NaN: the processor's conversions to f16 and back, or, for one that has none,
// the body of simgrad_to_f16_in_steps.
extern "C" [[gnu::const]] float simgrad_to_f16(float x) noexcept;

namespace simgrad::precision {

extern "C" [[gnu::used, gnu::flatten]] inline float simgrad_to_f16_in_steps(float x) {
  return RoundInCarrier<Format::kF16>(x, Overflow::kIeee);
}

// The same bits as everywhere else (lane_rounding.h), but for those of a NaN (precision/lane.h).
template <>
inline float RoundFloat<Format::kF16>(float x, Overflow overflow) {
  constexpr auto kMax = static_cast<float>(Traits(Format::kF16).max_finite);
  float rounded = simgrad_to_f16(x);
  if (overflow == Overflow::kSaturate) {
    rounded = rounded > kMax ? kMax : rounded < -kMax ? -kMax : rounded;
  }
  return rounded;
}

}  // namespace simgrad::precision

#include "sim/backend/compiled/scalars/product_near_zero.h"
#include "sim/backend/scalars.h"

// Products of the variant of a plan that runs while numbers are near zero (writer_options.h).
SCALAR float mul_near_zero_f32(float a, float b) {
  return simgrad::sim::compiled::ProductNearZero(a, b);
}
SCALAR double mul_near_zero_f64(double a, double b) {
  return simgrad::sim::compiled::ProductNearZero(a, b);
}
SCALAR float mul_near_zero_bf16(float a, float b) {
  return Lane<Format::kBf16>::Round(simgrad::sim::compiled::ProductNearZero(a, b));
}
