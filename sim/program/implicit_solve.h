// Writes the linear system of a fixed point's implicit derivative, as operations of the adjoint.
//
// Maths: w solves (1 + damping) w = g + J' w. Solver lu writes J, a row for each number that the
//   loop carries, by reversing one iteration with each unit vector. Solver iteration begins with
//   w = g and ends when no number of w changes by tol or more, or after max_iter turns. Solver gmres
//   begins with w = 0 and ends where the residual r = g - A w, A = 1 + damping - J', has |r| <= tol
//   |g| (Euclidean), or after max_iter turns. Either loop is named "SITE.adjoint"; it is not recorded
//   as a site is, but tells how it ended (told.h).
// Gmres: each turn makes one product and the w of least |r| over one direction more, up to `restart`
//   of them, then begins anew from r. Of a direction z, A z is made orthogonal to the basis by
//   modified Gram-Schmidt, newest row first, and z follows it, so that w moves with r and no least
//   squares remain (Walker and Zhou 1994, "A simpler GMRES"; z is r where |r| fell below 0.9 of what
//   it was, else the newest row of the basis: Jiranek and Rozloznik 2010). Where |r| seems to be
//   small enough, or A z is in the basis but for rounding, the next product is A w, and r is made of
//   that. The w of the smallest such r is the result.
// Tolerance: where the request says none, tol follows the format that the solve computes in, eps the
//   distance of its neighbours at 1. Gmres: max(1e-9, 4 eps). Iteration: 1e-9, or the smallest
//   number of the formats where that is larger; other than in f64 it also ends where no number of w
//   changes by 2 eps of the largest, as rounded turns may go on changing by that for ever.
// Cost: lu takes n reversals of an iteration and n^3; iteration and gmres take one reversal each turn,
//   gmres 6 restart n operations more, and 2 restart n numbers.
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
// Rows of the basis of gmres where the request does not say, and the most numbers of a basis.
inline constexpr int64_t kUsualRestart = 20;
inline constexpr int64_t kMostBasis = int64_t{1} << 20;

// J' v, written into the innermost scope; v and the result are values of the types of g.
using Transposed = std::function<std::vector<ValueId>(const std::vector<ValueId>& v)>;

// Writes into the innermost scope, with the role and label of its context. `ran`: a bool, whether the loop had
// an iteration; J' is 0 where it had none, and then no solve is told.
// `policy`: of the program. Returns w.
std::vector<ValueId> SolveImplicit(AdjointWriter& writer, const LoopChoice& choice,
                                   const std::string& site, const std::vector<ValueId>& g,
                                   ValueId ran, const precision::Policy& policy,
                                   const Transposed& transposed);

}  // namespace simgrad::sim
