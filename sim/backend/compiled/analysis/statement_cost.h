// How much work the statements of a plan are, and what is found among them.
//
// Units: a statement that runs once costs 1, so a loop costs as many as it has turns of each.
// Cost: linear in the statements, for each loop around them. Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// Statements that run once the block does.
int64_t CostOf(const std::vector<plan::Statement>& statements);

// A loop that counts its turns itself; the turns of others are counted by the block around.
bool IsLong(const plan::Statement& s);

bool HasLoop(const std::vector<plan::Statement>& statements);

// Whether they are calls, loads, stores and constants: one of them costs little.
bool IsArithmetic(const std::vector<plan::Statement>& statements);

// Whether an addition among them is recorded.
bool HasAddition(const std::vector<plan::Statement>& statements);

// Whether they may be written twice: they leave nothing but what they store, and are short.
bool MayBeWrittenTwice(const std::vector<plan::Statement>& statements);

// The most that statements without loops add to a counter of ranges or additions.
int64_t MostCounted(const std::vector<plan::Statement>& statements);

// Whether a frame is pushed on the tape.
bool HasPush(const std::vector<plan::Statement>& statements);

}  // namespace simgrad::sim::compiled
