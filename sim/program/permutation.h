// The permutation of a shuffled sum in a program.
//
// Maths: precision/shuffle.h, by the seed of the operation's order, the hash of its site as in path
//   signatures (0 outside sites) and the length of the line.
// Errors: none. Cost: linear in the length. Threads: pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/program/program.h"

namespace simgrad::sim {

// All that a permutation depends on: equal keys have equal permutations.
struct PermutationKey {
  uint64_t seed = 0;
  uint64_t site = 0;
  int64_t length = 0;
  bool operator==(const PermutationKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const PermutationKey& key) {
    return H::combine(std::move(hash), key.seed, key.site, key.length);
  }
};
// Returns the key of an operation in order shuffled, for lines of `length` numbers.
PermutationKey PermutationKeyOf(const Op& op, int64_t length);
std::vector<int64_t> PermutationOf(const PermutationKey& key);

}  // namespace simgrad::sim
