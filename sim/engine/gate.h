// Which site kept an input from being used: named in the answer where an input is not connected.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// What the sites of a run decided, over all its steps and instances.
struct Decided {
  struct Event {
    uint64_t checks = 0, count = 0;
  };
  std::unordered_map<std::string, uint64_t> iterations;  // by termination site
  std::unordered_map<std::string, Event> events;
  // `sites` in text order, as the diagnostics have them.
  void Add(const std::vector<Site>& sites, const StepDiagnostics& diagnostics);
};

// For each input: follows its value through `step`, past what the run decided: a body that never
// ran uses nothing, and a select on an event that was never true (or never false) has one operand.
// Where the value then arrives in no state and no export, the first site in text order that stood
// in its way: a loop in whose body it is used, or an event that chooses it. Empty where it got past
// every site (a max, a min or a rounding ended it, or nothing reads where it went), where it is not
// used at all, or where nothing was recorded.
//
// Errors: CANCELLED where the budget is told to stop. Cost: linear in the program, for all inputs
// together.
class Gates {
 public:
  static absl::StatusOr<Gates> Find(const Program& program, const Decided& decided,
                                    PassBudget* budget = nullptr);
  const std::string& Of(int32_t input) const { return gates_[static_cast<size_t>(input)]; }

 private:
  std::vector<std::string> gates_;  // by input
};

}  // namespace simgrad::sim
