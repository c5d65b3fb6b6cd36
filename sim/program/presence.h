// Where a cotangent is present, as far as the program text knows.
#pragma once

#include <cstdint>
#include <vector>

namespace simgrad::sim {

enum class Presence : uint8_t { kNever, kAlways, kMasked };

// Of what is present as `a` says on one way, and as `b` says on the other.
inline Presence Join(Presence a, Presence b) { return a == b ? a : Presence::kMasked; }

inline void JoinInto(std::vector<Presence>& into, const std::vector<Presence>& from,
                     size_t offset = 0) {
  for (size_t i = 0; i < from.size(); ++i) into[offset + i] = Join(into[offset + i], from[i]);
}

}  // namespace simgrad::sim
