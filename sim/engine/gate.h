// Finds the site that kept an input from being used. An answer names it if an input is not
// connected.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/engine.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// The decisions of a run's sites, over all its steps and instances.
struct Decided {
  struct Event {
    uint64_t checks = 0, count = 0;
  };
  std::unordered_map<std::string, uint64_t> iterations;  // by termination site
  std::unordered_map<std::string, uint64_t> at_cap;      // runs that ended there, likewise
  std::unordered_map<std::string, Event> events;
  // `sites` in text order, as the diagnostics have them.
  void Add(const std::vector<Site>& sites, const StepDiagnostics& diagnostics);
  // Returns the loops that have an implicit derivative and runs at their caps, in the order of
  // `loops`.
  std::vector<Unconverged> UnconvergedOf(const std::vector<LoopChoice>& loops) const;
};

// Finds the site that blocks each input. It follows the value of an input through `step`, given
// what the run decided: a body that never ran uses nothing, and a select on an event that was never
// true (or never false) has one operand. If the value then reaches no state and no export, the
// answer is the first site in text order that blocked it: a loop whose body uses it, or an event
// that chooses it. The answer is empty if no site blocked it (a max, a min or a rounding ended it,
// or its result is not read), if it is not used at all, or if nothing was recorded.
//
// Errors: CANCELLED if the budget says so. Cost: linear in the program, for all inputs together.
class Gates {
 public:
  static absl::StatusOr<Gates> Find(const Program& program, const Decided& decided,
                                    PassBudget* budget = nullptr);
  const std::string& Of(int32_t input) const { return gates_[static_cast<size_t>(input)]; }

 private:
  std::vector<std::string> gates_;  // by input
};

}  // namespace simgrad::sim
