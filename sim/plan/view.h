// The elements of a value while statements are written, and what moves them without a statement.
//
// Threads: pure.
#pragma once

#include <utility>
#include <vector>

#include "sim/op/lowering.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

// A register that holds for every element, or elements of a buffer.
struct View {
  Carrier carrier = Carrier::kF32;
  Shape shape;
  Register all = kNoRegister;  // set: every element
  BufferId buffer = kNoBuffer;
  Index start;                   // of element 0
  std::vector<int64_t> strides;  // by axis; 0: repeated
  bool set() const { return all != kNoRegister || buffer != kNoBuffer; }
  static View Splat(Carrier carrier, Shape shape, Register all) {
    return {carrier, std::move(shape), all, kNoBuffer, {}, {}};
  }
};

// The element of the leading axis with this number, or counted from the last one down.
View ElementOf(const View& view, Register element);
View CountedElement(const View& view, Register counter, bool descends);
// The view of another shape that takes the elements so, by axis of its operand.
View Rearranged(View view, const std::vector<Lowering::Along>& axes, Shape shape);

}  // namespace simgrad::sim::plan
