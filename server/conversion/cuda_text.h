// The text of a program's kernels, as a GPU would compile it. Needs none, nor a build with CUDA.
//
// Errors: INVALID_ARGUMENT with the field path below `field`; those of sim::cuda::Generate.
// Cost: linear in the program. Threads: any.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/validation/program_schema.h"
#include "sim/program/numerical_program.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

absl::Status CheckCudaTextOptions(const v1::CudaTextOptions& options,
                                  const validation::ProgramSchema& schema,
                                  const std::string& field);

// Expects options that CheckCudaTextOptions has found right.
absl::StatusOr<v1::CudaText> CudaTextOf(const sim::NumericalProgram& program,
                                        const v1::CudaTextOptions& options);

}  // namespace simgrad::server::conversion
