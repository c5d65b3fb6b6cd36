// What a series of cases has met, as a table: so that "equal" means equal everywhere.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/sim/equality/linear_coverage.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {

inline constexpr size_t kElementTypes = static_cast<size_t>(ElementType::kU8) + 1;

struct Coverage {
  // In how many cases the lowered program holds it.
  std::array<int, kOpCodeCount> operations{};
  std::array<int, precision::kFormatCount> formats{};
  std::array<int, precision::kOrderCount> orders{};
  std::array<int, 4> roundings{};             // of casts
  std::array<int, kElementTypes> elements{};  // computed by an operation
  std::array<int, 6> event_comparisons{};
  std::array<int, 6> loop_comparisons{};
  LinearCoverage linear;
  int cases = 0;
  int cap_first = 0;
  int test_first = 0;
  int entries = 0;  // loops with an entry threshold
  int saturating_casts = 0;
  int initial_regions = 0;
  int uneven_loops = 0;  // some loop stops at different counts in two instances of one step
  int nested_loops = 0;
  int per_element_loops = 0;
  int guarded_events = 0;
  int predicates = 0;  // loops that stop by a formula
  int counters = 0;    // some loop was ended by integers alone
  int branches = 0;    // some cond
  int scans = 0;
  int vjp_loops = 0;  // the vjp of some call has a loop or a branch
  int truncated = 0;  // some loop is differentiated by its last iterations
  int fixed_points = 0;
  int by_gmres = 0;
  int told = 0;   // cases whose adjoint told of a solve
  int halts = 0;  // some halt ended some instance
  int stacks = 0;
  int reversed_scans = 0;
  int gradients = 0;
  int nonfinite = 0;  // some instance is not ok
  int stopped = 0;
  int additions = 0;  // some addition into a state counted
  int absorbed = 0;   // some was absorbed

  void Add(const Case& made, const Observed& seen);
  std::string Table() const;
  // Every row that is met fewer times than a thousand cases should; scaled to `cases`.
  std::vector<std::string> Missing() const;
  // How many rows `other` met and this one did not.
  int RowsGainedFrom(const Coverage& other) const;
  // Every row that nothing met.
  std::vector<std::string> Unmet() const;

 private:
  struct Line {
    std::string name;
    int count = 0;
    int least = 0;  // of a thousand cases
  };
  std::vector<Line> Lines() const;
};

}  // namespace simgrad::sim::equality
