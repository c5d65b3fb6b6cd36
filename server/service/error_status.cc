#include "server/service/error_status.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/validation/request_error.h"
#include "sim/backend/cuda/device.h"
#include "sim/program/field_error.h"
#include "simgrad/v1/error_details.pb.h"

namespace simgrad::server::service {
namespace {

// A status travels in trailing metadata, of which gRPC takes 8 KiB by default and drops the call
// beyond. A message goes three times (percent-encoded, so up to three bytes each; in the details;
// as a description), a field once: 5 * 1000 + 300 bytes, and some 200 for the rest.
constexpr size_t kMessageBytes = 1000;
constexpr size_t kFieldBytes = 300;

// A message that quotes a caller may be as long as a request. Its beginning says what is wrong and
// its end what would be right, so the middle goes, between whole characters of UTF-8.
std::string Shortened(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  const auto continues = [&text](size_t i) { return (text[i] & 0xC0) == 0x80; };
  constexpr absl::string_view kGap = " ... ";
  const size_t kept = bytes - kGap.size();
  size_t head = 2 * kept / 3;
  size_t tail = text.size() - (kept - head);
  while (head > 0 && continues(head)) --head;
  while (tail < text.size() && continues(tail)) ++tail;
  return absl::StrCat(text.substr(0, head), kGap, text.substr(tail));
}

// The messages of error_details.proto travel as what they are wire-compatible with.
template <class Message>
void AddDetail(const Message& message, const std::string& google_name, v1::ErrorStatus& status) {
  google::protobuf::Any* any = status.add_details();
  any->set_type_url("type.googleapis.com/google.rpc." + google_name);
  any->set_value(message.SerializeAsString());
}

void AddInfo(const std::string& reason, const std::string& request_id, v1::ErrorStatus& status) {
  v1::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("simgrad");
  (*info.mutable_metadata())["request_id"] = request_id;
  AddDetail(info, "ErrorInfo", status);
}

void AddRetry(absl::Duration after, v1::ErrorStatus& message) {
  v1::RetryInfo retry;
  const int64_t nanos = absl::ToInt64Nanoseconds(after);
  retry.mutable_retry_delay()->set_seconds(nanos / 1'000'000'000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  AddDetail(retry, "RetryInfo", message);
}

grpc::Status Finished(v1::ErrorStatus status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message(),
                      status.SerializeAsString());
}

std::string DefaultReason(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_FIELD";
    case absl::StatusCode::kResourceExhausted:
      return "OUT_OF_MEMORY";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kUnavailable:
      return sim::cuda::IsDeviceLost(status) ? "DEVICE_LOST" : "DRAINING";
    case absl::StatusCode::kUnimplemented:
      return "NOT_SUPPORTED";
    case absl::StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    default:
      return "INTERNAL";
  }
}

// Codes that no method declares are ours to answer for.
grpc::StatusCode CodeOf(const absl::Status& status) {
  const std::string reason = validation::ReasonOf(status);
  if (reason == "TAPE_GONE") return grpc::StatusCode::NOT_FOUND;
  if (reason == "TENSOR_GONE") return grpc::StatusCode::FAILED_PRECONDITION;
  const bool internal = DefaultReason(status) == "INTERNAL";
  return internal ? grpc::StatusCode::INTERNAL : static_cast<grpc::StatusCode>(status.code());
}

// The codes that methods end with; any other is INTERNAL.
constexpr std::pair<grpc::StatusCode, const char*> kCodeLabels[] = {
    {grpc::StatusCode::OK, "OK"},
    {grpc::StatusCode::CANCELLED, "Canceled"},
    {grpc::StatusCode::INVALID_ARGUMENT, "InvalidArgument"},
    {grpc::StatusCode::UNIMPLEMENTED, "Unimplemented"},
    {grpc::StatusCode::DEADLINE_EXCEEDED, "DeadlineExceeded"},
    {grpc::StatusCode::RESOURCE_EXHAUSTED, "ResourceExhausted"},
    {grpc::StatusCode::UNAVAILABLE, "Unavailable"},
    {grpc::StatusCode::UNAUTHENTICATED, "Unauthenticated"},
    {grpc::StatusCode::NOT_FOUND, "NotFound"},
    {grpc::StatusCode::FAILED_PRECONDITION, "FailedPrecondition"}};

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status, const std::string& request_id) {
  if (status.ok()) return grpc::Status::OK;
  v1::ErrorStatus message;
  message.set_code(CodeOf(status));
  // The cause of an internal error is for the log (RequestRecord::message), not for the caller.
  message.set_message(CodeOf(status) == grpc::StatusCode::INTERNAL
                          ? "internal error; the server's log has it under request id " + request_id
                          : Shortened(status.message(), kMessageBytes));
  const std::string field = sim::FieldOf(status);
  if (!field.empty()) {
    v1::BadRequest bad;
    v1::BadRequest::FieldViolation* violation = bad.add_field_violations();
    violation->set_field(Shortened(field, kFieldBytes));
    std::string description(status.message());
    if (description.rfind(field + ": ", 0) == 0) description.erase(0, field.size() + 2);
    violation->set_description(Shortened(description, kMessageBytes));
    AddDetail(bad, "BadRequest", message);
  }
  const std::string reason = validation::ReasonOf(status);
  const std::string told = reason.empty() ? DefaultReason(status) : reason;
  AddInfo(told, request_id, message);
  if (told == "DRAINING") AddRetry(scheduling::kElsewhereAfter, message);
  return Finished(message);
}

