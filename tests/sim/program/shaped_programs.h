// Worlds of one shape and any size: what makes a pass slow if it is not linear.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "sim/program/lower.h"
#include "sim/program/program.h"

namespace simgrad::sim::shaped {

// `while` in the test region of `while`, `depth` deep, `inner` operations beside each.
Program NestedTests(int depth, int inner);
// `for` in `for`, `depth` deep, each carrying `carried` values that move on by one per iteration.
Program NestedShifts(int depth, int carried);
// One loop whose `carried` values move on by one per iteration; only the first is used at the end.
Program ShiftedFor(int carried);
Program ShiftedWhile(int carried);
// `states` states that move on by one per step.
Program ShiftedStates(int states);
// `exports` exports of one value that no operation makes.
Program Exports(int exports);
// One concat of `operands` operands.
Program WideConcat(int operands);
// A chain of `length` operations.
Program Chain(OpCode code, int length);
// A chain of explicit casts, each of a value that is used in another role as well.
Program Casts(int length);
// A loop that reads `captures` values of the step.
Program Captures(int captures);
// One call with a vjp of its own, of `values` arguments and as many results; reals, or integers that
// an integer state is made of.
Program WideCall(int values);
Program WideIntegerCall(int values);
// `tests` times is_finite of one state.
Program FiniteTests(int tests);
// A chain of `length` operations that an error halts, and another of a quarter, all exports.
Program HaltingChain(int length);
// `pairs` loops, each followed by an event that reads its result.
Program LoopsAndEvents(int pairs);
// A sum over `reads` values of the step, in role objective.
Program ObjectiveReads(int reads);

// `params` params and `states` states, which `events` events move; `exports` exports. The objective "end" is of the
// last states.
Program ManyOfAll(int states, int params, int events, int exports);

// Everything that can be wanted, for `objective`; without one, a cotangent of every real state.
AdjointSpec WantedOf(const Program& world, const std::string& objective);

}  // namespace simgrad::sim::shaped
