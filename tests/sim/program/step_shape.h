// The shape of presence of a small world's step, whose yields are entered and whose states are left.
// Every real value has a cotangent.
#pragma once

#include <vector>

#include "sim/program/builder.h"
#include "sim/program/loop_captures.h"
#include "sim/program/pass_budget.h"
#include "sim/program/presence_shape.h"

namespace simgrad::sim::tests {

class StepShape {
 public:
  explicit StepShape(Builder& b)
      : program_(b.program()),
        takes_(TakesOf(program_)),
        captures_({&program_.step}, takes_, budget_),
        shape_(presence::ShapeReader(program_, takes_, captures_, budget_)
                   .Read(program_.step, program_.step.yields, StatesOf(program_))) {}
  const presence::RegionShape& get() const { return shape_; }
  PassBudget& budget() { return budget_; }

 private:
  static std::vector<bool> TakesOf(const Program& program) {
    std::vector<bool> takes;
    for (const Value& value : program.values) {
      takes.push_back(value.type.element == ElementType::kReal);
    }
    return takes;
  }
  static std::vector<ValueId> StatesOf(const Program& program) {
    std::vector<ValueId> states;
    for (int32_t index : program.InputsOf(InputKind::kState)) {
      states.push_back(program.inputs[static_cast<size_t>(index)].value);
    }
    return states;
  }

  Program& program_;
  PassBudget budget_;
  std::vector<bool> takes_;
  LoopCaptures captures_;
  presence::RegionShape shape_;
};

}  // namespace simgrad::sim::tests
