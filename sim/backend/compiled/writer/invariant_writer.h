// Writes invariant loops (plan/invariants.h): they run in a step only if no earlier step of the group
// left what they store.
//
// Maths: a loop runs where it has not run for each lane that takes part now. Where one counts a range, all run
//   again in the next step, so that every step counts it.
// Errors: none. Threads: one per module.
#pragma once

#include <functional>

#include "sim/backend/compiled/writer/function_builder.h"
#include "sim/backend/compiled/writer/function_writer.h"
#include "sim/backend/compiled/writer/record_writer.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// Whether the function may use what its invariant loops stored in an earlier step.
bool ReusesInvariants(const FunctionBuilder& function, StepOrder order);

class InvariantWriter {
 public:
  InvariantWriter(FunctionBuilder& function, RecordWriter& records)
      : f_(function), b_(function.b()), records_(records) {}

  // Begins a function that reuses them; without it, they run in each step.
  void Begin();
  bool Reuses(const plan::Statement& s) const { return s.invariant && counted_ != nullptr; }
  // `write` writes the loop.
  void Each(const std::function<void()>& write);
  void EndStep();

 private:
  FunctionBuilder& f_;
  llvm::IRBuilder<>& b_;
  RecordWriter& records_;
  llvm::Value* counted_ = nullptr;  // an i32, not 0 once a range was counted
};

}  // namespace simgrad::sim::compiled
