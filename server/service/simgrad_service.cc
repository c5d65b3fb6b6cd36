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
#include "server/service/caller_identity.h"
#include "server/service/compile_memory.h"
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

absl::StatusOr<std::shared_ptr<scheduling::Caller>> CallerOf(
    const CallContext& shared, const grpc::CallbackServerContext& context) {
  return CallerOf(context, shared.token_gate, shared.scheduler->callers());
}

// A unary RPC from arrival to end; lives until it has been answered.
class UnaryCall {
 public:
  UnaryCall(const CallContext& shared, const std::string& method,
            grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor)
      : rpc_(*shared.metrics, method), reactor_(reactor) {
    record_.request_id = NewRequestId();
    record_.method = method;
    record_.trace_parent = MetadataOf(*context, "traceparent");
  }
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  void SetCaller(const std::string& name) { record_.caller = name; }

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
  UnaryCall call(shared, method, context, context->DefaultReactor());
  const auto caller = CallerOf(shared, *context);
  if (!caller.ok()) {
    call.Answer(Result(caller.status()), response);
    return call.reactor();
  }
  call.SetCaller((*caller)->name());
  const auto request = Guarded([&] { return Parsed<Request>(bytes); });
  call.Answer(request.ok() ? Guarded(answer) : Result(request.status()), response);
  return call.reactor();
}

// Hears that the caller of a DescribeProgram has left; lives until gRPC is done with the call.
class DescribeReactor final : public grpc::ServerUnaryReactor {
 public:
  DescribeReactor(scheduling::Scheduler* scheduler,
                  std::shared_ptr<scheduling::Cancellation> cancellation)
      : scheduler_(scheduler), cancellation_(std::move(cancellation)) {}
  void OnCancel() override {
    cancellation_->Cancel(absl::CancelledError("the caller cancelled"));
    scheduler_->DropCancelled();
  }
  void OnDone() override { delete this; }

 private:
  scheduling::Scheduler* scheduler_;
  const std::shared_ptr<scheduling::Cancellation> cancellation_;
};

// A DescribeProgram: unary, and prepared as streams are.
class DescribeCall {
 public:
  using Described = absl::StatusOr<v1::DescribeProgramResponse>;
  DescribeCall(const CallContext& shared, grpc::CallbackServerContext* context,
               grpc::ByteBuffer* response)
      : scheduler_(shared.scheduler),
        response_(response),
        cancellation_(std::make_shared<scheduling::Cancellation>(DeadlineOf(*context))),
        call_(shared, "DescribeProgram", context, new DescribeReactor(scheduler_, cancellation_)) {}

  grpc::ServerUnaryReactor* reactor() const { return call_.reactor(); }
  scheduling::Scheduler* scheduler() const { return scheduler_; }
  const std::shared_ptr<scheduling::Caller>& caller() const { return caller_; }
  const std::shared_ptr<scheduling::Cancellation>& cancellation() const { return cancellation_; }

  // A place for a request of so many bytes. False: the call was ended with the refusal.
  bool Arrive(const CallContext& shared, const grpc::CallbackServerContext& context,
              int64_t request_bytes) {
    auto caller = CallerOf(shared, context);
    if (!caller.ok()) {
      End(Described(caller.status()));
      return false;
    }
    caller_ = *std::move(caller);
    call_.SetCaller(caller_->name());
    auto arrival = shared.scheduler->Arrive(caller_, cancellation_->deadline());
    if (const auto* refusal = std::get_if<scheduling::Refusal>(&arrival)) return Refuse(*refusal);
    arrival_ = std::get<scheduling::Scheduler::Arrival>(std::move(arrival));
    auto upload =
        shared.scheduler->Reserve(2 * request_bytes, scheduling::MemoryUse::kUpload, caller_);
    if (const auto* refusal = std::get_if<scheduling::Refusal>(&upload)) return Refuse(*refusal);
    upload_ = std::get<scheduling::MemoryBudget::Reservation>(std::move(upload));
    return true;
  }
  bool Refuse(const scheduling::Refusal& refusal) {
    GiveBack();
    call_.Refuse(refusal);
    return false;
  }
  void End(const Described& described) {
    GiveBack();
    call_.Answer(described, response_);
  }

 private:
  // Before the caller knows: a client that has its answer finds nothing held.
  void GiveBack() {
    upload_ = scheduling::MemoryBudget::Reservation();
    arrival_ = scheduling::Scheduler::Arrival();
  }

  scheduling::Scheduler* scheduler_;
  grpc::ByteBuffer* response_;
  const std::shared_ptr<scheduling::Cancellation> cancellation_;
  UnaryCall call_;
  std::shared_ptr<scheduling::Caller> caller_;
  scheduling::Scheduler::Arrival arrival_;
  scheduling::MemoryBudget::Reservation upload_;
};

// Takes the bytes, so that they are not kept beside the message.
grpc::ByteBuffer Taken(const grpc::ByteBuffer* bytes) {
  grpc::ByteBuffer taken;
  // gRPC made it for this one call, and hands it out as const.
  taken.Swap(const_cast<grpc::ByteBuffer*>(bytes));
  return taken;
}

