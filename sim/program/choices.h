// Writes, beside an operation that chooses by reals, the pair of reals that decided.
//
// Maths: the pair of each operation:
//     argmax, argmin: the winner and the runner-up
//     argsort: each element in order and the next one, of the first key of reals
//     lu_permutation: by column, the magnitudes of the pivot and of the runner-up; infinity and 0 where
//       no other row is left
//     cholesky: each pivot and 0
//     conversion of a real x to an integer: |x| and the nearest integer other than 0;
//       of floor(x) or ceil(x): x and the nearest integer; of round(x): |x| and the nearest half, or the
//       next larger number where halves are no numbers of the format; of trunc(x): as of x
//       Behind operations of shape and gathers x is moved as they move what was made whole.
//   The pair has the format in which the operation compares.
// Cost: `argsort` and `argmax` take a few passes over what they read; pivots cost nothing more.
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Returns whether a comparison of reals inside `op` decides integers, or whether a result is a
// number.
bool ChoosesByReals(const Program& program, const Op& op);

// Returns the name of its test for a program that gives it none.
std::string OwnNameOfChoice(const Op& op);

// A floor, ceil, trunc or round, and its operand. `moves` took its result to where it is read: each
// gives elements of its first operand, in text order; the first takes the result, the others the one before.
struct Rounding {
  OpCode code;
  ValueId operand;
  std::vector<Op> moves = {};
};

// Appends `op` and its test, a choice or an event with the given site. `whole` is what
// made whole what a conversion converts, else nothing. Together they define the
// values that were the results of `op`. The budget counts the values that are written, not the
// operations.
void WriteChoice(Program& program, Op op, std::optional<Rounding> whole, const std::string& site,
                 TestKind kind, std::vector<Op>& out, PassBudget& budget);

}  // namespace simgrad::sim
