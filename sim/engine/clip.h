// Clips a gradient to a norm: the numbers of all inputs together, without the loss scale.
//
// Maths: norm = sqrt(sum of x x) in f64. Each product is rounded; their sum is exact and rounded
//   once, so no order of instances or inputs changes it. x is taken times the power of two that
//   brings the largest magnitude into [1, 2), so no product overflows. Where factor = most / (norm
//   + 1e-6) is below 1, each x becomes x factor, rounded to f64 and then to the format.
//   This is torch.nn.utils.clip_grad_norm_ with norm_type 2.
// Errors: none; where the norm is not finite nothing is clipped. The norm of no numbers is 0.
#pragma once

#include <vector>

#include "precision/format.h"
#include "sim/tensor.h"
#include "sim/work_meter.h"

namespace simgrad::sim {

// Returns the norm before clipping. `most` is positive; the gradients are values of `format`.
double ClipToNorm(double most, precision::Format format, const std::vector<Tensor*>& gradients,
                  WorkMeter& meter);

}  // namespace simgrad::sim
