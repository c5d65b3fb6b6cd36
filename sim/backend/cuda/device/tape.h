// The arena in which a replayed step leaves what its adjoint reads.
//
// Layout: units of one width; unit p of lane j lies at p * lanes + j (thread per instance: the
//   threads of a warp are neighbours), or at p (block per instance: one lane). Values wider than a
//   unit take several.
// Errors: none; the host has counted what is needed. Threads: a lane is one thread's (thread per
//   instance) or one block's.
#pragma once

#include "precision/host_device.h"

namespace simgrad::sim::cuda::device {

// Counts units, as a recording pass would take them. More than positions can tell are counted too,
// so that the host can refuse to record them.
struct TapeMeter {
  unsigned long long top = 0;
  SIMGRAD_HD uint32_t Take(uint32_t units) {
    const unsigned long long at = top;
    top += units;
    return static_cast<uint32_t>(at);
  }
};

template <class Unit>
struct Tape : TapeMeter {
  Unit* units;
  int64_t lanes;

  SIMGRAD_HD Tape(void* memory, int64_t lane, int64_t of_lanes, int64_t lane_start)
      : units(static_cast<Unit*>(memory) + lane_start + lane), lanes(of_lanes) {}

  template <class Bits>
  SIMGRAD_HD static constexpr int UnitsOf() {
    return sizeof(Bits) <= sizeof(Unit) ? 1 : static_cast<int>(sizeof(Bits) / sizeof(Unit));
  }
  // Entry `index` of the values of type Bits that begin at unit `at`.
  template <class Bits>
  SIMGRAD_HD void Store(uint32_t at, int64_t index, Bits bits) {
    constexpr int kUnits = UnitsOf<Bits>();
    Unit* const to = units + (static_cast<int64_t>(at) + index * kUnits) * lanes;
    if constexpr (kUnits == 1) {
      to[0] = static_cast<Unit>(bits);
    } else {
      for (int k = 0; k < kUnits; ++k) {
        to[k * lanes] = static_cast<Unit>(bits >> (8 * sizeof(Unit) * k));
      }
    }
  }
  template <class Bits>
  SIMGRAD_HD Bits Load(uint32_t at, int64_t index) const {
    constexpr int kUnits = UnitsOf<Bits>();
    const Unit* const from = units + (static_cast<int64_t>(at) + index * kUnits) * lanes;
    if constexpr (kUnits == 1) {
      return static_cast<Bits>(from[0]);
    } else {
      Bits bits = 0;
      for (int k = 0; k < kUnits; ++k) {
        bits |= static_cast<Bits>(static_cast<Bits>(from[k * lanes]) << (8 * sizeof(Unit) * k));
      }
      return bits;
    }
  }
};

}  // namespace simgrad::sim::cuda::device
