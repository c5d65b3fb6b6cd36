// Paths: the decisions of a run as data, and runs that follow given ones.
//
// A decision is the result of a test, of a comparison of reals that counts as no test, or of an
// operation that chooses integers by reals (decision_margin.h). How often a loop ran is one too.
// Decisions of `initial` stand in the row of step 0 (path_start.h); their columns are named "initial.".
// A path leaves out:
//   - decisions in the test of a loop that only stop it: the count says them
//   - kinks (max, abs, ...), and bits that only integers decide
//   - decisions in a vjp of the caller's own
// The pivots of a matrix are one decision of the region that factors it: the order of its rows.
// If policy `stop` froze an instance, its path is 0 from that step on.
//
// RecordPath adds an observable, kPathTaken, with the bytes of path_layout.h. Decisions inside
// loops go into arrays that the loops carry or stack. No number of the world changes, and no site
// is added.
// ForcePath adds an input of kind data, kPathGiven, and for what `initial` decides a param,
// kPathGivenFirst, with the row of step 0. The path replaces the result of every decision
// wherever it is used, and says how often each loop runs, up to its cap. Every test is still
// evaluated. A matrix is factored with the pivots of the path; those that it would have taken behind
// them are compared. Two events tell where a test disagrees with the path: "forced SITE" counts it;
// "margin SITE", for tests of reals, has the margin a - b of those that disagree. Those of `initial`
// are counted in step 0, and have no margin. A gradient of the result is that of the forced program.
//
// Errors: both throw PassBudget::Ended: INVALID_ARGUMENT with "path" if a terminal cost
//   decides by reals, which has no sites; IsLimit if one site may decide more often in a
//   step than an array may have elements (ProgramLimits).
// Cost: linear in the program; an array element per decision of a step, at the caps of its loops.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// No input, export or site of a world has a space in its name.
inline constexpr char kPathTaken[] = "path taken";
inline constexpr char kPathGiven[] = "path given";
inline constexpr char kPathGivenFirst[] = "path given first";
inline constexpr char kPathStart[] = "path start";
inline constexpr char kForcedSite[] = "forced ";
inline constexpr char kMarginSite[] = "margin ";

// Returns the site of the world that `name` is about: `name` without what ForcePath puts in front.
std::string_view WorldSite(std::string_view name);

NumericalProgram RecordPath(NumericalProgram numerical, PassBudget& budget);
NumericalProgram ForcePath(NumericalProgram numerical, PassBudget& budget);

// Returns what a path fits: operations, shapes, sites and caps of a step, and of `initial` where that
// decides, but not numbers, formats or roles.
std::string StructureOf(const Program& program, PassBudget& budget);
// Returns the digest that a path carries: of the structure and of the columns, of which a stage
// cost may have some.
std::string DigestOf(const std::string& structure, const PathLayout& layout, PassBudget& budget);

}  // namespace simgrad::sim
