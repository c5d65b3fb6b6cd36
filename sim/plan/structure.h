// What of a plan its machine code depends on: everything but names, comments and the numbers that
// stand in tables.
//
// Plans of one structure share machine code. Cost: linear in the plan. Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

// As bytes, to be digested; different structures give different bytes.
std::string StructureOf(const Plan& plan, const std::vector<const Function*>& functions);

// With those of bodies and pieces.
int64_t StatementsOf(const std::vector<Statement>& block);
int64_t StatementsOf(const Function& function);
// Of the function, or of its largest piece.
int64_t LargestPiece(const Function& function);
// Memory that a plan holds.
int64_t HeldBytes(const Plan& plan);

}  // namespace simgrad::sim::plan
