#include "server/service/simgrad_service.h"

#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/conversion/describe.h"
#include "server/conversion/world.h"
#include "server/service/call_deadline.h"
#include "server/service/caller_identity.h"
#include "server/service/compile_memory.h"
#include "server/service/error_status.h"
#include "server/service/received_content.h"
#include "server/service/refusal_count.h"
#include "server/service/request_spans.h"
#include "server/service/rpc_scope.h"
#include "server/service/stream_reactor.h"
#include "server/service/variants.h"
#include "server/service/wire_message.h"

namespace simgrad::server::service {
namespace {

// An exception of a library (no memory, above all) becomes a status where the library is called.
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

// A unary RPC from arrival to end; lives until it has been answered.
class UnaryCall {
 public:
  UnaryCall(const CallContext& shared, const std::string& method, const ServiceCall& call,
            UnaryAnswer& answer)
      : metrics_(*shared.metrics), spans_(shared.spans), rpc_(metrics_, method), answer_(answer) {
    record_.began = rpc_.began();
    record_.request_id = NewRequestId();
    record_.method = method;
    record_.trace_parent = MetadataOf(call.context, "traceparent");
    if (call.caller.ok()) {
      record_.caller = (*call.caller)->name();
    } else {
      record_.peer = PeerOf(call.context);
    }
  }

  void Answer(const absl::StatusOr<grpc::ByteBuffer>& response) {
    const absl::Status& status = response.status();
    Finish(ToGrpcStatus(status, record_.request_id), std::string(status.message()),
           status.ok() ? *response : grpc::ByteBuffer());
  }
  void Refuse(const scheduling::Refusal& refusal) {
    CountRefusal(metrics_, refusal.reason, record_.caller);
    Finish(ToGrpcStatus(refusal, record_.request_id), refusal.message, {});
  }

 private:
  // `message`: for the log, which is told more than the caller.
  void Finish(const grpc::Status& status, const std::string& message,
              const grpc::ByteBuffer& response) {
    record_.outcome = CodeLabel(status.error_code());
    record_.message = message;
    record_.total_seconds = rpc_.Seconds();
    rpc_.End(record_.outcome);
    TellOfEnd(record_, spans_);
    answer_.Finish(status, response);
  }

  metrics::ServerMetrics& metrics_;
  tracing::SpanExporter* const spans_;
  RpcScope rpc_;
  RequestRecord record_;
  UnaryAnswer& answer_;
};

// A unary RPC whose answer is always the same.
template <class Request>
void AnswerAlike(const CallContext& shared, const std::string& method, const ServiceCall& call,
                 UnaryAnswer& answer, const absl::StatusOr<grpc::ByteBuffer>& response) {
  UnaryCall unary(shared, method, call, answer);
  if (!call.caller.ok()) return unary.Answer(call.caller.status());
  const auto request = Guarded([&] { return Parsed<Request>(&call.request); });
  if (!request.ok()) return unary.Answer(request.status());
  unary.Answer(response);
}

// A call with one answer that a worker makes, of those that prepare streams.
template <class Response>
class WorkerCall {
 public:
  using Made = absl::StatusOr<Response>;
  WorkerCall(const CallContext& shared, const std::string& method, const ServiceCall& call,
             UnaryAnswer& answer)
      : scheduler_(shared.scheduler),
        cancellation_(std::make_shared<scheduling::Cancellation>(DeadlineOf(call.context))),
        call_(shared, method, call, answer) {
    answer.OnCancel([scheduler = scheduler_, cancellation = cancellation_] {
      cancellation->Cancel(absl::CancelledError("the caller cancelled"));
      scheduler->DropCancelled();
    });
  }

  scheduling::Scheduler* scheduler() const { return scheduler_; }
  const std::shared_ptr<scheduling::Caller>& caller() const { return caller_; }
  const std::shared_ptr<scheduling::Cancellation>& cancellation() const { return cancellation_; }

