#include "sim/backend/compiled/group/event_layout.h"

#include <bit>

namespace simgrad::sim::compiled {

EventLayout::EventLayout(const std::vector<plan::RecordedSite>& events, int lanes) {
  constexpr int64_t kChoiceBytes = sizeof(uint32_t);
  const int64_t word = std::bit_ceil(static_cast<uint32_t>(lanes + 7) / 8);
  places_.reserve(events.size());
  for (const plan::RecordedSite& event : events) {
    const int64_t alignment = event.chooses ? kChoiceBytes : word;
    bytes_ = (bytes_ + alignment - 1) / alignment * alignment;
    places_.push_back({bytes_, event.chooses ? kChoiceBytes * lanes : word});
    bytes_ += event.elements * places_.back().element_bytes;
  }
}

}  // namespace simgrad::sim::compiled
