#include "sim/plan/tape_bound.h"

#include <algorithm>

#include "sim/plan/tape_plan.h"

namespace simgrad::sim::plan {
namespace {

class Bound {
 public:
  Bound(const NumericalProgram& from, const NumericalProgram& to) : from_(from), to_(to) {}

  // False: there is no bound.
  bool Visit(const Region& from, const Region& to) {
    const FrameLayout* const known = from_.Of(from);
    const FrameLayout* const asked = to_.Of(to);
    const int64_t known_bytes = known == nullptr ? 0 : known->bytes;
    const int64_t asked_bytes = asked == nullptr ? 0 : asked->bytes;
    if (asked_bytes > 0 && known_bytes == 0) return false;
    if (asked_bytes > 0) {
      ratio_ =
          std::max(ratio_, static_cast<double>(asked_bytes) / static_cast<double>(known_bytes));
    }
    if (from.ops.size() != to.ops.size()) return false;
    for (size_t i = 0; i < from.ops.size(); ++i) {
      const Op& one = from.ops[i];
      const Op& other = to.ops[i];
      if (one.code != other.code || one.regions.size() != other.regions.size()) return false;
      for (size_t k = 0; k < one.regions.size(); ++k) {
        if (!Visit(one.regions[k], other.regions[k])) return false;
      }
    }
    return true;
  }
  double ratio() const { return ratio_; }

 private:
  const TapePlan from_;
  const TapePlan to_;
  double ratio_ = 0;
};

}  // namespace

std::optional<double> TapeBound(const NumericalProgram& from, const NumericalProgram& to) {
  Bound bound(from, to);
  if (!bound.Visit(from.program.step, to.program.step)) return std::nullopt;
  return bound.ratio();
}

}  // namespace simgrad::sim::plan
