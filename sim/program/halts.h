// Halts: how an instance ends its run before the others.
//
// One more state, which no request names, says whether an instance has halted, where and when. Then
// the instance does not take `step`, which becomes a branch, nor the stage cost: its states stand
// still, its observables are 0, nothing is decided or counted. The step in which a halt holds
// completes. If the halt is an error, the states stay those before the step, neither its cost nor a
// terminal cost counts, and the engine leaves the instance out of gradients. If several halts hold
// in one step, the first in text counts. A terminal cost reads only states, not observables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

inline constexpr int kMostHalts = 64;
// The name of that state, the last one. No input of a world has a space in its name.
inline constexpr char kHaltedState[] = "halted at";

// The content of that state: which halt, in text order, and in which step.
struct Halt {
  int64_t step = 0;
  int32_t halt = 0;
  bool error = false;
};
std::optional<Halt> HaltOf(int64_t state);  // of 0: none

// Returns the names of the halts, in text order.
std::vector<std::string> HaltNames(const Program& program, PassBudget* budget = nullptr);

// A program without halts, and what of it is to be differentiated.
struct ExpandedHalts {
  Program program;
  std::optional<AdjointSpec> spec;
};

// Returns a program without halts as it is. Any other loses composites and copies, and gets branches
// (`cond`) and one more state, which the returned spec has too: nothing is asked of it.
ExpandedHalts ExpandHalts(Program program, std::optional<AdjointSpec> spec, PassBudget& budget);

}  // namespace simgrad::sim
