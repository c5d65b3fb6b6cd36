// The values near a threshold whose margins could still change the diagnostics of a site's step.
//
// Maths: let A and U be the smallest |a - b| and |a - b| / ulp so far, b > 0, and N the band that
//   counts as near. A value a matters if |a - b| <= A or |a - b| <= max(U, N) ulp(max(a, b)). Below
//   b the ulp is that of b; above, it doubles with every binade.
// Accuracy: the window may hold more values than needed: one more where a - b is rounded, and all
//   of those above b where U is large.
// Threads: a value.
#pragma once

#include <cstdint>

#include "sim/backend/cpu/kernel_table.h"
#include "sim/diagnostics/diagnostics.h"

namespace simgrad::sim::cpu {

class MarginWindow {
 public:
  MarginWindow() = default;  // of nothing
  // b: a normal number of the format, which is f32 or narrower.
  MarginWindow(const SmallestMargin& best, precision::Format format, double b,
               double near_band_ulps);

  // Whether it is that of these two.
  bool IsOf(const SmallestMargin& best, double b) const { return b_ == b && best_ == best; }
  // For lanes whose smallest id is this: margins that only equal the best ones do not matter if the
  // ids are larger.
  void Set(uint64_t smallest_id, TestWatch& watch) const;

 private:
  SmallestMargin best_;
  double b_ = 0.0;
  uint32_t low_[2] = {};  // where equal margins matter, where they do not
  uint32_t high_ = 0;
  bool negative_[2] = {};
};

}  // namespace simgrad::sim::cpu
