// Loss scaling: the inverse of a scale, unscaling, and the step of a dynamic scaler as data.
//
// Maths: the initial cotangent is multiplied by `scale`; a gradient is multiplied by
//   inv = f32(1 / f64(scale)). After a step with any gradient not finite: skipped,
//   scale = f32(scale * backoff), clean = 0. Otherwise clean + 1, and at the interval
//   scale = f32(scale * growth) where that is finite, clean = 0.
//   kPytorch is exactly this; it has no floor (17 skips take 65536 below 1). kGuarded never goes
//   below 1, keeps to powers of two (the largest not above), so that scaling loses no bit, and
//   tests finiteness after unscaling too; its growth and backoff are powers of two.
// Accuracy: products in double, rounded once. Errors: none; `scale` must be positive and finite.
// Threads: pure; host and device. Cost: constant.
// Source: docs/numerics.md section 8; Micikevicius et al., "Mixed Precision Training", ICLR 2018.
#pragma once

#include "precision/arithmetic.h"

namespace simgrad::precision {

enum class LossScaleMode : uint8_t { kPytorch, kGuarded };

struct LossScale {
  float scale = 65536.0f;
  int64_t clean = 0;  // steps without a skip since the scale last changed
};

struct LossScaleRule {
  LossScaleMode mode = LossScaleMode::kGuarded;
  double growth = 2.0;
  double backoff = 0.5;
  int64_t interval = 2000;
};

// A fixed scale lies between these: their inverses are numbers of f32.
inline constexpr double kLeastFixedLossScale = 0x1p-127;
inline constexpr double kMostFixedLossScale = 0x1p127;

SIMGRAD_HD inline float InverseLossScale(double scale) {
  return static_cast<float>(RoundTo(Format::kF32, 1.0 / scale));
}

// gradient * inverse, rounded once to the format of the gradient.
SIMGRAD_HD inline double Unscale(Format format, double scaled_gradient, float inverse) {
  return Mul(format, scaled_gradient, static_cast<double>(inverse));
}

// The state after a step; `all_finite`: every gradient, in kGuarded after unscaling too.
SIMGRAD_HD inline LossScale NextLossScale(const LossScaleRule& rule, LossScale state,
                                          bool all_finite) {
  float scale = state.scale;
  int64_t clean = 0;
  if (!all_finite) {
    scale = static_cast<float>(Mul(Format::kF32, static_cast<double>(scale), rule.backoff));
  } else if (state.clean < rule.interval - 1) {
    clean = state.clean + 1;
  } else {
    const double grown = Mul(Format::kF32, static_cast<double>(scale), rule.growth);
    if (IsFinite(grown)) scale = static_cast<float>(grown);
  }
  if (rule.mode == LossScaleMode::kGuarded) {
    const float power = FloatOf(BitsOf(scale) & kFloatInfinityBits);
    scale = power < 1.0f ? 1.0f : power;
  }
  return {scale, clean};
}

}  // namespace simgrad::precision
