// Walks the bytes of a request before a message is made of them: nothing in them may be ignored,
// and the message may not grow far beyond them.
//
// Refused: fields that the message type does not know, reserved ones too, and known ones of another
//   wire type; what is sent twice where one is kept (a field, a member of a oneof, a key of a map);
//   more small parts than kMostGrowthBytes of memory hold; more than kMostKeys keys in a map.
// Errors: INVALID_FIELD, LIMIT_EXCEEDED with the path of the message at fault; `request` stands for
//   the whole. Bytes that are no message pass: the parser, which comes next, refuses them.
// Cost: linear in the bytes; about 10 ns for a field, nothing for the content of strings and bytes.
// Threads: any.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <cstdint>

#include "absl/status/status.h"

namespace simgrad::server::validation {

// The most memory of a message beyond its bytes. An empty operation is two bytes and becomes a
// third of a KiB. Tensors and ids at their limits stay below half of this; a program that has all of
// its limits' operations, values and indices at once comes close to it.
inline constexpr int64_t kMostGrowthBytes = int64_t{64} << 20;

// Configuration is all that comes as a map, and worlds have some ten keys.
inline constexpr size_t kMostKeys = 4096;

struct WireFacts;

// The facts of a message type and those inside it; kept for the life of the process.
const WireFacts* WireFactsOf(const google::protobuf::Descriptor* type);

absl::Status CheckWire(const WireFacts& facts, google::protobuf::io::ZeroCopyInputStream& bytes);

template <class Message>
absl::Status CheckWire(google::protobuf::io::ZeroCopyInputStream& bytes) {
  static const WireFacts* const facts = WireFactsOf(Message::descriptor());
  return CheckWire(*facts, bytes);
}

}  // namespace simgrad::server::validation
