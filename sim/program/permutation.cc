#include "sim/program/permutation.h"

#include "precision/shuffle.h"

namespace simgrad::sim {

PermutationKey PermutationKeyOf(const Op& op, int64_t length) {
  return {op.attributes.order.seed, op.site.empty() ? 0 : HashOfSite(op.site), length};
}

std::vector<int64_t> PermutationOf(const PermutationKey& key) {
  return precision::Shuffled(key.seed, key.site, key.length);
}

}  // namespace simgrad::sim
