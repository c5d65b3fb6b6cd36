// A gradient in two parts: a forward pass that is kept, and its reversals.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "sim/engine.h"
#include "sim/engine/kept_run.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {

// The forward pass of `gradient`, by a program that runs forward alike.
absl::StatusOr<std::shared_ptr<const KeptRun>> KeepForward(
    const Engine& engine, const Work& gradient, std::shared_ptr<const NumericalProgram> program);

// Its reversal, for what `gradient` asks.
absl::StatusOr<WorkResult> ReverseFor(const Engine& engine, const KeptRun& kept,
                                      const Work& gradient);

// The program of the case with the adjoint for all inputs and all final states.
absl::StatusOr<std::shared_ptr<const NumericalProgram>> LowerForAll(const Case& made);

// Names what a reversal and the gradient differ in first; nothing where all bits are equal.
std::optional<std::string> DifferenceOfReversal(WorkResult whole, WorkResult reversed);

}  // namespace simgrad::sim::equality
