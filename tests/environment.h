// Settings of a run of the tests, from the environment of the process.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace simgrad {

// The number that a variable holds; 0 where it is not set.
inline uint64_t FromEnvironment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

// Exhaustive runs are for those who ask for them (scripts/test --long).
inline bool IsLong() { return FromEnvironment("SIMGRAD_LONG") != 0; }

}  // namespace simgrad
