#include "server/service/encoded_part.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpc/slice.h>

namespace simgrad::server::service {
namespace {

using google::protobuf::io::CodedOutputStream;

constexpr int kParts = v1::RolloutResponse::kPartsFieldNumber;
constexpr int kHeader = v1::RolloutPart::kHeaderFieldNumber;
constexpr int kDiagnostics = v1::RolloutPart::kDiagnosticsFieldNumber;
constexpr int kTrajectory = v1::RolloutPart::kTrajectoryFieldNumber;
constexpr int kProgress = v1::RolloutPart::kProgressFieldNumber;
constexpr int kPiece = v1::RolloutPart::kPieceFieldNumber;
static_assert(kParts == int{v1::GradientResponse::kPartsFieldNumber});
static_assert(kHeader == int{v1::GradientPart::kHeaderFieldNumber});
static_assert(kDiagnostics == int{v1::GradientPart::kDiagnosticsFieldNumber});
static_assert(kTrajectory == int{v1::GradientPart::kTrajectoryFieldNumber});
static_assert(kProgress == int{v1::GradientPart::kProgressFieldNumber});
static_assert(kPiece == int{v1::GradientPart::kPieceFieldNumber});
static_assert(kParts == int{v1::CompareResponse::kPartsFieldNumber});
static_assert(kHeader == int{v1::ComparePart::kHeaderFieldNumber});
static_assert(kDiagnostics == int{v1::ComparePart::kDiagnosticsFieldNumber});
static_assert(kTrajectory == int{v1::ComparePart::kTrajectoryFieldNumber});
static_assert(kProgress == int{v1::ComparePart::kProgressFieldNumber});
static_assert(kPiece == int{v1::ComparePart::kPieceFieldNumber});
static_assert(int{v1::GradientPart::kBackwardFieldNumber} ==
              int{v1::ComparePart::kBackwardFieldNumber});
static_assert(int{v1::GradientPart::kResultFieldNumber} ==
              int{v1::ComparePart::kGradientFieldNumber});

// A field of `length` bytes begins with its number, below 16, the type of everything that has a
// length, and the length.
constexpr int kLengthDelimited = 2;
size_t HeadBytes(size_t length) {
  return 1 + CodedOutputStream::VarintSize32(static_cast<uint32_t>(length));
}
uint8_t* WriteHead(int field, size_t length, uint8_t* to) {
  *to++ = static_cast<uint8_t>(field << 3 | kLengthDelimited);
  return CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(length), to);
}

// `program`: field 1 of a header, as bytes; else empty.
grpc::Slice Enclosed(int part, const std::string& program, const google::protobuf::Message& rest) {
  const size_t before = program.empty() ? 0 : HeadBytes(program.size()) + program.size();
  const size_t message = before + rest.ByteSizeLong();
  const size_t enclosed = HeadBytes(message) + message;
  grpc_slice slice = grpc_slice_malloc(HeadBytes(enclosed) + enclosed);
  uint8_t* to = WriteHead(kParts, enclosed, GRPC_SLICE_START_PTR(slice));
  to = WriteHead(part, message, to);
  if (!program.empty()) {
    to = WriteHead(v1::StreamHeader::kProgramFieldNumber, program.size(), to);
    to = CodedOutputStream::WriteRawToArray(program.data(), static_cast<int>(program.size()), to);
  }
  rest.SerializeWithCachedSizesToArray(to);
  return grpc::Slice(slice, grpc::Slice::STEAL_REF);
}

}  // namespace

EncodedPart Encoded(const v1::DiagnosticsBlock& part) {
  return {Enclosed(kDiagnostics, "", part), false, "spec.diagnostics"};
}
EncodedPart Encoded(const v1::TrajectoryChunk& part) { return {Enclosed(kTrajectory, "", part)}; }
EncodedPart Encoded(const v1::Progress& part) { return {Enclosed(kProgress, "", part)}; }
EncodedPart Encoded(const v1::TensorPiece& part) { return {Enclosed(kPiece, "", part)}; }
EncodedPart Encoded(const v1::RolloutResult& part) {
  return {Enclosed(v1::RolloutPart::kResultFieldNumber, "", part), true};
}
EncodedPart Encoded(const v1::BackwardBlock& part) {
  return {Enclosed(v1::GradientPart::kBackwardFieldNumber, "", part), false, "spec.diagnostics"};
}
EncodedPart Encoded(const v1::GradientResult& part) {
  return {Enclosed(v1::GradientPart::kResultFieldNumber, "", part), true};
}
EncodedPart EncodedOfCompare(const v1::RolloutResult& part) {
  return {Enclosed(v1::ComparePart::kRolloutFieldNumber, "", part), true};
}
EncodedPart Encoded(const v1::Comparison& part) {
  return {Enclosed(v1::ComparePart::kComparisonFieldNumber, "", part)};
}
EncodedPart Encoded(const v1::StreamHeader& part) { return Encoded("", part); }
EncodedPart Encoded(const std::string& program, const v1::StreamHeader& part) {
  return {Enclosed(kHeader, program, part)};
}

}  // namespace simgrad::server::service
