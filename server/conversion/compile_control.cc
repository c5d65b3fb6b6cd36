#include "server/conversion/compile_control.h"

#include <algorithm>

#include "server/validation/request_error.h"
#include "sim/program/field_error.h"

namespace simgrad::server::conversion {
namespace {

// A program exists a second time while it is renumbered, printed and made a message.
constexpr int64_t kCopies = 2;
// The memory of a small program; more is asked for in steps of this size.
constexpr int64_t kStep = int64_t{4} << 20;

}  // namespace

Compilation::Compilation(const CompileControl& control)
    : control_(control), budget_([this] { return Stops(); }) {}

bool Compilation::Stops() {
  if (control_.stop && control_.stop()) return true;
  const int64_t needed = kCopies * (budget_.bytes() + budget_.text_bytes()) + kStep;
  if (needed <= reserved_bytes_ || !control_.reserve) return false;
  const int64_t wanted = std::max(needed, 2 * reserved_bytes_);
  out_of_memory_ = !control_.reserve(wanted);
  if (!out_of_memory_) reserved_bytes_ = wanted;
  return out_of_memory_;
}

absl::Status Compilation::StatusOf(const absl::Status& status, const char* reason) const {
  if (out_of_memory_ && absl::IsCancelled(status)) {
    return absl::ResourceExhaustedError(
        "neither the server nor its share for this caller has memory free now to prepare a program "
        "of this size");
  }
  if (!absl::IsInvalidArgument(status)) return status;
  return validation::WithReason(status, sim::IsLimit(status) ? "LIMIT_EXCEEDED" : reason);
}

}  // namespace simgrad::server::conversion
