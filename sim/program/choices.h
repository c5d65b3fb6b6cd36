// Writes, beside an operation that chooses by reals, the pair of reals that decided.
//
// Maths: of argmax and argmin the winner and the runner-up; of argsort each element in order and
//   the next one, of the first key of reals; of lu_permutation by column the magnitudes of the pivot
//   and the runner-up; of cholesky each pivot and 0; of the conversion of a real x to an integer |x|
//   and the nearest integer but 0. A pair is told in the format in which the operation compares.
// Cost: of `argsort` and `argmax` a few passes over what they read; pivots cost nothing more.
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "sim/program/program.h"

namespace simgrad::sim {

// Whether integers, or whether a result is a number, hang on a comparison of reals inside `op`.
bool ChoosesByReals(const Program& program, const Op& op);

// What its test is called where nothing names it.
std::string OwnNameOfChoice(const Op& op);

// Appends `op` and its test, a choice or an event of the given site; nothing else gives the values
// that the results of `op` had.
void WriteChoice(Program& program, Op op, const std::string& site, TestKind kind,
                 std::vector<Op>& out);

}  // namespace simgrad::sim
