#include "sim/engine/clip.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "precision/exact_sum.h"
#include "precision/rounding.h"

namespace simgrad::sim {
namespace {

// The work of one number, in element-operations.
constexpr int64_t kNumberWork = 16;

template <class Visit>
void ForEach(const std::vector<Tensor*>& gradients, WorkMeter& meter, const Visit& visit) {
  for (Tensor* gradient : gradients) {
    const int64_t count = gradient->count();
    for (int64_t k = 0; k < count; ++k) {
      meter.Add(kNumberWork);
      visit(*gradient, k);
    }
  }
}

double NormOf(const std::vector<Tensor*>& gradients, WorkMeter& meter) {
  double largest = 0;
  bool is_finite = true;
  ForEach(gradients, meter, [&](const Tensor& gradient, int64_t k) {
    const double magnitude = std::abs(gradient.Get(k));
    is_finite = is_finite && std::isfinite(magnitude);
    largest = std::max(largest, magnitude);
  });
  if (is_finite && largest == 0) return 0;
  const int exponent = is_finite ? std::ilogb(largest) : 0;
  precision::ExactSum sum;
  ForEach(gradients, meter, [&](const Tensor& gradient, int64_t k) {
    const double x = std::ldexp(gradient.Get(k), -exponent);
    sum.Add(x * x);
  });
  return std::ldexp(std::sqrt(sum.Result(precision::Format::kF64)), exponent);
}

}  // namespace

double ClipToNorm(double most, precision::Format format, const std::vector<Tensor*>& gradients,
                  WorkMeter& meter) {
  const double norm = NormOf(gradients, meter);
  const double factor = most / (norm + 1e-6);
  if (!std::isfinite(norm) || !(factor < 1)) return norm;
  ForEach(gradients, meter, [&](Tensor& gradient, int64_t k) {
    gradient.Set(k, precision::RoundTo(format, gradient.Get(k) * factor));
  });
  return norm;
}

}  // namespace simgrad::sim
