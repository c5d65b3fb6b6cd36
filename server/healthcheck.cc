#include "server/healthcheck.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace simgrad::server {
namespace {

constexpr auto kTimeout = std::chrono::seconds(3);
// grpc.health.v1.HealthCheckResponse: field 1, a varint; 1 is SERVING. Debian has no health.proto.
constexpr uint32_t kStatusTag = 8;
constexpr uint32_t kServing = 1;

bool SaysServing(const grpc::ByteBuffer& response) {
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return false;
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  uint32_t status = 0;
  return stream.ReadTag() == kStatusTag && stream.ReadVarint32(&status) && status == kServing;
}

}  // namespace

absl::Status CheckHealth(const config::ServerConfig& config) {
  if (config.HasTls() && config.health_port == 0) {
    return absl::FailedPreconditionError(
        "--healthcheck speaks plaintext: with TLS it needs --health_port");
  }
  const std::string host = config.address == "0.0.0.0" ? "127.0.0.1"
                           : config.address == "::"    ? "::1"
                                                       : config.address;
  const bool v6 = host.find(':') != std::string::npos;
  const int port = config.health_port != 0 ? config.health_port : config.port;
  const std::string target =
      v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
  grpc::ChannelArguments direct;
  direct.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // that a container engine sets for everyone
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), direct));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  grpc::CompletionQueue queue;
  // An empty request asks for the server as a whole.
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  grpc::ByteBuffer response;
  grpc::Status status;
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat(target, ": ", status.error_message()));
  }
  if (SaysServing(response)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(target, " says that it does not serve"));
}

}  // namespace simgrad::server
