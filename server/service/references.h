// Finds the uploaded content that a request names, so that it goes on as if it had been sent whole:
// with the same bits, and refused for the same reasons. Tensors are put in the place of what names
// them. A program stays named: its world is made, or is the one that the cache has of it.
//
// Errors: FAILED_PRECONDITION with reason TENSOR_GONE where this caller has no such content here, the
//   same whether it was never uploaded, has expired, was given up or is another caller's;
//   INVALID_FIELD for what is no digest, and content that is no such tensor or no program;
//   LIMIT_EXCEEDED for more than a request may have; RESOURCE_EXHAUSTED where there is no memory; those
//   of conversion::ProgramCache::World.
// Cost: a copy of each tensor, a look-up for a program that the cache has. Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/conversion/program_cache.h"
#include "server/service/contents.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::service {

struct ReferenceOptions {
  Contents* contents = nullptr;
  conversion::ProgramCache* cache = nullptr;
  conversion::CompileControl compile;  // of worlds that the cache has not
  std::string caller;
  int64_t max_request_bytes = 0;  // of a request with what it names
  // Takes memory for content in a request; false: there is none now. Empty: there always is.
  std::function<bool(int64_t bytes)> take;
};

struct Resolved {
  conversion::NamedWorlds worlds;  // that the request names
  double compile_seconds = 0.0;    // of worlds that the cache had not
};

bool HasReferences(const v1::RolloutRequest& request);
bool HasReferences(const v1::GradientRequest& request);
bool HasReferences(const v1::VjpRequest& request);
bool HasReferences(const v1::CompareRequest& request);
bool HasReferences(const v1::DescribeProgramRequest& request);

absl::Status Resolve(const ReferenceOptions& options, v1::RolloutRequest& request,
                     Resolved& resolved);
absl::Status Resolve(const ReferenceOptions& options, v1::GradientRequest& request,
                     Resolved& resolved);
absl::Status Resolve(const ReferenceOptions& options, v1::VjpRequest& request, Resolved& resolved);
absl::Status Resolve(const ReferenceOptions& options, v1::CompareRequest& request,
                     Resolved& resolved);
absl::Status Resolve(const ReferenceOptions& options, v1::DescribeProgramRequest& request,
                     Resolved& resolved);

}  // namespace simgrad::server::service
