// The scalar functions of plans as bitcode, kept in the binary (scalar_module.h).

// Becomes one instruction or two when a body is read, by the processor that it is read for.
extern "C" [[gnu::const]] double simgrad_multiply_add(double a, double b, double c) noexcept;
#define SIMGRAD_MULTIPLY_ADD simgrad_multiply_add

#include "sim/backend/compiled/product_near_zero.h"
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