grpc::Status ToGrpcStatus(const scheduling::Refusal& refusal, const std::string& request_id) {
  v1::ErrorStatus message;
  message.set_message(refusal.message);
  std::string reason;
  switch (refusal.reason) {
    case scheduling::RefusalReason::kFull:
      message.set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
      reason = "QUEUE_FULL";
      break;
    case scheduling::RefusalReason::kMemory:
    case scheduling::RefusalReason::kTooLarge:
      message.set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
      reason = "OUT_OF_MEMORY";
      break;
    case scheduling::RefusalReason::kInFlight:
    case scheduling::RefusalReason::kRate:
    case scheduling::RefusalReason::kShare:
      message.set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
      reason = "CALLER_LIMIT";
      break;
    case scheduling::RefusalReason::kLength:
      message.set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
      reason = "LIMIT_EXCEEDED";
      break;
    case scheduling::RefusalReason::kDeadline:
      message.set_code(grpc::StatusCode::DEADLINE_EXCEEDED);
      reason = "DEADLINE";
      break;
    case scheduling::RefusalReason::kDraining:
      message.set_code(grpc::StatusCode::UNAVAILABLE);
      reason = "DRAINING";
      break;
  }
  AddInfo(reason, request_id, message);
  if (refusal.retry_after > absl::ZeroDuration()) AddRetry(refusal.retry_after, message);
  return Finished(message);
}

std::string RefusalLabel(scheduling::RefusalReason reason) {
  switch (reason) {
    case scheduling::RefusalReason::kFull:
      return "full";
    case scheduling::RefusalReason::kMemory:
      return "memory";
    case scheduling::RefusalReason::kDeadline:
      return "deadline";
    case scheduling::RefusalReason::kDraining:
      return "draining";
    case scheduling::RefusalReason::kInFlight:
    case scheduling::RefusalReason::kRate:
    case scheduling::RefusalReason::kShare:
      return "caller";
    case scheduling::RefusalReason::kTooLarge:
      return "too_large";
    case scheduling::RefusalReason::kLength:
      return "too_long";
  }
  return "";
}

std::string CodeLabel(grpc::StatusCode code) {
  for (const auto& [labelled, label] : kCodeLabels) {
    if (labelled == code) return label;
  }
  return "Internal";
}

grpc::StatusCode CodeWithLabel(const std::string& label) {
  for (const auto& [labelled, other] : kCodeLabels) {
    if (other == label) return labelled;
  }
  return grpc::StatusCode::INTERNAL;
}

}  // namespace simgrad::server::service
