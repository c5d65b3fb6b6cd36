// A part of an answer as the bytes that stand for it in a message.
//
// All streams give the parts that they have in common the same numbers, so a message of any is the
// bytes of its parts, one after the other: putting a message together copies nothing. Cost: one
// serialisation, on the thread that made the part.
#pragma once

#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>

#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::service {

struct EncodedPart {
  grpc::Slice bytes;
  bool is_result = false;  // the last one of a run
  // The field of the request to ask less of, where the part is longer than a message may be.
  const char* field = "spec.world";
  int64_t size() const { return static_cast<int64_t>(bytes.size()); }
};

EncodedPart Encoded(const v1::DiagnosticsBlock& part);
EncodedPart Encoded(const v1::TrajectoryChunk& part);
EncodedPart Encoded(const v1::Progress& part);
EncodedPart Encoded(const v1::TensorPiece& part);
EncodedPart Encoded(const v1::RolloutResult& part);
EncodedPart Encoded(const v1::BackwardBlock& part);  // of Gradient alone
EncodedPart Encoded(const v1::GradientResult& part);
// Parts of Compare alone. Its runs end with a result that has a number of its own where they are rollouts.
EncodedPart EncodedOfCompare(const v1::RolloutResult& part);
inline EncodedPart EncodedOfCompare(const v1::GradientResult& part) { return Encoded(part); }
EncodedPart Encoded(const v1::Comparison& part);
EncodedPart Encoded(const v1::StreamHeader& part);
// A header whose `program` is given as its bytes; `part` has none.
EncodedPart Encoded(const std::string& program, const v1::StreamHeader& part);

}  // namespace simgrad::server::service
