#include "server/scheduling/cancellation.h"

#include <utility>

#include "server/scheduling/steady_time.h"

namespace simgrad::server::scheduling {
namespace {

// A client whose own timer fires tells us so as a cancellation, a little before our deadline, which
// began when the request arrived. Within this time of the deadline it is taken for what it is.
constexpr absl::Duration kClientTimer = absl::Milliseconds(50);

absl::Status Expired() {
  return absl::DeadlineExceededError("the deadline passed before the work was done");
}

}  // namespace

void Cancellation::Cancel(absl::Status why) {
  if (absl::IsCancelled(why) && SteadyNow() + kClientTimer >= deadline_) why = Expired();
  std::lock_guard lock(mutex_);
  if (why_.ok()) why_ = std::move(why);
}

absl::Status Cancellation::Check() const {
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return why_;
  }
  return SteadyNow() >= deadline_ ? Expired() : absl::OkStatus();
}

}  // namespace simgrad::server::scheduling
