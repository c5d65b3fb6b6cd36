// Every call on the port: which service it is for, and the calls that wait to come.
//
// gRPC reads the request of a registered method by itself, to its end, before anyone is asked. Here
// a call is taken when it begins (incoming_call.h). Threads: any.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <string>
#include <unordered_map>

#include "server/service/call_queue.h"
#include "server/service/health_service.h"
#include "server/service/incoming_call.h"
#include "server/service/simgrad_service.h"

namespace simgrad::server::service {

template <class Base>
using GenericUnaries =
    v1::Simgrad::WithGenericMethod_GetServerInfo<v1::Simgrad::WithGenericMethod_ListWorlds<
        v1::Simgrad::WithGenericMethod_DescribeProgram<Base>>>;
using GenericMethods =
    v1::Simgrad::WithGenericMethod_Rollout<v1::Simgrad::WithGenericMethod_Gradient<
        v1::Simgrad::WithGenericMethod_Vjp<v1::Simgrad::WithGenericMethod_Compare<
            v1::Simgrad::WithGenericMethod_Upload<GenericUnaries<v1::Simgrad::Service>>>>>>;

// The service's name, for reflection; what its methods do is a matter of IncomingCalls.
class SimgradName final : public GenericMethods {
 public:
  SimgradName();
  // Waits for a call of the name without a method.
  void RequestCall(IncomingCall& call, grpc::ServerCompletionQueue* queue);

 private:
  const int method_;
};

class IncomingCalls {
 public:
  // `queue`, `name` and the services live as long as the calls.
  IncomingCalls(const IncomingShared& shared, SimgradService& service, HealthService& health,
                SimgradName& name, CallQueue& queue);

  // Registered with the server. Answers UNIMPLEMENTED what is no method of either service.
  grpc::AsyncGenericService& generic() { return generic_; }
  // Once the server is built: calls come.
  void Start();

 private:
  enum class At : uint8_t { kAnyPath, kName };
  void Await(At at);
  const IncomingMethod* Find(const std::string& path) const;  // or `none_`

  const IncomingShared shared_;
  SimgradName& name_;
  CallQueue& queue_;
  grpc::AsyncGenericService generic_;
  std::unordered_map<std::string, IncomingMethod> methods_;  // by path
  // The method of a call that no service knows. It is read like others, so that resets are noticed.
  IncomingMethod none_;
  const IncomingCall::Accept accept_any_, accept_name_;
};

}  // namespace simgrad::server::service
