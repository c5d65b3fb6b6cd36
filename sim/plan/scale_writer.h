// Writes the magnitudes at which margins of compared values are counted.
//
// Maths: where the program states a level of tests, the scale of both values (sim/program/compared_scale.h);
//   else the operands of the additions that made them (sim/program/compared_sum.h).
// Errors: none. Cost: bounded for a value (kMostScaleNodes). Threads: pure.
#pragma once

#include <vector>

#include "sim/plan/values.h"
#include "sim/program/compared_scale.h"

namespace simgrad::sim::plan {

// The operands of the additions behind one compared value.
struct Summands {
  const Op* sum = nullptr;
  size_t first = 0;              // of its operands in a list of views
  std::vector<ScaleNode> scale;  // instead, in programs with a level
  std::vector<size_t> of_nodes;  // by node: the first of its views: its own, those of its operands
};

class ScaleWriter {
 public:
  ScaleWriter(const Program& program, Values& values, StatementWriter& out)
      : program_(program), values_(values), out_(out) {}

  // Adds the views that Extra reads.
  Summands SummandsOf(ValueId compared, std::vector<View>& views);
  // The larger magnitude behind two compared values; none: there is none.
  Register Extra(const Summands& lhs, const Summands& rhs, const Read& read);

 private:
  Summands ScaleViews(ValueId compared, std::vector<View>& views);
  View Moved(View view, const std::vector<const Op*>& moves);
  Register ScaleAt(const Summands& summands, const Read& read);
  Register Larger(Register a, Register b);
  Register WideMagnitude(const char* of, Register a, Register b);
  Register LargerNumber(Register own, Register behind);

  const Program& program_;
  Values& values_;
  StatementWriter& out_;
};

}  // namespace simgrad::sim::plan
