#include "sim/engine/instance_reduction.h"

#include <algorithm>
#include <numeric>

#include "precision/aligned_sum.h"
#include "precision/loss_scale.h"
#include "precision/selection.h"

namespace simgrad::sim {
namespace {

// Of one number, in element-operations.
constexpr int64_t kNumberWork = 4;

// Divides the loss scale out, and notes whether the scaled gradients were finite.
ReducedGradient Unscaled(std::vector<double> scaled, Format format, double loss_scale,
                         WorkMeter& meter) {
  ReducedGradient reduced;
  const float inverse = precision::InverseLossScale(static_cast<float>(loss_scale));
  for (double& g : scaled) {
    meter.Add(kNumberWork);
    reduced.finite = reduced.finite && precision::IsFinite(g);
    g = precision::Unscale(format, g, inverse);
  }
  reduced.values = std::move(scaled);
  return reduced;
}

// Sum over instances of round(weight * value), value of row r at values[r * stride + offset].
double TreeSum(const std::vector<double>& values, size_t stride, size_t offset,
               const InstanceWeights& weights, const precision::RoleSetting& setting,
               WorkMeter& meter) {
  std::vector<double> leaves;
  leaves.reserve(weights.rows.size());
  for (size_t row : weights.rows) {
    meter.Add(kNumberWork);
    leaves.push_back(
        precision::Mul(setting.format, weights.weights[row], values[row * stride + offset]));
  }
  return precision::RoundTo(setting.format,
                            precision::AlignedPairwise(weights.ids, leaves, setting.accumulator));
}

}  // namespace

InstanceWeights WeightsOf(const std::vector<uint64_t>& instance_ids,
                          const std::vector<double>& weights, const std::vector<bool>& leave_out) {
  InstanceWeights made;
  const size_t n = instance_ids.size();
  made.weights = weights.empty() ? std::vector<double>(n, 1.0) : weights;
  for (size_t row = 0; row < n; ++row) {
    if (leave_out.empty() || !leave_out[row]) made.rows.push_back(row);
  }
  std::sort(made.rows.begin(), made.rows.end(),
            [&](size_t a, size_t b) { return instance_ids[a] < instance_ids[b]; });
  for (size_t row : made.rows) made.ids.push_back(instance_ids[row]);
  return made;
}

ReducedGradient SharedGradient(const std::vector<double>& gradient, const InstanceWeights& weights,
                               const precision::RoleSetting& setting, double loss_scale,
                               WorkMeter& meter) {
  const size_t n = weights.weights.empty() ? 0 : gradient.size() / weights.weights.size();
  std::vector<double> sums;
  for (size_t k = 0; k < n; ++k) sums.push_back(TreeSum(gradient, n, k, weights, setting, meter));
  return Unscaled(std::move(sums), setting.format, loss_scale, meter);
}

ReducedGradient PerInstanceGradient(const std::vector<double>& gradient,
                                    const InstanceWeights& weights,
                                    const precision::RoleSetting& setting, double loss_scale,
                                    WorkMeter& meter) {
  const size_t n = weights.weights.empty() ? 0 : gradient.size() / weights.weights.size();
  std::vector<double> rows;
  ResizeInPieces(meter, rows, gradient.size());
  for (size_t row : weights.rows) {
    for (size_t k = row * n; k < (row + 1) * n; ++k) {
      meter.Add(kNumberWork);
      rows[k] = precision::Mul(setting.format, weights.weights[row], gradient[k]);
    }
  }
  return Unscaled(std::move(rows), setting.format, loss_scale, meter);
}

GradientMagnitudes MagnitudesOf(const std::vector<double>& gradient, const InstanceWeights& weights,
                                const precision::RoleSetting& setting, double loss_scale,
                                WorkMeter& meter) {
  GradientMagnitudes magnitudes;
  const size_t n = weights.weights.empty() ? 0 : gradient.size() / weights.weights.size();
  const float inverse = precision::InverseLossScale(static_cast<float>(loss_scale));
  for (size_t row : weights.rows) {
    bool is_zero = true;
    for (size_t k = row * n; k < (row + 1) * n; ++k) {
      meter.Add(kNumberWork);
      if (gradient[k] == 0.0) continue;
      is_zero = false;
      const double magnitude =
          precision::Abs(precision::Unscale(setting.format, gradient[k], inverse));
      if (!precision::IsFinite(magnitude) || magnitude == 0.0) continue;
      magnitudes.smallest = precision::Min(magnitudes.smallest, magnitude);
      magnitudes.largest = precision::Max(magnitudes.largest, magnitude);
    }
    magnitudes.zero += is_zero ? 1 : 0;
  }
  return magnitudes;
}

double WeightedValue(const std::vector<double>& values, const InstanceWeights& weights,
                     const precision::RoleSetting& setting, WorkMeter& meter) {
  return TreeSum(values, 1, 0, weights, setting, meter);
}

}  // namespace simgrad::sim
