// The permutation in which a shuffled sum takes its numbers.
//
// Maths: Fisher and Yates: p = 0, 1, ..., n - 1; for i from n - 1 down to 1, p[i] and p[j] change
//   places, j = floor(u (i + 1)). u is the uniform number in [0, 1), 53 bits, of the Philox block with
//   the key of the seed and instance id 0 and the counter (i, n, low word of site, high word of site).
//   So a permutation belongs to a seed, a site and a length, and to no instance, step or machine.
//   u (i + 1) is rounded to f64 and stays below i + 1: u <= 1 - 2^-53, so the exact product lies
//   (i + 1) 2^-53, more than half of the gap of doubles below i + 1, or all of it where i + 1 is a
//   power of two, beneath i + 1.
// Errors: none; n = 0 gives none. Cost: n blocks. Threads: pure.
// Source: docs/numerics.md sections 3 and 4; Knuth, The Art of Computer Programming 2, algorithm
//   3.4.2 P.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "precision/philox.h"

namespace simgrad::precision {

// `site`: FNV-1a 64 of its name; 0 outside sites. n < 2^32.
inline std::vector<int64_t> Shuffled(uint64_t seed, uint64_t site, int64_t n) {
  std::vector<int64_t> permutation(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) permutation[static_cast<size_t>(i)] = i;
  const uint64_t key = RandomKey(seed, 0);
  for (int64_t i = n - 1; i > 0; --i) {
    const PhiloxBlock block = Draw(key, i, n, static_cast<uint32_t>(site), site >> 32);
    const double at = UniformOf(block.first, 53) * static_cast<double>(i + 1);
    std::swap(permutation[static_cast<size_t>(i)],
              permutation[static_cast<size_t>(static_cast<int64_t>(at))]);
  }
  return permutation;
}

}  // namespace simgrad::precision
