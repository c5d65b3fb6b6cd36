#include "server/service/incoming_calls.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/metrics/methods.h"

namespace simgrad::server::service {

// gRPC lists a service only if one of its methods is registered: this one has no name and answers
// UNIMPLEMENTED. gRPC reads nothing of a stream before its handler asks.
SimgradName::SimgradName()
    : method_(v1::GetServerInfoRequest::descriptor()->file()->service(0)->method_count()) {
  using Method = grpc::internal::RpcServiceMethod;
  // gRPC keeps the pointer alone.
  static const auto* const path = new std::string(absl::StrCat("/", metrics::kGrpcService, "/"));
  AddMethod(new Method(path->c_str(), Method::BIDI_STREAMING, nullptr));
  MarkMethodAsync(method_);
}

void SimgradName::RequestCall(IncomingCall& call, grpc::ServerCompletionQueue* queue) {
  RequestAsyncBidiStreaming(method_, &call.context(), &call.stream(), queue, queue, call.Await());
}

IncomingCalls::IncomingCalls(const IncomingShared& shared, SimgradService& service,
                             HealthService& health, SimgradName& name, CallQueue& queue)
    : shared_(shared),
      name_(name),
      queue_(queue),
      accept_any_([this](const std::string& path) {
        Await(At::kAnyPath);
        return Find(path);
      }),
      accept_name_([this](const std::string&) {
        Await(At::kName);
        return &none_;
      }) {
  using Of = IncomingMethod::Of;
  const auto add = [this](absl::string_view of, IncomingMethod method) {
    methods_[absl::StrCat("/", of, "/", method.name)] = std::move(method);
  };
  const auto unary = [&](const char* method_name, bool is_work, auto method,
                         int64_t most_content = 0) {
    add(v1::Simgrad::service_full_name(),
        {method_name, Of::kSimgrad, is_work, std::bind_front(method, &service), nullptr,
         most_content});
  };
  const auto stream = [&](const char* method_name, auto method) {
    add(v1::Simgrad::service_full_name(),
        {method_name, Of::kSimgrad, true, nullptr, std::bind_front(method, &service)});
  };
  unary("GetServerInfo", false, &SimgradService::GetServerInfo);
  unary("ListWorlds", false, &SimgradService::ListWorlds);
  unary("DescribeProgram", true, &SimgradService::DescribeProgram);
  stream("Rollout", &SimgradService::Rollout);
  stream("Gradient", &SimgradService::Gradient);
  stream("Vjp", &SimgradService::Vjp);
  stream("Compare", &SimgradService::Compare);
  unary("Upload", true, &SimgradService::Upload, service.max_upload_bytes());
  none_ = {"", Of::kNone, false,
           [](const ServiceCall&, UnaryAnswer& answer) {
             answer.Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""), {});
           },
           nullptr};
  constexpr absl::string_view kHealthName = "grpc.health.v1.Health";
  add(kHealthName,
      {"Check", Of::kHealth, false, std::bind_front(&HealthService::Check, &health), nullptr});
  add(kHealthName,
      {"Watch", Of::kHealth, false, nullptr, std::bind_front(&HealthService::Watch, &health)});
}

// A call that comes while none waits for it waits in gRPC; each that comes makes another wait.
void IncomingCalls::Start() {
  constexpr int kAwaited = 64;
  for (int i = 0; i < kAwaited; ++i) Await(At::kAnyPath);
  Await(At::kName);
}

void IncomingCalls::Await(At at) {
  const bool any = at == At::kAnyPath;
  const auto call =
      std::make_shared<IncomingCall>(shared_, any ? accept_any_ : accept_name_, queue_);
  grpc::ServerCompletionQueue* const queue = queue_.queue();
  if (!any) return name_.RequestCall(*call, queue);
  generic_.RequestCall(&call->context(), &call->stream(), queue, queue, call->Await());
}

const IncomingMethod* IncomingCalls::Find(const std::string& path) const {
  const auto method = methods_.find(path);
  return method == methods_.end() ? &none_ : &method->second;
}

}  // namespace simgrad::server::service
