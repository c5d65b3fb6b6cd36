// Generated texts as shared libraries, each compiled once per process.
//
// Errors: INTERNAL with the compiler's log. Threads: may be called from several threads, which then
// compile side by side.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace simgrad::tests {

// For dlsym.
absl::StatusOr<std::shared_ptr<void>> CompileOnHost(const std::string& text);

// The text with the headers of its kernels in it, so that faults can be planted there.
std::string WithKernels(std::string text);

struct CompileCounts {
  int texts = 0;
  double seconds = 0;
};
CompileCounts CompileCountsSoFar();

}  // namespace simgrad::tests
