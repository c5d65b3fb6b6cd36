#include "server/service/health_call.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <string>
#include <vector>

namespace simgrad::server::service {
namespace {

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

HealthAnswer AskHealth(const std::shared_ptr<grpc::Channel>& channel,
                       std::chrono::system_clock::time_point deadline) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(deadline);
  grpc::CompletionQueue queue;
  // An empty request asks for the server as a whole.
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  grpc::ByteBuffer response;
  HealthAnswer answer;
  call->StartCall();
  call->Finish(&response, &answer.status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  answer.serving = answer.status.ok() && SaysServing(response);
  return answer;
}

}  // namespace simgrad::server::service
