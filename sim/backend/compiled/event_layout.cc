#include "sim/backend/compiled/event_layout.h"

#include <bit>

namespace simgrad::sim::compiled {

EventLayout::EventLayout(const std::vector<plan::RecordedSite>& events, int lanes)
    : word_bytes_(std::bit_ceil(static_cast<uint32_t>(lanes + 7) / 8)) {
  constexpr int64_t kChoiceBytes = sizeof(uint32_t);
  offsets_.reserve(events.size());
  for (const plan::RecordedSite& event : events) {
    const int64_t alignment = event.chooses ? kChoiceBytes : word_bytes_;
    bytes_ = (bytes_ + alignment - 1) / alignment * alignment;
    offsets_.push_back(bytes_);
    bytes_ += event.elements * (event.chooses ? kChoiceBytes * lanes : word_bytes_);
  }
}

}  // namespace simgrad::sim::compiled
