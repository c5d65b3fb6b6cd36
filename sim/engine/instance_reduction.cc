#include "sim/engine/instance_reduction.h"

#include <algorithm>

#include "precision/arithmetic.h"
#include "precision/loss_scale.h"
#include "precision/selection.h"

namespace simgrad::sim {
namespace {

// The work of one number, in element-operations.
constexpr int64_t kNumberWork = 4;
constexpr uint64_t kLastId = ~uint64_t{0};

// Divides the loss scale out, and notes whether the scaled gradients were finite.
ReducedGradient Unscaled(std::vector<double> scaled, Format format, double loss_scale,
                         WorkMeter& meter) {
  ReducedGradient reduced;
  const float inverse = precision::InverseLossScale(loss_scale);
  for (double& g : scaled) {
    meter.Add(kNumberWork);
    reduced.finite = reduced.finite && precision::IsFinite(g);
    g = precision::Unscale(format, g, inverse);
  }
  reduced.values = std::move(scaled);
  return reduced;
}

// Nodes over the ids [first, last], of leaves round(weight * numbers of a row); row r has
// values[r * width, (r + 1) * width).
std::vector<precision::AlignedNode> NodesOf(const std::vector<double>& values, size_t width,
                                            const InstanceWeights& weights, uint64_t first,
                                            uint64_t last, const precision::RoleSetting& setting,
                                            WorkMeter& meter) {
  const auto leaf = [&](size_t place, std::span<double> numbers) {
    meter.Add(kNumberWork * static_cast<int64_t>(width));
    const size_t row = weights.rows[place];
    const double weight = weights.weights[row];
    const double* from = values.data() + row * width;
    if (setting.format == Format::kF64) {
      for (size_t k = 0; k < width; ++k) numbers[k] = precision::Canonical(weight * from[k]);
    } else if (setting.format == Format::kF32) {
      for (size_t k = 0; k < width; ++k) {
        const auto rounded = static_cast<double>(static_cast<float>(weight * from[k]));
        numbers[k] = precision::Canonical(rounded);
      }
    } else {
      for (size_t k = 0; k < width; ++k) {
        numbers[k] = precision::Mul(setting.format, weight, from[k]);
      }
    }
  };
  return precision::AlignedCover(weights.ids, first, last, width, setting.accumulator, leaf);
}

// The root of the nodes in the format of the role.
std::vector<double> SumOf(std::vector<precision::AlignedNode> nodes, size_t width,
                          const precision::RoleSetting& setting) {
  std::vector<double> sums =
      precision::MergeAlignedNodes(std::move(nodes), width, setting.accumulator);
  for (double& sum : sums) sum = precision::RoundTo(setting.format, sum);
  return sums;
}

}  // namespace

ReducedGradient SharedGradient(const std::vector<double>& gradient, const InstanceWeights& weights,
                               const precision::RoleSetting& setting, double loss_scale,
                               bool keep_tree, WorkMeter& meter) {
  const size_t n = weights.weights.empty() ? 0 : gradient.size() / weights.weights.size();
  std::vector<precision::AlignedNode> tree =
      NodesOf(gradient, n, weights, keep_tree ? weights.first : 0,
              keep_tree ? weights.last : kLastId, setting, meter);
  ReducedGradient reduced = Unscaled(SumOf(tree, n, setting), setting.format, loss_scale, meter);
  if (keep_tree) reduced.tree = std::move(tree);
  return reduced;
}

ReducedGradient GradientOfBlocks(const BlockSums& sums, size_t which,
                                 const InstanceWeights& weights,
                                 const precision::RoleSetting& setting, double loss_scale,
                                 bool keep_tree, WorkMeter& meter) {
  // The tree over the numbers of blocks, whose nodes are those over ids that far above.
  constexpr int kUp = BlockSums::kLevel;
  const size_t elements = static_cast<size_t>(sums.wanted()[which].elements);
  std::vector<uint64_t> numbers;
  for (size_t block = 0; block < sums.blocks(); ++block) {
    numbers.push_back(sums.NumberOf(block));
  }
  const uint64_t first = keep_tree ? weights.first >> kUp : 0;
  const uint64_t last = (keep_tree ? weights.last : kLastId) >> kUp;
  const auto leaf = [&](size_t place, std::span<double> to) {
    meter.Add(kNumberWork * static_cast<int64_t>(elements));
    const std::span<const double> total = sums.Total(place, which);
    std::fill(to.begin(), to.end(), 0.0);
    std::copy(total.begin(), total.end(), to.begin());
  };
  std::vector<precision::AlignedNode> tree =
      precision::AlignedCover(numbers, first, last, elements, setting.accumulator, leaf);
  for (precision::AlignedNode& node : tree) node.block.level += kUp;
  ReducedGradient reduced =
      Unscaled(SumOf(tree, elements, setting), setting.format, loss_scale, meter);
  if (keep_tree) reduced.tree = std::move(tree);
  return reduced;
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
  const float inverse = precision::InverseLossScale(loss_scale);
  for (size_t row : weights.rows) {
    bool is_zero = true;
    for (size_t k = row * n; k < (row + 1) * n; ++k) {
      meter.Add(kNumberWork);
      const double magnitude =
          precision::Abs(precision::Unscale(setting.format, gradient[k], inverse));
      if (magnitude == 0.0) continue;
      is_zero = false;
      if (!precision::IsFinite(magnitude)) continue;
      magnitudes.smallest = precision::Min(magnitudes.smallest, magnitude);
      magnitudes.largest = precision::Max(magnitudes.largest, magnitude);
    }
    magnitudes.zero += is_zero ? 1 : 0;
  }
  return magnitudes;
}

double WeightedValue(const std::vector<double>& values, const InstanceWeights& weights,
                     const precision::RoleSetting& setting, WorkMeter& meter) {
  return SumOf(NodesOf(values, 1, weights, 0, kLastId, setting, meter), 1, setting).front();
}

}  // namespace simgrad::sim
