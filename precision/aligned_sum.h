// Pairwise sums over leaves named by 64-bit ids, which shards can compute in parts.
//
// Maths: a binary tree aligned to the id. The nodes of level l are the ids that share id >> l. A
//   node is round(left + right) of its two halves; an absent half passes the other through
//   unchanged. So the bits depend only on the set of (id, value). For the ids 0..n-1 the tree is
//   the pairwise order of precision/reduction.h. A shard that owns every present id of [first,
//   last] can compute the nodes of the maximal aligned blocks in that range. Merging the nodes of
//   shards that partition the ids gives the bits of one sum.
// Accuracy: each addition is correctly rounded to the accumulator; an empty set gives +0.
// Errors: none; ids must be unique and ascending, nodes disjoint.
// Cost: O(n) memory, at most O(64 n) time. Threads: pure; host only.
// Source: docs/numerics.md sections 3 and 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "precision/format.h"

namespace simgrad::precision {

// The subtree of the ids [index * 2^level, (index + 1) * 2^level).
struct AlignedNode {
  int level;       // 0..64
  uint64_t index;  // id >> level; 0 at level 64
  double value;
  bool operator==(const AlignedNode&) const = default;
};

double AlignedPairwise(std::span<const uint64_t> sorted_ids, std::span<const double> values,
                       Format accumulator);

// The nodes that cover the ids of [first, last], ascending; blocks without an id are left out.
std::vector<AlignedNode> AlignedCover(std::span<const uint64_t> sorted_ids,
                                      std::span<const double> values, uint64_t first, uint64_t last,
                                      Format accumulator);

// The root over disjoint nodes in any order, as of all shards of a request.
double MergeAlignedNodes(std::vector<AlignedNode> nodes, Format accumulator);

}  // namespace simgrad::precision
