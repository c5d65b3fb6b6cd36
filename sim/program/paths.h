// Paths: the decisions of a run as data, and runs that follow given ones.
//
// A decision is the result of a test, of a comparison of reals that counts as none, or of what chooses
// integers by reals (decision_margin.h); and how often a loop ran. Decisions of the test of a loop that
// only stop it are not kept: the count says them. Kinks (max, abs, ...), bits that integers alone
// decide, and what a vjp of the caller's own decides are in no path; nor are the pivots of `lu`, whose factors
// come in the order that they chose. Of an instance that policy `stop` froze, the path is 0 from that step on.
//
// RecordPath adds an observable, kPathTaken, with the bytes of path_layout.h: decisions inside loops go
// into arrays that the loops carry or stack. No number of the world changes, no site is added.
// ForcePath adds an input of kind data, kPathGiven. What a decision gave is replaced by what the
// path says wherever it is used, and a loop runs as often as the path says, up to its cap. Every test is still
// evaluated. Two events tell where it disagrees: "forced SITE" counts it, and "margin SITE", of tests of
// reals, has the margin a - b of those that disagree. Differentiated after this, the gradient is that of
// the forced program.
//
// Errors: both throw PassBudget::Ended, INVALID_ARGUMENT with "path", where `initial` or a terminal
//   cost decides by reals: they have no sites; IsLimit where one site may decide more often in a step than an
//   array may have elements (ProgramLimits).
// Cost: linear in the program; an array element per decision of a step, at the caps of its loops.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// No input, export or site of a world has a space in its name.
inline constexpr char kPathTaken[] = "path taken";
inline constexpr char kPathGiven[] = "path given";
inline constexpr char kForcedSite[] = "forced ";
inline constexpr char kMarginSite[] = "margin ";

// The site of the world that a site is about: its name, without what ForcePath puts in front.
std::string_view WorldSite(std::string_view name);

NumericalProgram RecordPath(NumericalProgram numerical, PassBudget& budget);
NumericalProgram ForcePath(NumericalProgram numerical, PassBudget& budget);

// What a path fits: operations, shapes, sites and caps of a step, but not numbers, formats or roles.
std::string StructureOf(const Program& program, PassBudget& budget);
// With the columns, of which a stage cost may have some: the digest that a path carries.
std::string DigestOf(const std::string& structure, const PathLayout& layout, PassBudget& budget);

}  // namespace simgrad::sim
