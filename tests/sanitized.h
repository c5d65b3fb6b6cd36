// Whether this build looks for misused memory and undefined behaviour. It runs ten times slower, and
// finds what it looks for in any case of a series: so it takes fewer.
#pragma once

namespace simgrad {

#ifdef SIMGRAD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace simgrad
