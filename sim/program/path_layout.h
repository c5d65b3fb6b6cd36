// What a path holds: one column per decision of a step, packed into the bytes of one instance and step.
//
// A column is a test (bools, a bit each), the iterations of a loop, or integers that were chosen. Its
// shape is that of the decision behind the axes of the loops around it, outermost first: the
// elements of a loop per element, then its iterations, one more than the cap where the decision stands
// in a test that may run once more than the body. What was not decided is 0.
// Bytes: the bits of all tests, the lowest bit first, filled up to whole bytes; then the numbers,
//   lowest byte first, in 1, 2, 4 or 8 bytes by what they can be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace simgrad::sim {

enum class ElementType : uint8_t;

// How a run treats its path: it gives it (recorded), or it takes it (forced).
enum class PathUse : uint8_t { kNone, kRecorded, kForced };

enum class PathKind : uint8_t { kTest, kCount, kChoice };
std::string_view PathKindName(PathKind kind);

struct PathColumn {
  std::string site;  // unique in a path
  PathKind kind = PathKind::kTest;
  ElementType element;
  std::vector<int64_t> shape;
  // By axis: of the iterations of a loop, the first column that is its own; else -1. Of two decisions
  // of a step the one with the smaller sequence of loop, iteration, ..., column was taken first.
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
