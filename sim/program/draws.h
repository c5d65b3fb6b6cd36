// Numbers the draws of a program, and gives it the inputs that they hang on.
//
// A draw is a function of its number in the text of `step`, which counts calls where they are made;
// of the step; of the flattened iteration and element of the loops around; and of the key of its
// instance, an input that no request names. Program::inputs gets it at the end, and the step where
// the world does not read it.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// What the key is called, among the inputs of kind data; no input of a world has a space in its name.
inline constexpr char kRandomKey[] = "random key";

// A program without draws stays as it is.
Program NumberDraws(Program program, PassBudget& budget);

// Of casts in the adjoint; no program has as many operations before them.
inline constexpr int32_t kFirstAdjointDraw = 1 << 30;

// Numbers the stochastic casts that a policy asks for, behind the draws of the world: those of `step`,
// `initial` and terminal costs in the order of the text, and from kFirstAdjointDraw on those of the
// adjoint. Outside steps the step counts as 0. A program without such casts stays as it is.
NumericalProgram NumberCasts(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
