// CUDA C++ text to machine code, by NVRTC; needs no GPU.
//
// Accuracy: --fmad=false and IEEE division and square root, no flush to zero: an operation of the
//   text is an operation of the machine.
// Errors: INTERNAL with NVRTC's log for a text that does not compile; FAILED_PRECONDITION where
//   libnvrtc is missing, too old, or does not know the architecture.
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace simgrad::sim::cuda {

enum class Optimisation : uint8_t {
  kBest,
  kLeast,  // the same bits from slower kernels, compiled several times as fast
};

// "13.0"; of the library that was found.
absl::StatusOr<std::string> NvrtcVersion();
// All that the machine code depends on beside the text and its headers, for the key of a cache.
absl::StatusOr<std::string> NvrtcOptionsText(const std::string& architecture,
                                             Optimisation optimisation);
// Whether this NVRTC compiles with the least optimisation at all (CUDA 13.0 and later).
bool NvrtcCompilesQuickly();

// `architecture`: sm_90. Where NVRTC is older than the device, PTX for the newest architecture it
// knows, which the driver translates.
// Joined images (kernel_image.h), one for each part of the text; parts are compiled at once.
absl::StatusOr<std::string> CompileWithNvrtc(const std::string& text,
                                             const std::string& architecture,
                                             Optimisation optimisation = Optimisation::kBest);

}  // namespace simgrad::sim::cuda
