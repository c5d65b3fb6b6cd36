// Names the tests of a program that states a level: its comparisons of reals become events, and what
// chooses integers by reals is counted as a choice (choices.h).
//
// Level `loops` names none, `decisions` all but guards, `all` all; what stands in `step` alone is
// named. A conversion to an integer or a bool is a test where its result reaches a predicate, a
// choice or a place (decision_margin.h). A test is called by its decision_site, else by the site on whose behalf it is computed, else
// by its operation ("lt"). A name may stand at several loops, events and tests: in text order the
// first keeps it, the others are "name#1", "name#2", ... (HashOfSite).
// Kind, from data flow, unless it is declared: `termination` reaches a predicate of a loop; `event` a
// select, a cond, or an integer or boolean that is carried or a state; `weight` a real; `guard`
// compares with zero or a number of at most 1e-5 and feeds selects or reals alone. It changes no
// number; a program with a level prints it.
// Cost: linear. Threads: pure.
#pragma once

#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

Program NameTests(Program program, PassBudget& budget);

}  // namespace simgrad::sim
