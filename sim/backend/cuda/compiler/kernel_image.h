// The image of a text: the images of its parts, joined to one string of bytes.
//
// A text with an adjoint is compiled in two parts at once (generate.h, kPartMacro).
// Errors: INTERNAL for bytes that were not joined by this. Threads: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace simgrad::sim::cuda {

std::string JoinImages(const std::vector<std::string>& images);
absl::StatusOr<std::vector<std::string>> SplitImages(std::string_view joined);

}  // namespace simgrad::sim::cuda
