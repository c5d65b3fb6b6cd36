// From a request to work: checks, then conversion, in the one order that allocates nothing for a
// request that is refused.
//
// Cost: linear in the request; verifying and lowering a program only where the cache has none.
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/conversion/program_cache.h"
#include "server/conversion/work.h"
#include "server/validation/request_limits.h"

namespace simgrad::server::service {

struct PrepareOptions {
  validation::RequestLimits limits;
  conversion::WorkSettings work;
};

struct PreparedWork {
  std::shared_ptr<const conversion::CachedProgram> program;
  sim::Work work;
  std::vector<conversion::Recorded> recorded;
  conversion::NonFiniteInputs nonfinite_inputs;
  int64_t memory_bytes = 0;  // of the work and its answer
  bool send_diagnostics = true;
  double decode_seconds = 0.0;
  double compile_seconds = 0.0;  // cache look-ups, verifying, lowering
};

// What preparing a request costs. Quick: below a few milliseconds, whatever is in it, so that
// gRPC's own threads may do it; else (a large program takes half a second, a large batch as long as
// its bytes) it is work for others.
enum class Preparation { kQuick, kCostly };
Preparation PreparationOf(const google::protobuf::Message& request);

absl::StatusOr<PreparedWork> Prepare(const v1::RolloutRequest& request,
                                     conversion::ProgramCache& cache,
                                     const PrepareOptions& options);
absl::StatusOr<PreparedWork> Prepare(const v1::GradientRequest& request,
                                     conversion::ProgramCache& cache,
                                     const PrepareOptions& options);

// Threads that a batch of this size is worth: one per some hundred instances.
int ThreadsFor(int64_t instances, int most);

}  // namespace simgrad::server::service
