// The canonical text of a program, for people and for the fingerprint.
//
// Values are numbered in the order in which the text defines them, numbers are hexadecimal floats,
// so equal programs give equal texts whatever ids they were built with.
#pragma once

#include <string>

#include "sim/program/numerical_program.h"

namespace simgrad::sim {

std::string Print(const NumericalProgram& numerical);
// An unassigned world, for messages and tests.
std::string Print(const Program& program);

// SHA-256 of `text`, 64 lower-case hexadecimal digits.
std::string Fingerprint(const std::string& text);

}  // namespace simgrad::sim
