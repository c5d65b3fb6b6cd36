// The 64-bit hashes of the specification: splitmix64, FNV-1a, and the path signature built of them.
//
// Maths: a path signature is the sum mod 2^64 of its decisions' hashes, so it does not depend on
//   the order of summation; a batch's signature is the sum of BatchTerm over its instances.
// Errors: none. Threads: pure; host and device. Cost: a few integer operations.
// Source: docs/numerics.md sections 4 and 7; FNV-1a by Fowler, Noll and Vo; splitmix64 by Steele,
//   Lea and Flood (OOPSLA 2014).
#pragma once

#include "precision/host_device.h"

#ifndef __CUDACC_RTC__
#include <string_view>
#endif

namespace simgrad::precision {

SIMGRAD_HD constexpr uint64_t SplitMix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

SIMGRAD_HD constexpr uint64_t Fnv1a64(const char* text, uint64_t length) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (uint64_t i = 0; i < length; ++i) {
    hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x100000001B3u;
  }
  return hash;
}

#ifndef __CUDACC_RTC__
constexpr uint64_t Fnv1a64(std::string_view text) { return Fnv1a64(text.data(), text.size()); }
#endif

// The two parts of DecisionHash: where and when a decision was made, and what it was.
SIMGRAD_HD constexpr uint64_t PlaceHash(uint64_t site_hash, uint64_t step, uint64_t outer_iteration,
                                        uint64_t element) {
  return SplitMix64(SplitMix64(SplitMix64(site_hash ^ step) ^ outer_iteration) ^ element);
}
SIMGRAD_HD constexpr uint64_t OutcomeHash(uint64_t place_hash, uint64_t outcome) {
  return SplitMix64(place_hash ^ outcome);
}

// One decision of a site. `site_hash` is Fnv1a64 of its name, `step` t, `outer_iteration` j (0
// outside loops), `element` e (0 where the instance decides as one), `outcome` x: LoopOutcome for a
// loop; for a boolean site its value, and then only where it differs from the step before.
SIMGRAD_HD constexpr uint64_t DecisionHash(uint64_t site_hash, uint64_t step,
                                           uint64_t outer_iteration, uint64_t element,
                                           uint64_t outcome) {
  return OutcomeHash(PlaceHash(site_hash, step, outer_iteration, element), outcome);
}

// x of a loop: 8 * iterations + reason (0 converged, 1 max_iter, 2 nonfinite, 3 not_entered).
SIMGRAD_HD constexpr uint64_t LoopOutcome(uint64_t iterations, uint64_t reason) {
  return 8 * iterations + reason;
}

// The term that an instance adds to the signature of its batch.
SIMGRAD_HD constexpr uint64_t BatchTerm(uint64_t signature, uint64_t instance_id) {
  return SplitMix64(signature ^ SplitMix64(instance_id));
}

}  // namespace simgrad::precision