  // A place for a request that takes so much memory. False: the call was ended with the refusal.
  bool Arrive(const ServiceCall& call, int64_t memory_bytes) {
    if (!call.caller.ok()) {
      End(Made(call.caller.status()));
      return false;
    }
    caller_ = *call.caller;
    auto arrival = scheduler_->Arrive(caller_, cancellation_->deadline());
    if (const auto* refusal = std::get_if<scheduling::Refusal>(&arrival)) return Refuse(*refusal);
    arrival_ = std::get<scheduling::Scheduler::Arrival>(std::move(arrival));
    auto upload = scheduler_->Reserve(memory_bytes, scheduling::MemoryUse::kUpload, caller_);
    if (const auto* refusal = std::get_if<scheduling::Refusal>(&upload)) return Refuse(*refusal);
    upload_ = std::get<scheduling::MemoryBudget::Reservation>(std::move(upload));
    return true;
  }
  // The memory of the request, to be kept beyond the call.
  scheduling::MemoryBudget::Reservation TakeMemory() { return std::move(upload_); }
  // More memory for the request; false: there is none now.
  bool Grow(int64_t more_bytes) {
    if (upload_.Grow(more_bytes)) return true;
    lacking_ =
        scheduler_->WhyNot(upload_.bytes(), more_bytes, scheduling::MemoryUse::kUpload, *caller_);
    return false;
  }
  // The refusal, once there was no more memory.
  const std::optional<scheduling::Refusal>& lacking() const { return lacking_; }
  bool Refuse(const scheduling::Refusal& refusal) {
    GiveBack();
    call_.Refuse(refusal);
    return false;
  }
  void End(const Made& made) {
    GiveBack();
    made.ok() ? call_.Answer(Serialized(*made)) : call_.Answer(made.status());
  }

 private:
  // Before the caller knows: a client that has its answer finds nothing held.
  void GiveBack() {
    upload_ = scheduling::MemoryBudget::Reservation();
    arrival_ = scheduling::Scheduler::Arrival();
  }

