// The yardstick: the ball of docs/performance.md as a SIMD programmer would write it.
//
// Maths: docs/numerics.md section 9, projection contact without clamp, f32, one element. The state
// stays in registers for the whole rollout; the loop of a group of lanes ends when all of them have
// stopped; constants are folded. `n` is a multiple of 64.
#pragma once

#include <cstdint>

namespace simgrad::yardstick {

void RunHandWrittenBall(float* y, float* v, int64_t n, int64_t steps);

}  // namespace simgrad::yardstick