// Entries take their memory from `memory`.
conversion::ProgramCacheOptions LeasedFrom(scheduling::MemoryBudget& memory,
                                           conversion::ProgramCacheOptions options) {
  options.lease = [&memory](int64_t bytes) -> std::shared_ptr<void> {
    auto reservation = memory.Reserve(bytes, scheduling::MemoryUse::kCache);
    if (!reservation) return nullptr;
    return std::make_shared<scheduling::MemoryBudget::Reservation>(*std::move(reservation));
  };
  return options;
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
  auto caller = CallerOf(shared, *context);
  if (!caller.ok()) {
    call->Deny(caller.status(), reactor);
    return reactor;
  }
  const auto size = static_cast<int64_t>(bytes->Length());
  if (!call->Arrive(*std::move(caller), size, reactor)) return reactor;
  using Control = PrepareControl;
  const auto prepare = [&cache, &options](const Request& request, std::string& world_label,
                                          const Control& control) {
    world_label = conversion::WorldLabel(request.spec().world());
    return Guarded([&] { return Prepare(request, cache, options, control); });
  };
  if (size > kQuickBytes) {
    const auto kept = std::make_shared<grpc::ByteBuffer>(Taken(bytes));
    const auto read = [kept, prepare](std::string& label,
                                      const Control& control) -> absl::StatusOr<PreparedWork> {
      const auto request = Guarded([&] { return Parsed<Request>(kept.get()); });
      if (!request.ok()) return request.status();
      return prepare(*request, label, control);
    };
    call->Begin(read, Preparation::kCostly);
    return reactor;
  }
  auto parsed = Guarded([&] { return Parsed<Request>(bytes); });
  if (!parsed.ok()) {
    call->Deny(parsed.status(), reactor);
    return reactor;
  }
  const auto request = std::make_shared<const Request>(*std::move(parsed));
  call->Begin(
      [request, prepare](std::string& label, const Control& control) {
        return prepare(*request, label, control);
      },
      PreparationOf(request->spec().world()));
  return reactor;
}

}  // namespace

SimgradService::SimgradService(CallContext context, PrepareOptions options, v1::ServerInfo info,
                               conversion::ProgramCacheOptions cache)
    : context_(std::move(context)),
      options_(options),
      info_(std::move(info)),
      cache_(LeasedFrom(context_.scheduler->memory(), std::move(cache)),
             [metrics = context_.metrics](conversion::ProgramCache::Lookup lookup) {
               using Lookup = conversion::ProgramCache::Lookup;
               metrics->program_cache
                   .at(lookup == Lookup::kHit    ? "hit"
                       : lookup == Lookup::kMiss ? "miss"
                                                 : "failed")
                   .Increment();
             }) {
  context_.scheduler->memory().SetRelief([this](int64_t bytes) { cache_.Relieve(bytes); });
}

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
    const v1::DescribeProgramRequest& request, const conversion::CompileControl& control) {
  auto answer = conversion::DescribeProgram(request, cache_, control);
  const int64_t limit = options_.limits.max_message_bytes;
  if (!answer.ok() || static_cast<int64_t>(answer->ByteSizeLong()) <= limit) return answer;
  return absl::ResourceExhaustedError(
      absl::StrCat("the description has ", answer->ByteSizeLong(), " bytes, messages at most ",
                   limit, "; ask without adjoint, or raise --max_message_bytes"));
}

grpc::ServerUnaryReactor* SimgradService::DescribeProgram(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* bytes,
                                                          grpc::ByteBuffer* response) {
  auto call = std::make_shared<DescribeCall>(context_, context, response);
  // Taken before the RPC may end on another thread.
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  if (!call->Arrive(context_, *context, static_cast<int64_t>(bytes->Length()))) return reactor;
  const auto kept = std::make_shared<grpc::ByteBuffer>(Taken(bytes));
  const auto describe = [this, kept](const conversion::CompileControl& control)
      -> absl::StatusOr<v1::DescribeProgramResponse> {
    const auto request = Guarded([&] { return Parsed<v1::DescribeProgramRequest>(kept.get()); });
    if (!request.ok()) return request.status();
    return Guarded([&] { return Describe(*request, control); });
  };
  scheduling::WorkQueue::Job job;
  job.caller = call->caller();
  job.cancellation = call->cancellation();
  job.run = [call, describe](const absl::Status& on_time, absl::Duration,
                             scheduling::WorkQueue::Turn&) {
    if (!on_time.ok()) return call->End(DescribeCall::Described(on_time));
    CompileMemory memory(*call->scheduler(), call->caller());
    auto described = describe(memory.Control(call->cancellation()));
    const absl::Status ends = call->cancellation()->Check();
    call->End(absl::IsCancelled(described.status()) && !ends.ok() ? DescribeCall::Described(ends)
                                                                  : std::move(described));
  };
  if (const auto refusal = context_.scheduler->preparation().Enqueue(job)) call->Refuse(*refusal);
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
