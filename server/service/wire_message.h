// Messages as the bytes that travel.
//
// Errors: INVALID_ARGUMENT about field `request` for bytes that are no message of the type; as
// validation::CheckWire for what a message of the type would ignore. Cost: linear.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/validation/request_error.h"
#include "server/validation/wire_check.h"

namespace simgrad::server::service {

template <class Message>
grpc::ByteBuffer Serialized(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  // Fails for messages beyond 2 GiB only; ours are cut far below.
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);
  return bytes;
}

// Takes the bytes of `buffer`, so that they are not kept beside the message.
template <class Message>
absl::StatusOr<Message> Parsed(grpc::ByteBuffer* buffer) {
  grpc::ByteBuffer bytes;
  bytes.Swap(buffer);
  const size_t size = bytes.Length();
  grpc::ProtoBufferReader reader(&bytes);
  if (absl::Status status = validation::CheckWire<Message>(reader); !status.ok()) return status;
  Message message;
  if (grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok()) return message;
  return validation::InvalidField(
      "request", absl::StrCat("these ", size, " bytes are no ", Message::descriptor()->full_name(),
                              ": cut off, damaged, or of another type"));
}

}  // namespace simgrad::server::service
