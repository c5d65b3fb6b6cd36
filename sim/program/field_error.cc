#include "sim/program/field_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace simgrad::sim {
namespace {
constexpr char kPayload[] = "simgrad/field";
constexpr char kLimit[] = "simgrad/limit";
}  // namespace

absl::Status FieldError(const std::string& field, const std::string& message) {
  absl::Status status =
      absl::InvalidArgumentError(field.empty() ? message : absl::StrCat(field, ": ", message));
  status.SetPayload(kPayload, absl::Cord(field));
  return status;
}

std::string NameList(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

absl::Status LimitError(const std::string& field, const std::string& message) {
  absl::Status status = FieldError(field, message);
  status.SetPayload(kLimit, absl::Cord());
  return status;
}

bool IsLimit(const absl::Status& status) { return status.GetPayload(kLimit).has_value(); }

std::string FieldOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::Status InField(const std::string& prefix, const absl::Status& status) {
  if (status.ok() || prefix.empty()) return status;
  const std::string field = FieldOf(status);
  std::string message(status.message());
  if (!field.empty() && message.rfind(field + ": ", 0) == 0) message.erase(0, field.size() + 2);
  const bool join = !field.empty() && field[0] != '[';
  const std::string whole = absl::StrCat(prefix, join ? "." : "", field);
  absl::Status result(status.code(), absl::StrCat(whole, ": ", message));
  result.SetPayload(kPayload, absl::Cord(whole));
  if (IsLimit(status)) result.SetPayload(kLimit, absl::Cord());
  return result;
}

}  // namespace simgrad::sim
