// The canonical text of a program, for people and for the fingerprint.
//
// Values are numbered in the order in which the text defines them, numbers are hexadecimal floats,
// so equal programs give equal texts whatever ids they were built with.
#pragma once

#include <string>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// `budget` is told the length of the text as it grows.
std::string Print(const NumericalProgram& numerical, PassBudget* budget = nullptr);
// An unassigned world, for messages and tests.
std::string Print(const Program& program);

// SHA-256 of `text`, 64 lower-case hexadecimal digits.
std::string Fingerprint(const std::string& text, PassBudget* budget = nullptr);

}  // namespace simgrad::sim
