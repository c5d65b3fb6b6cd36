// The messages of an Upload as they come: content in pieces, and what its caller says of it.
//
// Errors, as statuses with the field of the message at fault: INVALID_FIELD for a digest that is
//   none or is not that of the content, a size that is not met or exceeded, what is said twice, a
//   piece without bytes; LIMIT_EXCEEDED for too much content, or too many pieces.
// Cost: a copy of each piece; Join hashes all. Threads: one at a time.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/work_meter.h"

namespace simgrad::server::service {

class ReceivedContent {
 public:
  // The most messages of one content: enough for 1 GiB in pieces of 64 KiB.
  static constexpr int64_t kMostMessages = 16384;
  static constexpr size_t kDigestBytes = 32;

  explicit ReceivedContent(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // Takes the next message. False: it is refused, and no more is wanted.
  bool Take(grpc::ByteBuffer& message);
  // The bytes of all messages taken so far, as they travelled.
  int64_t wire_bytes() const { return wire_bytes_; }
  // The bytes of content that came so far.
  int64_t bytes() const { return bytes_; }

  // The reason to refuse the content, or OK. Only once all messages came; Join checks the digest.
  absl::Status Check() const;
  // The whole content, whose digest is checked. Gives up the pieces. CANCELLED if `stop`, which is
  // asked every 2^17 bytes, returned true; empty: it never does.
  absl::StatusOr<std::string> Join(const sim::WorkMeter::StopCallback& stop);
  const std::string& digest() const { return digest_; }

 private:
  absl::Status Add(grpc::ByteBuffer& message);
  std::string Joined(sim::WorkMeter& meter);  // throws sim::StopRequested

  const int64_t most_bytes_;
  absl::Status refused_;
  int64_t messages_ = 0;
  int64_t wire_bytes_ = 0;
  int64_t bytes_ = 0;
  int64_t size_ = 0;  // of the content, as its caller says
  std::string digest_;
  std::vector<std::string> pieces_;
};

}  // namespace simgrad::server::service
