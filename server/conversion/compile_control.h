// The budget of the passes over a caller's program, and the signal for them to end.
//
// The passes count what they write (sim/program/pass_budget.h); memory is asked for as it grows, so
// that a program that lowers to much takes it from others' sight.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "sim/program/pass_budget.h"

namespace simgrad::server::conversion {

struct CompileControl {
  // Asked now and then; true: end. Empty: never.
  std::function<bool()> stop;
  // Memory for so many bytes in all; false: it is not to be had now. Empty: it always is.
  std::function<bool(int64_t total_bytes)> reserve;
};

// One program on its way through the passes.
class Compilation {
 public:
  explicit Compilation(const CompileControl& control);
  sim::PassBudget* budget() { return &budget_; }
  // A status of the passes as a caller is told it: with a reason, and RESOURCE_EXHAUSTED where
  // memory ended them. `reason`: of what is wrong with the program.
  absl::Status StatusOf(const absl::Status& status, const char* reason) const;

 private:
  bool Stops();

  const CompileControl& control_;
  int64_t reserved_bytes_ = 0;
  bool out_of_memory_ = false;
  sim::PassBudget budget_;
};

}  // namespace simgrad::server::conversion
