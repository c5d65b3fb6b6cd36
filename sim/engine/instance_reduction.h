// Reduces what every instance gave to what the caller asked for: weighted sums over instances.
//
// Maths: docs/numerics.md section 6: each contribution is round(weight * g) in the format of role
//   gradient; shared inputs are summed element by element in the pairwise tree aligned to the
//   instance ids, in the role's accumulator, and rounded to the role; then the loss scale is
//   divided out: round(sum * inv). Values likewise in role objective, without a loss scale.
// Errors: none; the meter counts every number, and may end it (StopRequested). Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "precision/aligned_sum.h"
#include "precision/policy.h"
#include "sim/backend/executor.h"
#include "sim/backend/instance_weights.h"
#include "sim/engine.h"

namespace simgrad::sim {

struct ReducedGradient {
  std::vector<double> values;
  bool finite = true;  // every scaled gradient was
  // If it was asked for: the aligned nodes over the ids of the request, in the accumulator of the
  // role, with the loss scale.
  std::vector<precision::AlignedNode> tree;
};

// `gradient`: [instances][n]. Shared: [n].
ReducedGradient SharedGradient(const std::vector<double>& gradient, const InstanceWeights& weights,
                               const precision::RoleSetting& setting, double loss_scale,
                               bool keep_tree, WorkMeter& meter);
// The same for an input declared weights: sums.wanted()[which].
ReducedGradient GradientOfBlocks(const BlockSums& sums, size_t which,
                                 const InstanceWeights& weights,
                                 const precision::RoleSetting& setting, double loss_scale,
                                 bool keep_tree, WorkMeter& meter);
// One row per instance; rows that do not count are +0.
ReducedGradient PerInstanceGradient(const std::vector<double>& gradient,
                                    const InstanceWeights& weights,
                                    const precision::RoleSetting& setting, double loss_scale,
                                    WorkMeter& meter);

// `gradient`: [instances][n], as accumulated.
GradientMagnitudes MagnitudesOf(const std::vector<double>& gradient, const InstanceWeights& weights,
                                const precision::RoleSetting& setting, double loss_scale,
                                WorkMeter& meter);

double WeightedValue(const std::vector<double>& values, const InstanceWeights& weights,
                     const precision::RoleSetting& setting, WorkMeter& meter);

}  // namespace simgrad::sim
