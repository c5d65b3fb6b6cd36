// Lowers a world to what runs: expand, choose the objective, simplify, differentiate, forget calls,
// assign formats, remove what is unread, number, print.
//
// Cost: n log n in what is written, times the depth of loops. The budget counts it, polls, and
//   bounds it (pass_budget.h).
// Errors: CANCELLED if the budget is told to stop; IsLimit (field_error.h) if more would be written
//   than it allows; INVALID_ARGUMENT with the field: unknown objective, unknown site in the policy
//   ("policy.sites[i].site"), an input that cannot be differentiated ("wrt[i]"),
//   a choice unfit for its loop ("loops[i]"), a path that cannot hold all decisions ("path"), a
//   site that has no margins by element ("diagnostics.margins[i]").
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "precision/policy.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Returns whether a gradient can be asked for: of real state, param and control inputs.
bool IsDifferentiable(const Program& program, const Input& input);

struct LowerOptions {
  PathUse path = PathUse::kNone;     // paths.h says what it adds
  std::vector<std::string> margins;  // sites (record_margins.h); only without an adjoint
};

// If `objective` is empty, no cost is computed. If there is an `adjoint`, its objective must be
// `objective`, and the result has the reverse program too.
absl::StatusOr<NumericalProgram> Lower(const Program& world, const precision::Policy& policy,
                                       const std::string& objective,
                                       const std::optional<AdjointSpec>& adjoint,
                                       PassBudget* budget = nullptr,
                                       const LowerOptions& options = {});

}  // namespace simgrad::sim
