// From a world to what runs: verified program -> simplify -> differentiate -> assign precision ->
// text.
//
// Cost: n log n in what is written, times the depth of loops; counted and polled by the budget,
// whose
//   limits bound it (pass_budget.h).
// Errors: CANCELLED where the budget is told to stop; IsLimit (field_error.h) where more would be
//   written than it allows; INVALID_ARGUMENT with the field: unknown objective, unknown site in the
//   policy ("policy.
// sites[i].site"), an input that cannot be differentiated ("wrt[i]").
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "precision/policy.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// What a gradient can be asked for: real state, param and control inputs.
bool IsDifferentiable(const Program& program, const Input& input);

// `objective` empty: no costs are computed. `adjoint`: also the reverse program; its objective must
// be `objective`.
absl::StatusOr<NumericalProgram> Lower(const Program& world, const precision::Policy& policy,
                                       const std::string& objective,
                                       const std::optional<AdjointSpec>& adjoint,
                                       PassBudget* budget = nullptr);

}  // namespace simgrad::sim
