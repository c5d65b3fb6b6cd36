// Puts uploaded content in the place of what names it, so that a request goes on as if it had been
// sent whole: with the same bits, and refused for the same reasons.
//
// Errors: FAILED_PRECONDITION with reason TENSOR_GONE where this caller has no such content here, the
//   same whether it was never uploaded, has expired, was given up or is another caller's;
//   INVALID_FIELD for what is no digest, and content that is no such tensor or no program;
//   LIMIT_EXCEEDED for more than a request may have; RESOURCE_EXHAUSTED where there is no memory.
// Cost: a copy of each content. Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/service/contents.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::service {

struct ReferenceOptions {
  Contents* contents = nullptr;
  std::string caller;
  int64_t max_request_bytes = 0;  // of a request with what it names
  // Takes memory for content in a request; false: there is none now. Empty: there always is.
  std::function<bool(int64_t bytes)> take;
};

bool HasReferences(const v1::RolloutRequest& request);
bool HasReferences(const v1::GradientRequest& request);
bool HasReferences(const v1::VjpRequest& request);
bool HasReferences(const v1::CompareRequest& request);
bool HasReferences(const v1::DescribeProgramRequest& request);

absl::Status Resolve(const ReferenceOptions& options, v1::RolloutRequest& request);
absl::Status Resolve(const ReferenceOptions& options, v1::GradientRequest& request);
absl::Status Resolve(const ReferenceOptions& options, v1::VjpRequest& request);
absl::Status Resolve(const ReferenceOptions& options, v1::CompareRequest& request);
absl::Status Resolve(const ReferenceOptions& options, v1::DescribeProgramRequest& request);

}  // namespace simgrad::server::service
