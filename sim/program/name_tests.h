// Names the tests of a program that states a level: its comparisons of reals become events, and
// operations that choose integers by reals are counted as choices (choices.h).
//
// Level `loops` names no test, `decisions` names all but guards, `all` names all. Only `step` is
// named. A conversion to an integer or a bool is a test if its result reaches a predicate, a choice
// or a place (decision_margin.h). The pass changes no number; a program with a level prints it.
// Names: a test is called by its decision_site, else by the site on whose behalf it is computed,
//   else by its operation ("lt"). Several loops, events and tests may have one name: the first in
//   text order keeps it, the others are "name#1", "name#2", ... (HashOfSite).
// Kinds: a declared kind stands; otherwise data flow says the kind. A `termination` reaches a
//   predicate of a loop. An `event` reaches a select, a cond, or an integer or boolean that is
//   carried or a state. A `weight` reaches a real. A `guard` compares with zero, a number of at
//   most 1e-5 or an infinity, and feeds only selects or reals.
// Cost: linear. Threads: pure.
#pragma once

#include <string>
#include <unordered_set>

#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// `overridden`: the sites that the policy sets. A comparison has the setting of its decision_site, where
// it has one, also at a level that does not name it.
Program NameTests(Program program, const std::unordered_set<std::string>& overridden,
                  PassBudget& budget);

}  // namespace simgrad::sim
