#include "precision/aligned_sum.h"

#include <algorithm>
#include <bit>

#include "precision/arithmetic.h"

namespace simgrad::precision {
namespace {

uint64_t AtLevel(uint64_t id, int level) { return level >= 64 ? 0 : id >> level; }

uint64_t FirstId(const AlignedNode& node) {
  return node.level >= 64 ? 0 : node.index << node.level;
}

// Raises the disjoint nodes, ascending by id, to one node of `level`: each pass lifts what stands
// below the next level and joins siblings, left + right.
AlignedNode RaiseTo(std::vector<AlignedNode> nodes, int level, Format accumulator) {
  for (int below = 0; below < level && nodes.size() > 1; ++below) {
    size_t kept = 0;
    for (const AlignedNode& node : nodes) {
      AlignedNode raised = node;
      if (node.level == below) raised = {below + 1, AtLevel(FirstId(node), below + 1), node.value};
      AlignedNode* const left = kept > 0 ? &nodes[kept - 1] : nullptr;
      if (left != nullptr && left->level == raised.level && left->index == raised.index) {
        left->value = Add(accumulator, left->value, raised.value);
      } else {
        nodes[kept++] = raised;
      }
    }
    nodes.resize(kept);
  }
  return {level, AtLevel(FirstId(nodes.front()), level), nodes.front().value};
}

std::vector<AlignedNode> Leaves(std::span<const uint64_t> ids, std::span<const double> values) {
  std::vector<AlignedNode> leaves;
  leaves.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) leaves.push_back({0, ids[i], values[i]});
  return leaves;
}

}  // namespace

double AlignedPairwise(std::span<const uint64_t> sorted_ids, std::span<const double> values,
                       Format accumulator) {
  if (sorted_ids.empty()) return 0.0;
  return RaiseTo(Leaves(sorted_ids, values), 64, accumulator).value;
}

std::vector<AlignedNode> AlignedCover(std::span<const uint64_t> sorted_ids,
                                      std::span<const double> values, uint64_t first, uint64_t last,
                                      Format accumulator) {
  std::vector<AlignedNode> cover;
  size_t begin = static_cast<size_t>(std::lower_bound(sorted_ids.begin(), sorted_ids.end(), first) -
                                     sorted_ids.begin());
  uint64_t block = first;
  while (begin < sorted_ids.size() && sorted_ids[begin] <= last) {
    // The largest aligned block that starts here and ends by `last`.
    const uint64_t room = last - block;
    int level = block == 0 ? 64 : std::countr_zero(block);
    while (level > 0 && (level == 64 ? ~uint64_t{0} : (uint64_t{1} << level) - 1) > room) --level;
    const uint64_t end = block + (level == 64 ? ~uint64_t{0} : (uint64_t{1} << level) - 1);
    const size_t after =
        static_cast<size_t>(std::upper_bound(sorted_ids.begin() + static_cast<ptrdiff_t>(begin),
                                             sorted_ids.end(), end) -
                            sorted_ids.begin());
    if (after > begin) {
      cover.push_back(RaiseTo(
          Leaves(sorted_ids.subspan(begin, after - begin), values.subspan(begin, after - begin)),
          level, accumulator));
    }
    begin = after;
    if (end == last) break;
    block = end + 1;
  }
  return cover;
}

double MergeAlignedNodes(std::vector<AlignedNode> nodes, Format accumulator) {
  if (nodes.empty()) return 0.0;
  std::sort(nodes.begin(), nodes.end(),
            [](const AlignedNode& a, const AlignedNode& b) { return FirstId(a) < FirstId(b); });
  return RaiseTo(std::move(nodes), 64, accumulator).value;
}

}  // namespace simgrad::precision
