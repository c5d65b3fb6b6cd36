// Gradients of weights that are outer products, known by their factors.
//
// The vjp of a layer of one row, x W, gives W the product of x, a column, and of the cotangent, a
// row. Where that is all that a reversed step gives to a param declared weights, its rows + columns
// factors say as much as its rows * columns cells, which an executor sums over instances then
// (BlockSums::GiveProduct).
// Errors: none. Cost: linear in the adjoint. Threads: pure.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "sim/plan/plan.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::plan {

struct OuterProducts {
  std::vector<OuterProduct> of_steps;  // ascending by input
  // The operations that accumulate them, and those that would compute their cells.
  std::map<const Op*, const Op*> made_by;  // accumulate: its matmul
  std::set<const Op*> unread;              // these matmuls: nothing else reads their cells
};

// Those of every reversed step: of reals in the format of role gradient, present in all instances,
// accumulated once. An input to which `initial` or the terminal cost gives something is not among them.
OuterProducts OuterProductsOf(const NumericalProgram& numerical);

}  // namespace simgrad::sim::plan
