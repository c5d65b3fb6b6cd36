// Numbers the draws of a program, and adds the inputs that they read.
//
// A draw is a function of four things: its number in the text of `step`, where a call counts as its
// body each time it is made; the step; the flattened iteration and element of the loops around it;
// and the key of its instance, an input that no request names. The key is appended to
// Program::inputs, and so is the step if the world does not read it.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// The name of the key, an input of kind data. No input of a world has a space in its name.
inline constexpr char kRandomKey[] = "random key";

// Returns a program without draws as it is.
Program NumberDraws(Program program, PassBudget& budget);

// The first number of a cast in the adjoint. No program has as many operations before it.
inline constexpr int32_t kFirstAdjointDraw = 1 << 30;

// Numbers the stochastic casts that a policy asks for. Those of `step`, `initial` and terminal
// costs come behind the draws of the world, in this order; those of the adjoint begin at
// kFirstAdjointDraw. Outside steps the step counts as 0. A program without such casts stays as it
// is.
NumericalProgram NumberCasts(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
