// The values a random region may use, by element type.
#pragma once

#include <algorithm>
#include <set>
#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/equality/random.h"

namespace simgrad::sim::equality {

struct ValuePool {
  Vars reals;
  Vars i32s;
  Vars i64s;
  Vars u32s;
  Vars u8s;
  Vars choices;    // bools that a select may hang on
  Vars anonymous;  // bools that come from a comparison of reals
  // Made here and used by nothing yet.
  std::set<ValueId> unused;

  Vars& Of(ElementType element) {
    switch (element) {
      case ElementType::kI32:
        return i32s;
      case ElementType::kI64:
        return i64s;
      case ElementType::kU32:
        return u32s;
      case ElementType::kU8:
        return u8s;
      case ElementType::kBool:
        return choices;
      case ElementType::kReal:
        break;
    }
    return reals;
  }

  static Vars OfShape(const Vars& values, const Shape& shape) {
    Vars found;
    for (const Var& x : values) {
      if (x.shape() == shape) found.push_back(x);
    }
    return found;
  }

  template <typename Keep>
  static Vars Where(const Vars& values, const Keep& keep) {
    Vars found;
    std::copy_if(values.begin(), values.end(), std::back_inserter(found), keep);
    return found;
  }

  // The pool inside a region: what is visible, nothing of it unused here.
  ValuePool Inside() const {
    ValuePool inside = *this;
    inside.unused.clear();
    return inside;
  }

  // Inside a loop per element only these can be seen.
  ValuePool Only(const std::set<ValueId>& visible) const {
    ValuePool inside;
    const auto keep = [&](const Var& x) { return visible.count(x.id) != 0; };
    inside.reals = Where(reals, keep);
    inside.i32s = Where(i32s, keep);
    inside.i64s = Where(i64s, keep);
    inside.u32s = Where(u32s, keep);
    inside.u8s = Where(u8s, keep);
    inside.choices = Where(choices, keep);
    return inside;
  }
};

}  // namespace simgrad::sim::equality
