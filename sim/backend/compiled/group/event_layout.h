// The places where a group keeps what each element of each event was when it was last asked.
//
// Layout: event after event, element after element. An event holds or does not: one bit for each
//   lane, the first lane lowest, in a word of 1, 2, 4 or 8 bytes. A choice is a number: [lane] of u32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

class EventLayout {
 public:
  struct Place {
    int64_t offset = 0;         // in bytes
    int64_t element_bytes = 0;  // of one element, all lanes
  };

  EventLayout(const std::vector<plan::RecordedSite>& events, int lanes);
  int64_t bytes() const { return bytes_; }
  const Place& PlaceOf(int32_t event) const { return places_[static_cast<size_t>(event)]; }

 private:
  std::vector<Place> places_;
  int64_t bytes_ = 0;
};

}  // namespace simgrad::sim::compiled
