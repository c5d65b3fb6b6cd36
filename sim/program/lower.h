// From a world to what runs: verified program -> simplify -> differentiate -> assign precision ->
// text.
//
// Errors: INVALID_ARGUMENT with the field: unknown objective, unknown site in the policy ("policy.
// sites[i].site"), an input that cannot be differentiated ("wrt[i]").
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "precision/policy.h"
#include "sim/program/numerical_program.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// What a gradient can be asked for: real state, param and control inputs.
bool IsDifferentiable(const Program& program, const Input& input);

// `objective` empty: no costs are computed. `adjoint`: also the reverse program; its objective must
// be `objective`.
absl::StatusOr<NumericalProgram> Lower(const Program& world, const precision::Policy& policy,
                                       const std::string& objective,
                                       const std::optional<AdjointSpec>& adjoint);

}  // namespace simgrad::sim
