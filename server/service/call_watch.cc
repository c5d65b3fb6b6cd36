#include "server/service/call_watch.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/interceptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace simgrad::server::service {
namespace {

using grpc::experimental::InterceptionHookPoints;

// gRPC's reflection and channelz are synchronous: to ask for the cancellation of such a call waits
// for what is being told here. Whatever is asked of them they answer.
bool IsSynchronous(absl::string_view method) {
  return absl::StartsWith(method, "/grpc.reflection.") ||
         absl::StartsWith(method, "/grpc.channelz.");
}

class WatchedCall final : public grpc::experimental::Interceptor {
 public:
  WatchedCall(grpc::experimental::ServerRpcInfo* info, Connections& connections)
      : info_(info), connections_(connections) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      peer_ = info_->server_context()->peer();
      connections_.CallBegan(peer_);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_SEND_MESSAGE) &&
        methods->GetSendMessageStatus()) {
      answered_ = true;
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_CLOSE)) {
      const bool early =
          !answered_ && (IsSynchronous(info_->method()) || info_->server_context()->IsCancelled());
      connections_.CallEnded(peer_, early, Connections::Clock::now());
    }
    methods->Proceed();
  }

 private:
  grpc::experimental::ServerRpcInfo* const info_;
  Connections& connections_;
  std::string peer_;
  std::atomic<bool> answered_{false};
};

class WatchFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  WatchFactory(Connections& connections, Watched watched)
      : connections_(connections), watched_(watched) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (watched_ == Watched::kSynchronous && !IsSynchronous(info->method())) return nullptr;
    return new WatchedCall(info, connections_);
  }

 private:
  Connections& connections_;
  const Watched watched_;
};

}  // namespace

void WatchCalls(grpc::ServerBuilder& builder, Connections& connections, Watched watched) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<WatchFactory>(connections, watched));
  builder.experimental().SetInterceptorCreators(std::move(factories));
}

}  // namespace simgrad::server::service
