// The canonical text of a program, for people and for the fingerprint.
//
// Values are numbered in the order in which the text defines them, numbers are hexadecimal floats,
// so equal programs give equal texts whatever ids they were built with.
#pragma once

#include <string>
#include <string_view>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// `budget` is told the length of the text as it grows.
std::string Print(const NumericalProgram& numerical, PassBudget* budget = nullptr);
// The text, and what of it the forward pass alone would have: its head without the loss scale, and
// its body without the adjoint.
struct ProgramText {
  std::string text;
  size_t head_end = 0;
  size_t body_begin = 0, body_end = 0;
};
ProgramText PrintParts(const NumericalProgram& numerical, PassBudget* budget = nullptr);
// An unassigned world, for messages and tests.
std::string Print(const Program& program);

// SHA-256 of `text`, 64 lower-case hexadecimal digits.
std::string Fingerprint(std::string_view text, PassBudget* budget = nullptr);
// The same of what `text` has of the forward pass: equal where two programs compute the same forward,
// with or without an adjoint.
std::string ForwardFingerprint(const ProgramText& text, PassBudget* budget = nullptr);

}  // namespace simgrad::sim
