#include "precision/aligned_sum.h"

#include <algorithm>
#include <bit>

#include "precision/arithmetic.h"
#include "precision/wide.h"

namespace simgrad::precision {
namespace {

// Finite, and a value of f32.
bool IsFloat(double x) { return (static_cast<double>(static_cast<float>(x)) - x) == 0.0; }

// a[k] + b[k] into a. In double the sum of two floats, rounded once more, is that of floats
// (arithmetic.h), which a compiler turns into vectors; numbers that are no floats, NaN and infinities
// among them, take the general way.
SIMGRAD_WIDE void AddFloats(std::span<double> a, std::span<const double> b) {
  int floats = 1;  // without a branch, in vectors
  for (size_t k = 0; k < a.size(); ++k) {
    floats &= static_cast<int>(IsFloat(a[k])) & static_cast<int>(IsFloat(b[k]));
  }
  if (floats != 0) {
    for (size_t k = 0; k < a.size(); ++k) {
      a[k] = static_cast<double>(static_cast<float>(a[k] + b[k]));
    }
  } else {
    for (size_t k = 0; k < a.size(); ++k) a[k] = Add(Format::kF32, a[k], b[k]);
  }
}

void AddTo(std::span<double> a, std::span<const double> b, Format accumulator) {
  if (accumulator == Format::kF32) {
    AddFloats(a, b);
  } else if (accumulator == Format::kF64) {
    for (size_t k = 0; k < a.size(); ++k) a[k] = Canonical(a[k] + b[k]);
  } else {
    for (size_t k = 0; k < a.size(); ++k) a[k] = Add(accumulator, a[k], b[k]);
  }
}

}  // namespace

std::vector<AlignedBlock> BlocksOf(uint64_t first, uint64_t last) {
  std::vector<AlignedBlock> blocks;
  for (uint64_t begin = first;;) {
    int level = begin == 0 ? 64 : std::countr_zero(begin);
    const auto ends_by_last = [&](int of) {
      return AlignedBlock{of, of >= 64 ? 0 : begin >> of}.Last() <= last;
    };
    while (level > 0 && !ends_by_last(level)) --level;
    blocks.push_back({level, level >= 64 ? 0 : begin >> level});
    const uint64_t end = blocks.back().Last();
    if (end == last) return blocks;
    begin = end + 1;
  }
}

void AlignedSum::JoinLastTwo() {
  Partial& right = nodes_[depth_ - 1];
  Partial& left = nodes_[depth_ - 2];
  AddTo(left.values, right.values, accumulator_);
  left.last = right.last;
  --depth_;
}

void AlignedSum::Add(const AlignedBlock& block, std::span<const double> values) {
  int join = 0;
  if (depth_ > 0) {
    join = std::bit_width(nodes_[depth_ - 1].last ^ block.First());
    while (depth_ > 1 && nodes_[depth_ - 1].join < join) JoinLastTwo();
  }
  if (nodes_.size() == depth_) nodes_.emplace_back();
  Partial& added = nodes_[depth_++];
  added.last = block.Last();
  added.join = join;
  added.values.assign(values.begin(), values.end());
}

std::vector<double> AlignedSum::Take() {
  if (depth_ == 0) return std::vector<double>(width_, 0.0);
  while (depth_ > 1) JoinLastTwo();
  depth_ = 0;
  return nodes_.front().values;
}

std::vector<AlignedNode> AlignedCover(
    std::span<const uint64_t> sorted_ids, uint64_t first, uint64_t last, size_t width,
    Format accumulator, const std::function<void(size_t place, std::span<double> numbers)>& leaf) {
  std::vector<AlignedNode> cover;
  if (sorted_ids.empty()) return cover;
  AlignedSum sum(width, accumulator);
  std::vector<double> numbers(width);
  size_t place = static_cast<size_t>(std::lower_bound(sorted_ids.begin(), sorted_ids.end(), first) -
                                     sorted_ids.begin());
  for (const AlignedBlock& block : BlocksOf(first, last)) {
    for (; place < sorted_ids.size() && sorted_ids[place] <= block.Last(); ++place) {
      leaf(place, numbers);
      sum.Add(sorted_ids[place], numbers);
    }
    if (!sum.empty()) cover.push_back({block, sum.Take()});
  }
  return cover;
}

std::vector<double> MergeAlignedNodes(std::vector<AlignedNode> nodes, size_t width,
                                      Format accumulator) {
  std::sort(nodes.begin(), nodes.end(), [](const AlignedNode& a, const AlignedNode& b) {
    return a.block.First() < b.block.First();
  });
  AlignedSum sum(width, accumulator);
  for (const AlignedNode& node : nodes) sum.Add(node.block, node.values);
  return sum.Take();
}

}  // namespace simgrad::precision
