// The elementary functions, each once per kernel text instead of once per use.
//
// Maths: precision/elementary.h, to the bit. The functions are long. As calls, not inlined, they
//   keep the time short that a text with many of them takes to compile.
// Errors: none. Threads: pure.
#pragma once

#include "precision/arithmetic.h"
#include "precision/elementary.h"

namespace simgrad::sim::cuda::device {

__device__ __noinline__ inline double Exp(double x) { return precision::Exp(x); }
__device__ __noinline__ inline double Log(double x) { return precision::Log(x); }
__device__ __noinline__ inline double Log1p(double x) { return precision::Log1p(x); }
__device__ __noinline__ inline double Expm1(double x) { return precision::Expm1(x); }
__device__ __noinline__ inline double Sin(double x) { return precision::Sin(x); }
__device__ __noinline__ inline double Cos(double x) { return precision::Cos(x); }
__device__ __noinline__ inline double Tanh(double x) { return precision::Tanh(x); }
__device__ __noinline__ inline double Sigmoid(double x) { return precision::Sigmoid(x); }
__device__ __noinline__ inline double Softplus(double x) { return precision::Softplus(x); }
__device__ __noinline__ inline double Atan2(double y, double x) { return precision::Atan2(y, x); }
__device__ __noinline__ inline double Pow(double x, double y) { return precision::Pow(x, y); }

// The floored remainder in format F (precision/arithmetic.h).
template <precision::Format F>
__device__ __noinline__ double Mod(double a, double b) {
  return precision::Mod(F, a, b);
}

}  // namespace simgrad::sim::cuda::device
