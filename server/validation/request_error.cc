#include "server/validation/request_error.h"

#include "absl/strings/cord.h"
#include "sim/program/field_error.h"

namespace simgrad::server::validation {
namespace {
constexpr char kPayload[] = "simgrad/reason";
}  // namespace

absl::Status WithReason(absl::Status status, const std::string& reason) {
  status.SetPayload(kPayload, absl::Cord(reason));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  return payload ? std::string(*payload) : std::string();
}

absl::Status InvalidField(const std::string& field, const std::string& message) {
  return WithReason(sim::FieldError(field, message), "INVALID_FIELD");
}

absl::Status LimitExceeded(const std::string& field, const std::string& message) {
  return WithReason(sim::FieldError(field, message), "LIMIT_EXCEEDED");
}

absl::Status NotSupported(const std::string& field, const std::string& message) {
  // InField with a status that has no field puts `field` in front of the message.
  return WithReason(sim::InField(field, absl::UnimplementedError(message)), "NOT_SUPPORTED");
}

}  // namespace simgrad::server::validation
