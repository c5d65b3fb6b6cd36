// The presence of a cotangent, as far as the program text knows.
#pragma once

#include <cstdint>
#include <vector>

namespace simgrad::sim {

enum class Presence : uint8_t { kNever, kAlways, kMasked };

// The presence of a slot that has presence `a` on one path and `b` on another.
inline Presence Join(Presence a, Presence b) { return a == b ? a : Presence::kMasked; }

inline void JoinInto(std::vector<Presence>& into, const std::vector<Presence>& from,
                     size_t offset = 0) {
  for (size_t i = 0; i < from.size(); ++i) into[offset + i] = Join(into[offset + i], from[i]);
}

}  // namespace simgrad::sim
