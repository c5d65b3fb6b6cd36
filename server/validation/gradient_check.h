// Checks what a GradientRequest adds to its spec: cotangents, what is differentiated; and
// what a DescribeProgramRequest says of an adjoint.
//
// Errors: INVALID_FIELD; NOT_SUPPORTED for more than one cotangent and for tree nodes.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "server/validation/program_schema.h"
#include "sim/work_meter.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::validation {

// Without the program; expects nothing. Throws sim::StopRequested.
absl::Status CheckGradientMessage(const v1::GradientRequest& request, sim::WorkMeter& meter);

// Against the program; `instances` as CheckInputs found.
absl::Status CheckGradient(const v1::GradientRequest& request, const ProgramSchema& schema,
                           int64_t instances);

// The objective, the names of cotangents, and the inputs to differentiate for, against the program.
absl::Status CheckDescribedAdjoint(const v1::DescribeProgramRequest& request,
                                   const ProgramSchema& schema);

// Checks one cotangent that is sent, as cotangents[0].
absl::Status CheckNotEmpty(const v1::Cotangent& cotangent);

// The same status, about cotangents[index] where it is about cotangents[0].
absl::Status OfCotangent(int index, const absl::Status& status);

// Checks what a rollout is kept for against the program.
absl::Status CheckKeep(const v1::KeepOptions& keep, const ProgramSchema& schema);

}  // namespace simgrad::server::validation
