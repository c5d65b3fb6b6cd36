#include "sim/backend/cpu/margin_window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "precision/ulp.h"

namespace simgrad::sim::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float AtMost(double x) {
  const float rounded = static_cast<float>(x);
  return static_cast<double>(rounded) > x ? std::nextafter(rounded, -kInfinity) : rounded;
}

// The largest a >= b with a - b <= reach ulp(a) / ulp(b), or more than that.
double FarthestAbove(double b, double reach, precision::Format format) {
  const double end = precision::DoublePowerOfTwo(std::ilogb(b) + 1);
  // From 4 b on, a - b is more than 3/4 of a, which is at least 2^(p-1) ulps.
  const double most = precision::DoublePowerOfTwo(precision::Traits(format).precision - 2);
  if (reach > most * precision::Ulp(format, b)) return HUGE_VAL;
  double farthest = std::min(b + reach, end);
  if (b + 2.0 * reach >= end) farthest = std::min(b + 2.0 * reach, 2.0 * end);
  if (b + 4.0 * reach >= 2.0 * end) farthest = b + 4.0 * reach;
  return farthest;
}

}  // namespace

MarginWindow::MarginWindow(const SmallestMargin& best, precision::Format format, double b,
                           double near_band_ulps)
    : best_(best), b_(b) {
  const double absolute = std::abs(best.absolute);
  const double ulps = std::abs(best.ulps);
  const double ulp = precision::Ulp(format, b);
  const double reach = std::max(absolute, ulps * ulp);
  const double near = std::max(ulps, near_band_ulps);
  // Below this much further away, b - a can be rounded to the same.
  const double rounding = b * 0x1p-52;
  const float farthest = AtMost(b - reach);
  const bool exact = b - static_cast<double>(farthest) >= reach;
  const float beaten = exact ? std::nextafter(farthest, kInfinity) : farthest;
  const float tied = AtMost(b - reach - rounding);
  const float banded = AtMost(b - near_band_ulps * ulp - rounding);
  for (int k = 0; k < 2; ++k) {
    const float least = std::min(k == 0 ? tied : beaten, banded);
    negative_[k] = !(least > 0.0f);
    low_[k] = least > 0.0f ? precision::BitsOf(least) : 0;
  }
  const double high = std::max(b + absolute, FarthestAbove(b, near * ulp, format));
  high_ = precision::BitsOf(std::nextafter(static_cast<float>(high), kInfinity));
}

void MarginWindow::Set(uint64_t smallest_id, TestWatch& watch) const {
  const bool beaten = smallest_id > std::max(best_.absolute_instance, best_.ulps_instance);
  const int k = beaten ? 1 : 0;
  watch.low = low_[k];
  watch.span = high_ - low_[k];
  watch.negative = negative_[k];
}

}  // namespace simgrad::sim::cpu
