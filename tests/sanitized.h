// Tells whether sanitizers look for misused memory and undefined behaviour. Such a build runs ten times
// slower and finds these in any case of a series, so tests take fewer cases.
#pragma once

namespace simgrad {

#ifdef SIMGRAD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace simgrad
