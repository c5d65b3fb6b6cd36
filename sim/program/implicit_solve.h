// Writes the linear system of a fixed point's implicit derivative, as operations of the adjoint.
//
// Maths: w solves (1 + damping) w = g + J' w. Solver lu writes J, a row for each number that the
//   loop carries, by reversing one iteration with each unit vector. Solver iteration begins with
//   w = g and ends when no number of w changes by tol or more, or after max_iter turns. Its loop is
//   named "SITE.adjoint"; like all of the adjoint, it is not recorded.
// Cost: lu takes n reversals of an iteration and n^3; iteration takes one reversal each turn.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/program/adjoint_writer.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim {

// The most numbers that a loop may carry with solver lu: where the request names no solver, and
// where it names lu.
inline constexpr int64_t kUsualLu = 64;
inline constexpr int64_t kMostLu = 512;

// J' v, written into the innermost scope; v and the result are values of the types of g.
using Transposed = std::function<std::vector<ValueId>(const std::vector<ValueId>& v)>;

// Writes into the innermost scope, with the role and label of its context. Returns w.
std::vector<ValueId> SolveImplicit(AdjointWriter& writer, const LoopChoice& choice,
                                   const std::string& site, const std::vector<ValueId>& g,
                                   const Transposed& transposed);

}  // namespace simgrad::sim
