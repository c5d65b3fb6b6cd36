#include "server/service/simgrad_service.h"

#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/conversion/describe.h"
#include "server/conversion/world.h"
#include "server/service/error_status.h"
#include "server/service/request_log.h"
#include "server/service/rpc_scope.h"
#include "server/service/stream_reactor.h"
#include "server/service/wire_message.h"

namespace simgrad::server::service {
namespace {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

// What a library throws (no memory, above all) becomes a status where it is called.
template <class Function>
auto Guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the machine has no memory left for this request");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// One entry of the caller's metadata; empty where there is none.
std::string MetadataOf(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

absl::Status CheckToken(const CallContext& shared, const grpc::CallbackServerContext& context) {
  if (shared.token_gate == nullptr) return absl::OkStatus();
  // Which of them a proxy in between looked at is not for us to guess.
  if (context.client_metadata().count("authorization") > 1) {
    return absl::UnauthenticatedError("send one metadata entry 'authorization', not several");
  }
  return shared.token_gate->Check(MetadataOf(context, "authorization"));
}

// A unary RPC from arrival to end; lives until it has been answered.
class UnaryCall {
 public:
  UnaryCall(const CallContext& shared, const std::string& method,
            grpc::CallbackServerContext* context)
      : rpc_(*shared.metrics, method), reactor_(context->DefaultReactor()) {
    record_.request_id = NewRequestId();
    record_.method = method;
    record_.trace_parent = MetadataOf(*context, "traceparent");
  }
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  template <class Response>
  void Answer(const absl::StatusOr<Response>& result, grpc::ByteBuffer* response) {
    if (result.ok()) *response = Serialized(*result);
    Finish(ToGrpcStatus(result.status(), record_.request_id),
           std::string(result.status().message()));
  }
  void Refuse(const scheduling::Refusal& refusal) {
    Finish(ToGrpcStatus(refusal, record_.request_id), refusal.message);
  }

 private:
  // `message`: for the log, which is told more than the caller.
  void Finish(const grpc::Status& status, const std::string& message) {
    record_.outcome = CodeLabel(status.error_code());
    record_.message = message;
    record_.total_seconds = rpc_.Seconds();
    rpc_.End(record_.outcome);
    LogRequest(record_);
    reactor_->Finish(status);
  }

  RpcScope rpc_;
  RequestRecord record_;
  grpc::ServerUnaryReactor* reactor_;
};

// A unary RPC that is quick: `answer` gives the response to a request, or a status.
template <class Request, class Answer>
grpc::ServerUnaryReactor* Unary(const CallContext& shared, const std::string& method,
                                grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                grpc::ByteBuffer* response, Answer answer) {
  using Result = decltype(answer());
  UnaryCall call(shared, method, context);
  const absl::Status known = CheckToken(shared, *context);
  if (!known.ok()) {
    call.Answer(Result(known), response);
    return call.reactor();
  }
  const auto request = Guarded([&] { return Parsed<Request>(bytes); });
  call.Answer(request.ok() ? Guarded(answer) : Result(request.status()), response);
  return call.reactor();
}

template <class Request>
grpc::ServerWriteReactor<grpc::ByteBuffer>* Stream(const CallContext& shared, metrics::Mode mode,
                                                   grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* bytes,
                                                   conversion::ProgramCache& cache,
                                                   const PrepareOptions& options) {
  auto call = std::make_shared<StreamingCall>(shared, mode, DeadlineOf(*context),
                                              MetadataOf(*context, "traceparent"));
  auto* reactor = StreamReactor::Open(call, context, *shared.streams);
  const absl::Status known = CheckToken(shared, *context);
  if (!known.ok()) {
    call->Deny(known, reactor);
    return reactor;
  }
  auto parsed = Guarded([&] { return Parsed<Request>(bytes); });
  if (!parsed.ok()) {
    call->Deny(parsed.status(), reactor);
    return reactor;
  }
  const auto request = std::make_shared<const Request>(*std::move(parsed));
  auto prepare = [request, &cache, &options] {
    return Guarded([&] { return Prepare(*request, cache, options); });
  };
  call->Begin(prepare, PreparationOf(*request), conversion::WorldLabel(request->spec().world()),
              reactor);
  return reactor;
}

}  // namespace

SimgradService::SimgradService(CallContext context, PrepareOptions options, v1::ServerInfo info,
                               int64_t cache_entries)
    : context_(std::move(context)),
      options_(options),
      info_(std::move(info)),
      cache_(cache_entries, [metrics = context_.metrics](conversion::ProgramCache::Lookup lookup) {
        using Lookup = conversion::ProgramCache::Lookup;
        metrics->program_cache
            .at(lookup == Lookup::kHit    ? "hit"
                : lookup == Lookup::kMiss ? "miss"
                                          : "failed")
            .Increment();
      }) {}

void SimgradService::SetPorts(int port, int metrics_port) {
  info_.set_port(port);
  info_.set_metrics_port(metrics_port);
}

grpc::ServerUnaryReactor* SimgradService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return Unary<v1::GetServerInfoRequest>(
      context_, "GetServerInfo", context, request, response,
      [this]() -> absl::StatusOr<v1::ServerInfo> { return info_; });
}

grpc::ServerUnaryReactor* SimgradService::ListWorlds(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Unary<v1::ListWorldsRequest>(
      context_, "ListWorlds", context, request, response,
      []() -> absl::StatusOr<v1::ListWorldsResponse> { return conversion::ListWorlds(); });
}

absl::StatusOr<v1::DescribeProgramResponse> SimgradService::Describe(
    const v1::DescribeProgramRequest& request) {
  auto answer = conversion::DescribeProgram(request, cache_);
  const int64_t limit = options_.limits.max_message_bytes;
  if (!answer.ok() || static_cast<int64_t>(answer->ByteSizeLong()) <= limit) return answer;
  return absl::ResourceExhaustedError(
      absl::StrCat("the description has ", answer->ByteSizeLong(), " bytes, messages at most ",
                   limit, "; ask without adjoint, or raise --max_message_bytes"));
}

grpc::ServerUnaryReactor* SimgradService::DescribeProgram(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* bytes,
                                                          grpc::ByteBuffer* response) {
  using Described = absl::StatusOr<v1::DescribeProgramResponse>;
  auto call = std::make_shared<UnaryCall>(context_, "DescribeProgram", context);
  // Taken before the RPC may end on another thread.
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  if (const absl::Status known = CheckToken(context_, *context); !known.ok()) {
    call->Answer(Described(known), response);
    return reactor;
  }
  auto parsed = Guarded([&] { return Parsed<v1::DescribeProgramRequest>(bytes); });
  if (!parsed.ok()) {
    call->Answer(Described(parsed.status()), response);
    return reactor;
  }
  const auto request = std::make_shared<const v1::DescribeProgramRequest>(*std::move(parsed));
  const auto describe = [this, request] { return Guarded([&] { return Describe(*request); }); };
  if (PreparationOf(*request) == Preparation::kQuick) {
    call->Answer(describe(), response);
    return reactor;
  }
  auto place = context_.preparation->Admit(0, DeadlineOf(*context));
  if (const auto* refusal = std::get_if<scheduling::Refusal>(&place)) {
    call->Refuse(*refusal);
    return reactor;
  }
  context_.preparation->Enqueue(
      {std::make_shared<scheduling::Cancellation>(DeadlineOf(*context)),
       [call, describe, response](const absl::Status& on_time, absl::Duration) {
         call->Answer(on_time.ok() ? describe() : Described(on_time), response);
       }});
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SimgradService::Rollout(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return Stream<v1::RolloutRequest>(context_, metrics::Mode::kRollout, context, request, cache_,
                                    options_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SimgradService::Gradient(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return Stream<v1::GradientRequest>(context_, metrics::Mode::kGradient, context, request, cache_,
                                     options_);
}

}  // namespace simgrad::server::service