  scheduling::Scheduler* scheduler_;
  const std::shared_ptr<scheduling::Cancellation> cancellation_;
  UnaryCall call_;
  std::shared_ptr<scheduling::Caller> caller_;
  scheduling::Scheduler::Arrival arrival_;
  scheduling::MemoryBudget::Reservation upload_;
  std::optional<scheduling::Refusal> lacking_;
};

// Has a worker make the answer of a call that has arrived.
template <class Response>
void Enqueue(const std::shared_ptr<WorkerCall<Response>>& call,
             std::function<absl::StatusOr<Response>(const conversion::CompileControl&)> make) {
  using Made = absl::StatusOr<Response>;
  scheduling::WorkQueue::Job job;
  job.caller = call->caller();
  job.cancellation = call->cancellation();
  job.run = [call, make = std::move(make)](const absl::Status& on_time, absl::Duration,
                                           scheduling::WorkQueue::Turn&) {
    if (!on_time.ok()) return call->End(Made(on_time));
    CompileMemory memory(*call->scheduler(), call->caller());
    Made made = make(memory.Control(call->cancellation()));
    const absl::Status ends = call->cancellation()->Check();
    const auto& lacking = memory.lacking() ? memory.lacking() : call->lacking();
    if (lacking && absl::IsResourceExhausted(made.status())) {
      call->Refuse(*lacking);
      return;
    }
    call->End(absl::IsCancelled(made.status()) && !ends.ok() ? Made(ends) : std::move(made));
  };
  job.make_room = [call](const scheduling::Refusal& refusal) { call->Refuse(refusal); };
  const auto refusal = call->scheduler()->preparation().Enqueue(job);
  if (refusal) call->Refuse(*refusal);
}

// Takes the bytes, so that they are not kept beside the message.
grpc::ByteBuffer Taken(grpc::ByteBuffer& bytes) {
  grpc::ByteBuffer taken;
  taken.Swap(&bytes);
  return taken;
}

// Takes memory for an entry that is kept, until it goes.
std::function<std::shared_ptr<void>(int64_t bytes)> LeaseOf(scheduling::MemoryBudget& memory,
                                                            scheduling::MemoryUse use) {
  return [&memory, use](int64_t bytes) -> std::shared_ptr<void> {
    auto reservation = memory.Reserve(bytes, use);
    if (!reservation) return nullptr;
    return std::make_shared<scheduling::MemoryBudget::Reservation>(*std::move(reservation));
  };
}

// Entries take their memory from `memory`.
conversion::ProgramCacheOptions LeasedFrom(scheduling::MemoryBudget& memory,
                                           conversion::ProgramCacheOptions options) {
  options.lease = LeaseOf(memory, scheduling::MemoryUse::kCache);
  return options;
}

// `Ready` makes the work of a message that was read, and tells the label of its world.
template <class Request>
using Ready = std::function<absl::StatusOr<PreparedWork>(
    Request& request, const std::string& caller, std::string& world_label,
    const PrepareControl& control)>;

template <class Request>
void Stream(const CallContext& shared, metrics::Mode mode, const std::string& method,
            const ServiceCall& asked, StreamAnswer& answer, const Ready<Request>& ready,
            const std::function<Preparation(const Request&)>& cost_of) {
  auto call = std::make_shared<StreamingCall>(shared, mode, method, DeadlineOf(asked.context),
                                              MetadataOf(asked.context, "traceparent"));
  auto* reactor = StreamReactor::Open(call, answer, *shared.streams);
  if (!asked.caller.ok()) {
    return call->Deny(asked.caller.status(), reactor, PeerOf(asked.context));
  }
  const auto size = static_cast<int64_t>(asked.request.Length());
  if (!call->Arrive(*asked.caller, size, reactor)) return;
  const std::string caller = (*asked.caller)->name();
  if (size > kQuickBytes) {
    const auto kept = std::make_shared<grpc::ByteBuffer>(Taken(asked.request));
    const auto read = [kept, ready, caller](
                          std::string& label,
                          const PrepareControl& control) -> absl::StatusOr<PreparedWork> {
      auto request = Guarded([&] { return Parsed<Request>(kept.get()); });
      if (!request.ok()) return request.status();
      return Guarded([&] { return ready(*request, caller, label, control); });
    };
    return call->Begin(read, Preparation::kCostly);
  }
  auto parsed = Guarded([&] { return Parsed<Request>(&asked.request); });
  if (!parsed.ok()) return call->Deny(parsed.status(), reactor);
  const Preparation cost = cost_of(*parsed);
  const auto request = std::make_shared<Request>(*std::move(parsed));
  call->Begin(
      [request, ready, caller](std::string& label, const PrepareControl& control) {
        return Guarded([&] { return ready(*request, caller, label, control); });
      },
      cost);
}

KeptRunsOptions LeasedFrom(scheduling::MemoryBudget& memory, metrics::ServerMetrics& metrics,
                           KeptRunsOptions options) {
  options.lease = LeaseOf(memory, scheduling::MemoryUse::kKept);
  options.free_bytes = [&memory] { return memory.free(); };
  options.on_lost = [&metrics](KeptLost why) {
    metrics.tape_evictions.at(kKeptLostNames[static_cast<size_t>(why)]).Increment();
  };
  return options;
}

CallContext With(CallContext context, KeptRuns& kept) {
  context.kept = &kept;
  return context;
}

}  // namespace

SimgradService::SimgradService(CallContext context, PrepareOptions options, v1::ServerInfo info,
                               conversion::ProgramCacheOptions cache, KeptRunsOptions kept,
                               ContentsOptions contents)
    : kept_(LeasedFrom(context.scheduler->memory(), *context.metrics, std::move(kept))),
      contents_(std::move(contents)),
      context_(With(std::move(context), kept_)),
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
  const auto worlds = conversion::ListWorlds();
  worlds_bytes_ =
      worlds.ok() ? absl::StatusOr<grpc::ByteBuffer>(Serialized(*worlds)) : worlds.status();
  context_.scheduler->memory().SetRelief([this](int64_t bytes) {
    kept_.DropExpired();
    contents_.DropExpired();
    int64_t freed = cache_.Relieve(bytes);
    // Code is made again in a moment; content comes once more; a kept rollout costs its caller a
    // simulation.
    freed += context_.engine->Relieve(bytes - freed);
    freed += contents_.Relieve(bytes - freed);
    kept_.Relieve(bytes - freed);
  });
}

