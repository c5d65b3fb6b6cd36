// How often the products of matrices of random cases are read and added in each way.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {

class MatmulCoverage {
 public:
  void Add(const Case& made);

  int cases() const { return cases_; }
  std::string Table() const;
  // Each order and each rounding to tf32 that fewer cases have: in the step, and in its adjoint.
  std::vector<std::string> Missing(int in_step, int in_adjoint) const;

 private:
  int cases_ = 0;
  std::map<std::string, int> met_;  // cases by way
};

}  // namespace simgrad::sim::equality
