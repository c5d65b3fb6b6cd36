// The folder where tests keep the machine code that they compile, a compiler cache: SIMGRAD_TEST_OBJECTS. Without
// it everything is compiled.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace simgrad::tests {

inline constexpr int64_t kMostObjectBytes = int64_t{4} << 30;

// Empty: none.
inline std::string ObjectFolder() {
  const char* const folder = std::getenv("SIMGRAD_TEST_OBJECTS");
  return folder == nullptr ? "" : folder;
}

}  // namespace simgrad::tests