void SimgradService::SetPorts(int port, int metrics_port) {
  info_.set_port(port);
  info_.set_metrics_port(metrics_port);
  info_bytes_ = Serialized(info_);
}

void SimgradService::GetServerInfo(const ServiceCall& call, UnaryAnswer& answer) {
  AnswerAlike<v1::GetServerInfoRequest>(context_, "GetServerInfo", call, answer, info_bytes_);
}

void SimgradService::ListWorlds(const ServiceCall& call, UnaryAnswer& answer) {
  AnswerAlike<v1::ListWorldsRequest>(context_, "ListWorlds", call, answer, worlds_bytes_);
}

void SimgradService::DescribeProgram(const ServiceCall& asked, UnaryAnswer& answer) {
  using Call = WorkerCall<v1::DescribeProgramResponse>;
  const auto call = std::make_shared<Call>(context_, "DescribeProgram", asked, answer);
  if (!call->Arrive(asked, kRequestCopies * static_cast<int64_t>(asked.request.Length()))) return;
  const auto kept = std::make_shared<grpc::ByteBuffer>(Taken(asked.request));
  Enqueue<v1::DescribeProgramResponse>(
      call, [this, kept, call = call.get()](const conversion::CompileControl& control) {
        return Guarded([&]() -> absl::StatusOr<v1::DescribeProgramResponse> {
          auto request = Parsed<v1::DescribeProgramRequest>(kept.get());
          if (!request.ok()) return request.status();
          const auto take = [call](int64_t bytes) { return call->Grow(kRequestCopies * bytes); };
          Resolved resolved;
          const absl::Status status =
              Resolve(ReferencesOf(call->caller()->name(), control, take), *request, resolved);
          if (!status.ok()) return status;
          return conversion::DescribeProgram(*request, cache_, control,
                                             options_.limits.max_message_bytes, resolved.worlds);
        });
      });
}

ReferenceOptions SimgradService::ReferencesOf(const std::string& caller,
                                              const conversion::CompileControl& compile,
                                              std::function<bool(int64_t bytes)> take) {
  return {&contents_,     &cache_, compile, caller, info_.limits().max_request_bytes(),
          std::move(take)};
}

// Prepares a request once what it names is found.
template <class Request>
absl::StatusOr<PreparedWork> SimgradService::PrepareResolved(
    Request& request, const std::string& caller, const PrepareControl& control,
    const std::function<absl::StatusOr<PreparedWork>(const PrepareOptions& options)>& prepare) {
  Resolved resolved;
  const absl::Status status =
      Resolve(ReferencesOf(caller, control.compile, control.take_content), request, resolved);
  if (!status.ok()) return status;
  PrepareOptions options = options_;
  options.worlds = std::move(resolved.worlds);
  auto prepared = prepare(options);
  if (prepared.ok()) prepared->compile_seconds += resolved.compile_seconds;
  return prepared;
}

// Answers a Rollout or a Gradient, whose request has a spec.
template <class Request>
void SimgradService::StreamSpec(const std::string& method, metrics::Mode mode,
                                const ServiceCall& asked, StreamAnswer& answer) {
  const auto ready = [this](Request& request, const std::string& caller, std::string& label,
                            const PrepareControl& control) -> absl::StatusOr<PreparedWork> {
    label = conversion::WorldLabel(request.spec().world());
    return PrepareResolved(request, caller, control, [&](const PrepareOptions& options) {
      return Prepare(request, cache_, options, control);
    });
  };
  const auto cost = [](const Request& request) {
    return HasReferences(request) ? Preparation::kCostly : PreparationOf(request.spec().world());
  };
  Stream<Request>(context_, mode, method, asked, answer, ready, cost);
}

