// In how many cases linear algebra has a form: leading axes before those of the matrices, a matrix
// that is not square.
#pragma once

#include "sim/program/numerical_program.h"

namespace simgrad::sim::equality {

struct LinearCoverage {
  int batched_cholesky = 0;
  int batched_triangular = 0;  // triangular_solve
  // Reversed, where nothing else of the case gives its adjoint a batched triangular_solve.
  int batched_cholesky_vjp = 0;
  int batched_triangular_vjp = 0;
  int tall_lu = 0;  // more rows than columns
  int wide_lu = 0;  // fewer
  int tall_permutation = 0;
  int wide_permutation = 0;

  void Add(const NumericalProgram& numerical);
};

}  // namespace simgrad::sim::equality
