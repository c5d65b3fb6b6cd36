// The layout of a path: a column per decision, packed into the bytes of an instance and step.
//
// A column is a test (bools, a bit each), the iterations of a loop, or integers that were chosen.
// Its axes are those of the loops around the decision, outermost first, then the decision's own. A
// loop has an axis of its elements, if it runs per element, and one of its iterations, longer than
// the cap by one for a test that may run once more than the body. What was not decided is 0.
// Bytes: the bits of all tests, the lowest bit first, filled up to whole bytes; then the numbers,
//   lowest byte first, in 1, 2, 4 or 8 bytes by what they can be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace simgrad::sim {

enum class ElementType : uint8_t;

// Whether a run gives its path (recorded) or follows a given one (forced).
enum class PathUse : uint8_t { kNone, kRecorded, kForced };

enum class PathKind : uint8_t { kTest, kCount, kChoice };

struct PathColumn {
  std::string site;  // unique in a path
  PathKind kind = PathKind::kTest;
  ElementType element;
  std::vector<int64_t> shape;
  // By axis: for the iterations of a loop, its first column c, or -2 - c where it runs from the last
  // down; else -1. The decision with the least sequence of c, turn, ..., column was taken first.
  std::vector<int32_t> loops;
  int64_t first = 0;  // of a test its first bit, else its first byte
  int32_t width = 0;  // bytes of a number; 0: a bit
};

struct PathLayout {
  PathUse use = PathUse::kNone;
  std::vector<PathColumn> columns;
  int64_t bytes = 0;      // of one instance in one step
  std::string structure;  // SHA-256 of what a path fits, lower-case hex
};

}  // namespace simgrad::sim
