// The structure of a plan: all that its machine code depends on, which is everything but names,
// comments and the numbers in tables.
//
// Plans of one structure share machine code. Cost: linear in the plan. Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

// Returns it as bytes, to be digested; different structures give different bytes.
std::string StructureOf(const Plan& plan, const std::vector<const Function*>& functions);

// Counts statements, those of bodies and pieces included.
int64_t StatementsOf(const std::vector<Statement>& block);
int64_t StatementsOf(const Function& function);
// Returns the statements of the function, or of its largest piece.
int64_t LargestPiece(const Function& function);
// Returns the memory that a plan holds.
int64_t HeldBytes(const Plan& plan);

}  // namespace simgrad::sim::plan
