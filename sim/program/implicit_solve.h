// The linear system that a fixed point's implicit derivative asks for, as operations of the adjoint.
//
// Maths: w with (1 + damping) w = g + J' w, by lu: J a row for each number that the loop carries, by reversing
//   one iteration with each unit vector; or by iteration from w = g, until no number of w changes by tol or
//   more, or max_iter times. Its loop is named "SITE.adjoint" and, as all of the adjoint, not recorded.
// Cost: lu n reversals of an iteration and n^3; iteration a reversal each time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/program/adjoint_writer.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim {

// The most numbers that a loop may carry where lu is the solver: chosen by itself, and at all.
inline constexpr int64_t kUsualLu = 64;
inline constexpr int64_t kMostLu = 512;

// J' v, written into the innermost scope; v and the result are values of the types of g.
using Transposed = std::function<std::vector<ValueId>(const std::vector<ValueId>& v)>;

// Writes into the innermost scope, with the role and label of its context, and gives w.
std::vector<ValueId> SolveImplicit(AdjointWriter& writer, const LoopChoice& choice,
                                   const std::string& site, const std::vector<ValueId>& g,
                                   const Transposed& transposed);

}  // namespace simgrad::sim
