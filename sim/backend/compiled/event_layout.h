// The places where a group keeps what each element of each event was when it was last asked.
//
// Layout: event after event, element after element. An event holds or does not: one bit for each
//   lane, the first lane lowest, in a word of 1, 2, 4 or 8 bytes. A choice is a number: [lane] of u32.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

class EventLayout {
 public:
  EventLayout(const std::vector<plan::RecordedSite>& events, int lanes);
  int64_t bytes() const { return bytes_; }
  // In bytes.
  int64_t offset(size_t event) const { return offsets_[event]; }
  // One element of an event that is no choice.
  int64_t word_bytes() const { return word_bytes_; }

 private:
  std::vector<int64_t> offsets_;
  int64_t bytes_ = 0;
  int64_t word_bytes_;
};

}  // namespace simgrad::sim::compiled
