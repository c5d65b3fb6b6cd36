// The gRPC service, its methods with their kind, and the codes each can return.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

namespace simgrad::server::metrics {

inline constexpr char kGrpcService[] = "simgrad.v1.Simgrad";

struct Method {
  std::string name;
  std::string type;                // unary, server_stream, client_stream
  std::vector<std::string> codes;  // as go-grpc-prometheus writes them
};

const std::vector<Method>& Methods();

}  // namespace simgrad::server::metrics
