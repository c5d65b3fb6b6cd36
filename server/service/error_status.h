// absl::Status to grpc::Status with google.rpc details: field, reason, retry.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "server/scheduling/refusal.h"

namespace simgrad::server::service {

// INTERNAL hides nothing but its details: what a caller cannot have caused is also logged.
grpc::Status ToGrpcStatus(const absl::Status& status, const std::string& request_id);

grpc::Status ToGrpcStatus(const scheduling::Refusal& refusal, const std::string& request_id);

// A label of simgrad_queue_rejected_total.
std::string RefusalLabel(scheduling::RefusalReason reason);

// As go-grpc-prometheus writes a code: "OK", "InvalidArgument", ...
std::string CodeLabel(grpc::StatusCode code);
// The code that CodeLabel writes so; INTERNAL where there is none.
grpc::StatusCode CodeWithLabel(const std::string& label);

}  // namespace simgrad::server::service
