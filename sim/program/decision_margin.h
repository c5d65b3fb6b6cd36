// Finds what the predicate of a loop hangs on; says how far it is from deciding otherwise.
//
// Maths: a boolean has a margin in ulps, positive where it is true. The magnitude of the margin is
//   its *radius*: the boolean stays as it is if every test moves by less than this in its own ulps.
//     test of reals: |a - b| / ulp, the ulp as in precision/ulp.h; infinite if that is NaN
//     is_finite(x): as the test of |x| against the largest finite number of its format; infinite for
//     a NaN, which is not counted as a NaN test
//     choice: |a - b| / ulp, as a test. Each element of an order (argsort) or of pivots (lu) hangs on
//     all pairs and on the integer keys: it has the least of these
//     and, or: the smaller, the larger margin; not: the negated; all, any, where they give one
//     boolean: the smallest, the largest
//     select(c, a, b) of booleans: max(min(c, a), min(-c, b), min(a, b))
//     real to integer: the distance to the next integer that gives another result (to bool: to 0)
//     all else that gives a boolean or an integer: the least radius of what it reads
//   An integer has only a radius. That of a literal, an input or an index is infinite. Each element
//   of a value has its own, until an operation moves the elements, or a loop carries or gives them:
//   then all have the least. The results of a loop also have the least of the loop's tests.
//   An operation that gives integers of reals in another way (argmax, where it is not counted as a
//   choice) has radius 0, whatever it reads.
// The *deciding* test is the one that attains the radius; of several, the first in text. Of infinite
// radii that of a test of reals is told before that of a literal or an input, unless integers alone make
// an `or` true. The margin that is recorded of a predicate is that test's own a - b, in units of its ulp.
// Both kinds of executors follow these rules: backend/reference/decision_radius.h and
// plan/radii.h.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// The tests that may decide, by number, from 1 on in text order: the sites, and the comparisons,
// conversions and choices without a site that a predicate hangs on.
struct DecidingTests {
  std::vector<std::string> names;  // of test k + 1: of its site, or what it is called
  std::vector<uint32_t> of_value;  // by result; empty: there are no predicates
  std::unordered_map<std::string, uint32_t> of_site;
  // The choices whose elements hang on all their pairs, by result, with the integer keys of each.
  std::unordered_map<ValueId, std::vector<ValueId>> joint;
  uint32_t Of(ValueId result) const { return of_value.empty() ? 0 : of_value[Index(result)]; }
  uint32_t Of(const std::string& site) const {
    const auto found = of_site.find(site);
    return found == of_site.end() ? 0 : found->second;
  }
};
// This and the functions below report their visits to `budget`, if there is one. Cost: linear.
DecidingTests DecidingTestsOf(const Program& program, const std::vector<Site>& sites,
                              PassBudget* budget = nullptr);

// lt, le, gt, ge, eq, ne.
inline bool ComparesTwo(const Op& op) { return op.code >= OpCode::kLt && op.code <= OpCode::kNe; }

// Returns, by value, whether it is a boolean or an integer that a predicate of a loop hangs on;
// empty if no loop of the program has a predicate.
std::vector<bool> BehindPredicates(const Program& program, PassBudget* budget = nullptr);

// The same for what a select or a cond chooses by, a loop carries, or the step yields.
std::vector<bool> BehindChoices(const Program& program, PassBudget* budget = nullptr);

// The same for what an operation takes as places.
std::vector<bool> BehindPlaces(const Program& program, PassBudget* budget = nullptr);

}  // namespace simgrad::sim
