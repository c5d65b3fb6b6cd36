// Pairwise sums over leaves named by 64-bit ids, which shards can compute in parts; of many numbers
// at once.
//
// Maths: a binary tree aligned to the id. The nodes of level l are the ids that share id >> l. A
//   node is round(left + right) of its two halves; an absent half passes the other through
//   unchanged. So the bits depend only on the set of (id, value). For the ids 0..n-1 the tree is
//   the pairwise order of precision/reduction.h. A shard that owns every present id of [first,
//   last] can compute the nodes of the maximal aligned blocks in that range. Merging the nodes of
//   shards that partition the ids gives the bits of one sum.
// Accuracy: each addition is correctly rounded to the accumulator; an empty set gives +0.
// Errors: none; ids must be unique and ascending, nodes disjoint.
// Cost: one addition of `width` numbers for each node but the first; memory of at most 65 nodes.
// Threads: pure; host only.
// Source: docs/numerics.md sections 3 and 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "precision/format.h"

namespace simgrad::precision {

// The ids [index * 2^level, (index + 1) * 2^level); level 64 is all ids, with index 0.
struct AlignedBlock {
  int level = 0;
  uint64_t index = 0;
  uint64_t First() const { return level >= 64 ? 0 : index << level; }
  uint64_t Last() const {
    return First() + (level >= 64 ? ~uint64_t{0} : (uint64_t{1} << level) - 1);
  }
  bool operator==(const AlignedBlock&) const = default;
};

// The largest aligned blocks whose union is [first, last], ascending: at most 127.
std::vector<AlignedBlock> BlocksOf(uint64_t first, uint64_t last);

// A block with the sums of its ids.
struct AlignedNode {
  AlignedBlock block;
  std::vector<double> values;
  bool operator==(const AlignedNode&) const = default;
};

// Joins nodes of `width` numbers that come in ascending order.
class AlignedSum {
 public:
  AlignedSum(size_t width, Format accumulator) : width_(width), accumulator_(accumulator) {}

  void Add(const AlignedBlock& block, std::span<const double> values);
  void Add(uint64_t id, std::span<const double> values) { Add(AlignedBlock{0, id}, values); }
  bool empty() const { return depth_ == 0; }
  // The root of what was added, `width` numbers, and forgets it.
  std::vector<double> Take();

 private:
  // A subtree that no further node will enter before what is above it in `nodes_` is joined to it.
  struct Partial {
    uint64_t last = 0;  // id
    int join = 0;       // the level at which it meets the subtree before it
    std::vector<double> values;
  };
  void JoinLastTwo();

  size_t width_;
  Format accumulator_;
  std::vector<Partial> nodes_;  // those beyond depth_ are kept for their memory
  size_t depth_ = 0;
};

// The nodes that cover the ids of [first, last], ascending; blocks without an id are left out.
// `leaf` writes the numbers of the id at a place of `sorted_ids`.
std::vector<AlignedNode> AlignedCover(
    std::span<const uint64_t> sorted_ids, uint64_t first, uint64_t last, size_t width,
    Format accumulator, const std::function<void(size_t place, std::span<double> numbers)>& leaf);

// The root over disjoint nodes in any order, as of all shards of a request.
std::vector<double> MergeAlignedNodes(std::vector<AlignedNode> nodes, size_t width,
                                      Format accumulator);

}  // namespace simgrad::precision
