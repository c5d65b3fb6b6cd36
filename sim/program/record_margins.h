// Margins by element: what a test had between its sides, wherever and whenever it was evaluated.
//
// RecordMargins adds, for each site that is asked for, an observable "margin SITE" of f64: a - b of
// the numbers that the test compares, in the format in which it compares them, their difference
// rounded to f64 (docs/numerics.md section 7); NaN where it was not evaluated, or one of both is
// NaN. Its axes are those of the loops around the test, outermost first (step_recorder.h), then the
// test's own. The margin of a loop is that of the test that stops it, never that of the test of its
// entry, and has an axis for its own iterations.
// No value that was there changes. The new reals have Value::watched unset, so a NaN in them is no
// birth, and the fingerprint stays that of the program without them.
//
// Errors: throws PassBudget::Ended: INVALID_ARGUMENT with "diagnostics.margins[i]" if `step` has no
//   such site or never evaluates it, if the site is named twice, or if it is a loop that a bool
//   stops (its tests have sites); IsLimit as StepRecorder::Run.
// Cost: linear in the program; an array element per evaluation of a step, at the caps of its loops.
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// The name of the observable of a site.
std::string MarginExport(const std::string& site);

// `numerical` is lowered, and has no adjoint.
NumericalProgram RecordMargins(NumericalProgram numerical, const std::vector<std::string>& sites,
                               PassBudget& budget);

}  // namespace simgrad::sim
