// What the predicate of a loop hangs on, and how far it is from deciding otherwise.
//
// Maths: a boolean has a margin in ulps, positive where it is true; its magnitude is the *radius*: if
//   every test moves by less than this in its own ulps, the boolean stays as it is.
//     test of reals: |a - b| / ulp, the ulp as in precision/ulp.h; infinite if that is NaN
//     and, or: the smaller, the larger margin; not: the negated; any: the largest
//     select(c, a, b) of booleans: max(min(c, a), min(-c, b), min(a, b))
//     real to integer: the distance to the next integer that gives another result (to bool: to 0)
//     all else that gives a boolean or an integer: the least radius of what it reads
//   An integer has a radius alone. A literal, an input and an index have none: it is infinite. Values
//   of several elements have one each, until an operation moves them, a loop carries them or a loop
//   gives them: then they have the least of all. What a loop gives has the least of its tests too.
//     choice: |a - b| / ulp, as a test
//   What gives integers of reals in another way (argmax, where nothing counts it as a choice) has
//   radius 0: it is not looked into.
// The *deciding* test is the one that attains the radius; the first in text of several. What is
// recorded of a predicate is that test's own a - b, in units of its ulp.
// Both kinds of executors follow these rules: backend/reference/decision_radius.h and
// plan/make_predicates.cc.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Tests that may decide a predicate, by number: k + 1 is site k, and behind the sites come
// comparisons, conversions and choices without one that a predicate hangs on, in text order.
struct DecidingTests {
  std::vector<uint32_t> of_value;     // by result; empty: there are no predicates
  std::vector<std::string> unlisted;  // what those behind the sites are called
  std::unordered_map<std::string, uint32_t> of_site;
  uint32_t Of(ValueId result) const { return of_value.empty() ? 0 : of_value[Index(result)]; }
  uint32_t Of(const std::string& site) const {
    const auto found = of_site.find(site);
    return found == of_site.end() ? 0 : found->second;
  }
};
// Here and below visits are reported to `budget`, if there is one; cost: linear.
DecidingTests DecidingTestsOf(const Program& program, const std::vector<Site>& sites,
                              PassBudget* budget = nullptr);

// lt, le, gt, ge, eq, ne.
inline bool ComparesTwo(const Op& op) { return op.code >= OpCode::kLt && op.code <= OpCode::kNe; }

// By value: whether it is a boolean or an integer that a predicate of a loop hangs on. Empty: the
// program has no such loop.
std::vector<bool> BehindPredicates(const Program& program, PassBudget* budget = nullptr);

// The same of what a select or a cond chooses by, a loop carries or a step yields.
std::vector<bool> BehindChoices(const Program& program, PassBudget* budget = nullptr);

// The same of what an operation takes as places.
std::vector<bool> BehindPlaces(const Program& program, PassBudget* budget = nullptr);

}  // namespace simgrad::sim
