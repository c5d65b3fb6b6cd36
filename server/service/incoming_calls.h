// Every call on the port, from its first bytes until its request is complete and the service has
// it.
//
// gRPC reads the request of a registered method by itself, to its end, before anyone is asked. Here
// a call is taken when it begins: one without a token is answered before its request is read, and
// what is being uploaded is bounded (uploads.h), of the health service too. A call whose caller has
// left meanwhile ends without the service, its metrics and its log line. Threads: gRPC's.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <functional>
#include <string>
#include <unordered_map>

#include "server/service/health_service.h"
#include "server/service/simgrad_service.h"
#include "server/service/uploads.h"

namespace simgrad::server::service {

template <class Base>
using GenericUnaries =
    v1::Simgrad::WithGenericMethod_GetServerInfo<v1::Simgrad::WithGenericMethod_ListWorlds<
        v1::Simgrad::WithGenericMethod_DescribeProgram<Base>>>;
using GenericMethods = v1::Simgrad::WithGenericMethod_Rollout<
    v1::Simgrad::WithGenericMethod_Gradient<GenericUnaries<v1::Simgrad::Service>>>;

// The service's name, for reflection; what its methods do is a matter of IncomingCalls.
class SimgradName final : public GenericMethods {
 public:
  SimgradName();
};

class IncomingCalls final : public grpc::CallbackGenericService {
 public:
  // All live as long as the server. `token_gate`: null: nobody needs a token.
  IncomingCalls(SimgradService& service, HealthService& health, Uploads& uploads,
                metrics::ServerMetrics& metrics, TokenGate* token_gate);

  // Answers UNIMPLEMENTED what is no method of either service.
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

  using Unary = std::function<grpc::ServerUnaryReactor*(
      grpc::CallbackServerContext*, const grpc::ByteBuffer* request, grpc::ByteBuffer* response)>;
  using Stream = std::function<grpc::ServerWriteReactor<grpc::ByteBuffer>*(
      grpc::CallbackServerContext*, const grpc::ByteBuffer* request)>;
  enum class Of : uint8_t { kSimgrad, kHealth };
  struct Method {
    std::string name;
    Of service;   // health needs no token, and has no metrics and no log
    Unary unary;  // one of both
    Stream stream;
  };

 private:
  bool HasToken(const grpc::CallbackServerContext& context) const;

  std::unordered_map<std::string, Method> methods_;  // by path
  Uploads& uploads_;
  metrics::ServerMetrics& metrics_;
  TokenGate* const token_gate_;
};

}  // namespace simgrad::server::service
