#include "sim/plan/view.h"

#include <utility>

namespace simgrad::sim::plan {

View ElementOf(const View& view, Register element) { return CountedElement(view, element, false); }

View CountedElement(const View& view, Register counter, bool descends) {
  View one = view;
  one.shape.erase(one.shape.begin());
  if (view.all != kNoRegister) return one;
  const int64_t stride = view.strides[0];
  if (descends) one.start.base += (view.shape[0] - 1) * stride;
  if (stride != 0) one.start.terms.emplace_back(counter, descends ? -stride : stride);
  one.strides.erase(one.strides.begin());
  return one;
}

View Rearranged(View view, const std::vector<Lowering::Along>& axes, Shape shape) {
  const std::vector<int64_t> strides = std::move(view.strides);
  const Shape own = std::exchange(view.shape, std::move(shape));
  view.strides.clear();
  if (view.all != kNoRegister) return view;
  view.strides.assign(view.shape.size(), 0);
  for (size_t k = 0; k < axes.size(); ++k) {
    view.start.base += axes[k].start * strides[k];
    if (axes[k].axis < 0 || own[k] == 1) continue;
    view.strides[static_cast<size_t>(axes[k].axis)] = axes[k].step * strides[k];
  }
  return view;
}

}  // namespace simgrad::sim::plan
