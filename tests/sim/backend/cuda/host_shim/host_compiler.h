// Generated texts through the host compiler, against cuda_host_shim.h.
//
// Errors: INTERNAL with the compiler's log. Threads: any; each call runs a compiler of its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace simgrad::tests {

// The bytes of a shared library with the text's entry points; `headers`: name and text of what it
// may include.
absl::StatusOr<std::string> CompileLibrary(
    const std::string& text, const std::vector<std::pair<std::string, std::string>>& headers);

// For dlsym; closed with its last owner.
absl::StatusOr<std::shared_ptr<void>> OpenLibrary(std::string_view bytes);

}  // namespace simgrad::tests
