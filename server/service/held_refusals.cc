#include "server/service/held_refusals.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace simgrad::server::service {

absl::Duration HeldRefusals::HoldFor(absl::Duration turn, absl::Duration left) {
  const absl::Duration longest = left / 2 - absl::FromChrono(OpenStreams::kInterval);
  return std::max(std::min(turn, longest), absl::ZeroDuration());
}

bool HeldRefusals::Add(std::shared_ptr<HeldRefusal> refusal, Clock::time_point due) {
  std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(refusals_.size()) >= most_) return false;
  refusals_.emplace(due, std::move(refusal));
  return true;
}

void HeldRefusals::Look(Clock::time_point now) {
  std::vector<std::shared_ptr<HeldRefusal>> due;
  int64_t room = room_();
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(had_room_, room > 0)) room = 0;
    auto next = refusals_.begin();
    for (; next != refusals_.end() && (next->first <= now || room > 0); ++next, --room) {
      due.push_back(std::move(next->second));
    }
    refusals_.erase(refusals_.begin(), next);
  }
  for (const auto& refusal : due) refusal->Tell();
}

int64_t HeldRefusals::size() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(refusals_.size());
}

}  // namespace simgrad::server::service
