#include "server/tracing/collector.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>

#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace simgrad::server::tracing {
namespace {

constexpr char kMethod[] = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

// Repeats are gRPC's, within the deadline of a call.
constexpr char kServiceConfig[] = R"({"methodConfig": [{"name": [{}], "retryPolicy": {
  "maxAttempts": 5, "initialBackoff": "0.5s", "maxBackoff": "2s", "backoffMultiplier": 2,
  "retryableStatusCodes": ["UNAVAILABLE"]}}]})";

// A collector that comes back is met within a second or so; by default gRPC may wait two minutes.
constexpr int kReconnectMilliseconds = 1000;

// A collector that is gone without a word leaves bytes unacknowledged; its connection is given up
// after kGoneMilliseconds, where the system would wait a quarter of an hour. gRPC sets this limit on a
// socket only beside pings, of which a collector takes one in five minutes.
constexpr int kGoneMilliseconds = 20'000;
constexpr int kPingMilliseconds = 330'000;

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& endpoint, const std::string& ca) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!ca.empty()) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ca;
    credentials = grpc::SslCredentials(options);
  }
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(kServiceConfig);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kGoneMilliseconds);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", endpoint), credentials, arguments);
}

grpc::ByteBuffer BytesOf(const ExportRequest& request) {
  const grpc::Slice slice(request.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<PartialSuccess> RefusedOf(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) return absl::InternalError("an answer without bytes");
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  ExportResponse response;
  if (!response.ParseFromString(text)) return absl::InternalError("an answer that is not OTLP");
  return response.partial_success();
}

class OverGrpc final : public Collector {
 public:
  OverGrpc(const std::string& endpoint, const std::string& ca) : stub_(ChannelTo(endpoint, ca)) {}
  ~OverGrpc() override { queue_.Shutdown(); }

  absl::StatusOr<PartialSuccess> Export(const ExportRequest& request,
                                        absl::Time deadline) override {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    context.set_wait_for_ready(true);
    if (!Begin(&context)) return absl::CancelledError("the exporter stops");
    const auto call = stub_.PrepareUnaryCall(&context, kMethod, BytesOf(request), &queue_);
    grpc::ByteBuffer response;
    grpc::Status status;
    call->StartCall();
    call->Finish(&response, &status, this);
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    Begin(nullptr);
    if (!status.ok()) {
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          status.error_message());
    }
    return RefusedOf(response);
  }

  void Stop() override {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  // Null: no call is in progress any more.
  bool Begin(grpc::ClientContext* context) {
    const std::lock_guard lock(mutex_);
    context_ = is_stopped_ ? nullptr : context;
    return !is_stopped_;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::mutex mutex_;
  grpc::ClientContext* context_ = nullptr;
  bool is_stopped_ = false;
};

}  // namespace

std::unique_ptr<Collector> GrpcCollector(const std::string& endpoint, const std::string& ca) {
  return std::make_unique<OverGrpc>(endpoint, ca);
}

}  // namespace simgrad::server::tracing
