// What a series of large cases has met: how many operations, how deep the loops, how long the
// arrays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {

// Of one lowered program; operations in loops count once.
struct Extent {
  int64_t operations = 0;          // of the step
  int64_t adjoint_operations = 0;  // of the adjoint of an inner step
  int64_t loops = 0;               // of the step
  int64_t depth = 0;               // 2: a loop in a loop
  int64_t largest_body = 0;        // operations inside one loop
  int64_t elements = 0;            // of its longest array
};
Extent ExtentOf(const NumericalProgram& program);

class LargeCoverage {
 public:
  void Add(const Case& made, const Observed& seen);
  int cases() const { return cases_; }
  std::string Table() const;
  // Every row that fewer of thirty cases met than should; scaled to `cases`.
  std::vector<std::string> Missing() const;

 private:
  struct Line {
    std::string name;
    int count = 0;
    int least = 0;  // of thirty cases
  };
  std::vector<Line> Lines() const;

  int cases_ = 0;
  int64_t operations_ = 0;
  int64_t adjoint_operations_ = 0;
  int beyond_2000_ = 0;
  int beyond_4000_ = 0;
  int adjoint_beyond_500_ = 0;
  int adjoint_beyond_1500_ = 0;
  int loops_in_loops_ = 0;
  int depth_3_ = 0;
  int long_bodies_ = 0;
  int long_arrays_ = 0;
  int many_loops_ = 0;
  int gradients_ = 0;
  int finite_ = 0;     // every instance is ok
  int connected_ = 0;  // some input received a cotangent
};

}  // namespace simgrad::sim::equality
