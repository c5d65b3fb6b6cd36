// Answers about worlds and programs, without running them.
//
// Errors: as the checks and the cache. Threads: any.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "server/conversion/program_cache.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

// Schemas of the built-in worlds, inputs as of their default configuration.
absl::StatusOr<v1::ListWorldsResponse> ListWorlds();

// RESOURCE_EXHAUSTED for an answer of more than `most_bytes`, before it is copied together.
absl::StatusOr<v1::DescribeProgramResponse> DescribeProgram(
    const v1::DescribeProgramRequest& request, ProgramCache& cache,
    const CompileControl& control = {}, int64_t most_bytes = std::numeric_limits<int64_t>::max(),
    const NamedWorlds& named = {});

}  // namespace simgrad::server::conversion
