// Halts: how an instance ends its run before the others.
//
// A state of its own, which no request names, says whether an instance has halted, where and when. `step` becomes a
// branch that such an instance does not take: its states stand still, its observables are 0, nothing is
// decided or counted. So does the stage cost. The step in which a halt holds completes; with `error`
// its states are those before it, neither its cost nor a terminal cost counts, and the engine leaves the
// instance out of gradients. Of several halts that hold in one step the first in text counts.
// A terminal cost reads states alone, as observables do not stand.
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
// What the state is called; no input of a world has a space in its name. It is the last state.
inline constexpr char kHaltedState[] = "halted at";

// What the state holds: which halt, in the order of the text, in which step.
struct Halt {
  int64_t step = 0;
  int32_t halt = 0;
  bool error = false;
};
std::optional<Halt> HaltOf(int64_t state);  // of 0: none

// In text order.
std::vector<std::string> HaltNames(const Program& program, PassBudget* budget = nullptr);

// A program without halts stays as it is; else it has one more state, and `spec` follows it.
Program ExpandHalts(Program program, std::optional<AdjointSpec>& spec, PassBudget& budget);

}  // namespace simgrad::sim
