// Differences between the paths of two runs, row by row: a row is the bytes of one instance in one step.
//
// Cost: of a row, a look at eight bytes at a time, and then what differs. Threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/path_layout.h"

namespace simgrad::sim {

struct DifferingDecision {
  int32_t column = -1;   // -1: none
  int64_t element = -1;  // flat, in the shape of the column
  bool operator==(const DifferingDecision&) const = default;
};

class PathDifference {
 public:
  // Both paths are of this layout, which stays.
  explicit PathDifference(const PathLayout& layout);

  // The first decision of the step that differs, in the order in which the step takes them
  // (PathColumn::loops). Two runs of which one leaves a loop earlier differ at the loop, unless a
  // decision inside differs before.
  DifferingDecision First(const uint8_t* reference, const uint8_t* other) const;

  // Adds to the count of each column how many of its decisions differ.
  void Count(const uint8_t* reference, const uint8_t* other, std::vector<uint64_t>& counts) const;

 private:
  // A column by its bits or bytes, ascending: [first, end).
  struct Extent {
    int64_t first = 0;
    int64_t end = 0;
    int64_t width = 0;  // bytes of a number; of bits 0
    int32_t column = -1;
  };
  // Calls `found` with the column and the element of each decision that differs, ascending.
  template <class Found>
  void ForEach(const uint8_t* reference, const uint8_t* other, const Found& found) const;

  const PathLayout& layout_;
  std::vector<Extent> bits_, numbers_;
  int64_t first_number_ = 0;  // byte
};

}  // namespace simgrad::sim
