#include "sim/program/path_difference.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "sim/program/program.h"

namespace simgrad::sim {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the lowest byte of a number is its first");

// Up to eight bytes of a row; those beyond its end are 0.
uint64_t WordAt(const uint8_t* row, int64_t byte, int64_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, row + byte, static_cast<size_t>(std::min<int64_t>(8, bytes - byte)));
  return word;
}

// The turns of a loop, which are not negative.
int64_t TurnsAt(const PathColumn& column, const uint8_t* row, int64_t element) {
  return static_cast<int64_t>(WordAt(row + column.first + element * column.width, 0, column.width));
}

// When a decision is taken, as PathColumn::loops says.
std::vector<int64_t> WhenTaken(const PathColumn& column, int32_t place, int64_t element) {
  std::vector<int64_t> index(column.shape.size());
  for (size_t axis = index.size(); axis-- > 0;) {
    index[axis] = element % column.shape[axis];
    element /= column.shape[axis];
  }
  std::vector<int64_t> when;
  for (size_t axis = 0; axis < index.size(); ++axis) {
    const int64_t loop = column.loops[axis];
    if (loop == -1) continue;
    const bool is_reversed = loop < -1;
    when.push_back(is_reversed ? -2 - loop : loop);
    when.push_back(is_reversed ? -index[axis] : index[axis]);
  }
  when.push_back(place);
  return when;
}

}  // namespace

PathDifference::PathDifference(const PathLayout& layout) : layout_(layout) {
  for (size_t i = 0; i < layout.columns.size(); ++i) {
    const PathColumn& column = layout.columns[i];
    const int64_t count = ElementCount(column.shape);
    const bool is_test = column.width == 0;
    const int64_t end = column.first + count * (is_test ? 1 : column.width);
    const Extent extent = {column.first, end, column.width, static_cast<int32_t>(i)};
    if (count > 0) (is_test ? bits_ : numbers_).push_back(extent);
    if (is_test) first_number_ = std::max(first_number_, (end + 7) / 8);
  }
  const auto ascends = [](const Extent& a, const Extent& b) { return a.first < b.first; };
  std::sort(bits_.begin(), bits_.end(), ascends);
  std::sort(numbers_.begin(), numbers_.end(), ascends);
}

template <class Found>
void PathDifference::ForEach(const uint8_t* reference, const uint8_t* other,
                             const Found& found) const {
  auto bits = bits_.begin();
  auto number = numbers_.begin();
  int64_t told = -1;  // first byte of the number that was found last
  for (int64_t at = 0; at < layout_.bytes; at += 8) {
    uint64_t differs = WordAt(reference, at, layout_.bytes) ^ WordAt(other, at, layout_.bytes);
    while (differs != 0) {
      const int bit = std::countr_zero(differs);
      const int64_t byte = at + bit / 8;
      if (byte < first_number_) {
        differs &= differs - 1;
        const int64_t position = at * 8 + bit;
        while (bits->end <= position) ++bits;
        found(bits->column, position - bits->first);
        continue;
      }
      differs &= ~(uint64_t{0xff} << (bit / 8 * 8));
      while (number->end <= byte) ++number;
      const int64_t element = (byte - number->first) / number->width;
      const int64_t start = number->first + element * number->width;
      if (start == told) continue;
      told = start;
      found(number->column, element);
    }
  }
}

DifferingDecision PathDifference::First(const uint8_t* reference, const uint8_t* other) const {
  DifferingDecision first;
  std::vector<int64_t> earliest;
  ForEach(reference, other, [&](int32_t place, int64_t element) {
    const PathColumn& column = layout_.columns[static_cast<size_t>(place)];
    std::vector<int64_t> when = WhenTaken(column, place, element);
    if (column.kind == PathKind::kCount) {
      // They part in the first turn that one of them does not take.
      const int64_t turns =
          std::min(TurnsAt(column, reference, element), TurnsAt(column, other, element));
      when.insert(when.end() - 1, {place, turns});
    }
    const bool is_earlier =
        first.column < 0 || when < earliest ||
        (when == earliest && std::pair(place, element) < std::pair(first.column, first.element));
    if (!is_earlier) return;
    earliest = std::move(when);
    first = {place, element};
  });
  return first;
}

void PathDifference::Count(const uint8_t* reference, const uint8_t* other,
                           std::vector<uint64_t>& counts) const {
  ForEach(reference, other, [&](int32_t place, int64_t) { ++counts[static_cast<size_t>(place)]; });
}

}  // namespace simgrad::sim