void SimgradService::Rollout(const ServiceCall& call, StreamAnswer& answer) {
  StreamSpec<v1::RolloutRequest>("Rollout", metrics::Mode::kRollout, call, answer);
}

void SimgradService::Gradient(const ServiceCall& call, StreamAnswer& answer) {
  StreamSpec<v1::GradientRequest>("Gradient", metrics::Mode::kGradient, call, answer);
}

void SimgradService::Vjp(const ServiceCall& call, StreamAnswer& answer) {
  const auto ready = [this](v1::VjpRequest& request, const std::string& caller, std::string& label,
                            const PrepareControl& control) -> absl::StatusOr<PreparedWork> {
    const absl::StatusOr<KeptRuns::Kept> kept = kept_.Find(request.handle(), caller);
    if (!kept.ok()) return kept.status();
    label = conversion::WorldLabel(kept->spec->world());
    return PrepareResolved(request, caller, control, [&](const PrepareOptions& options) {
      return Prepare(std::move(request), *kept, cache_, options, control);
    });
  };
  // How large its program is stands in what was kept.
  const auto cost = [](const v1::VjpRequest&) { return Preparation::kCostly; };
  Stream<v1::VjpRequest>(context_, metrics::Mode::kVjp, "Vjp", call, answer, ready, cost);
}

void SimgradService::Compare(const ServiceCall& call, StreamAnswer& answer) {
  const auto ready = [this](v1::CompareRequest& request, const std::string& caller,
                            std::string& label,
                            const PrepareControl& control) -> absl::StatusOr<PreparedWork> {
    const bool is_gradient = request.has_gradient();
    label = conversion::WorldLabel(
        (is_gradient ? request.gradient().spec() : request.rollout().spec()).world());
    return PrepareResolved(request, caller, control, [&](const PrepareOptions& options) {
      return Variants::Begin(std::make_shared<Variants>(std::move(request), cache_, options),
                             control);
    });
  };
  const auto cost = [](const v1::CompareRequest&) { return Preparation::kCostly; };
  Stream<v1::CompareRequest>(context_, metrics::Mode::kCompare, "Compare", call, answer, ready,
                             cost);
}

void SimgradService::Upload(const ServiceCall& asked, UnaryAnswer& answer) {
  const auto call =
      std::make_shared<WorkerCall<v1::UploadResponse>>(context_, "Upload", asked, answer);
  const int64_t bytes = asked.content == nullptr ? 0 : asked.content->bytes();
  if (!call->Arrive(asked, bytes + Contents::kBesideContent)) return;
  if (absl::Status status = asked.content->Check(); !status.ok()) return call->End(status);
  // It lives until the answer is given.
  ReceivedContent* const content = asked.content;
  Enqueue<v1::UploadResponse>(
      call, [this, content, call = call.get()](const conversion::CompileControl& control) {
        return Guarded([&]() -> absl::StatusOr<v1::UploadResponse> {
          auto whole = content->Join(control.stop);
          if (!whole.ok()) return whole.status();
          const scheduling::Caller& caller = *call->caller();
          if (!contents_.Keep(*std::move(whole), content->digest(), caller.name(),
                              caller.limits().memory_bytes, call->TakeMemory())) {
            return absl::ResourceExhaustedError(
                "this content is larger than what may be kept for this caller; send it inline");
          }
          v1::UploadResponse response;
          response.set_ref(content->digest());
          response.set_seconds(absl::ToDoubleSeconds(contents_.ttl()));
          return response;
        });
      });
}

}  // namespace simgrad::server::service
