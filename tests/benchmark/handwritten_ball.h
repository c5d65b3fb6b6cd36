// The yardstick: the ball of the benchmark as one SIMD loop, written by hand for this world alone.
//
// Computes the same bits as simgrad's f32 program: same operations in the same order, no
// contraction.
#pragma once

#include <cstdint>

namespace simgrad::yardstick {

struct Ball {
  float k = 1.0f, g = 9.81f, h = 0.01f, restitution = 0.8f, alpha = 0.5f, tol = 1e-4f;
  int max_iter = 25;
};

// Runs `steps` steps of `instances` balls (a multiple of 16) in place; returns the iterations in
// all.
int64_t RunHandwritten(const Ball& ball, float* y, float* v, int64_t instances, int64_t steps);

}  // namespace simgrad::yardstick
