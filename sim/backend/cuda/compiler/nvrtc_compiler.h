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
#include <vector>

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

// The target for architecture `wanted` of an NVRTC that knows the architectures `known`: sm_90 if
// it knows that one; else compute_90, PTX of the largest below, which the driver translates.
// Errors: FAILED_PRECONDITION where all that it knows are larger.
absl::StatusOr<std::string> NvrtcTarget(int wanted, const std::vector<int>& known);

// Returns an upper bound of the bytes of host memory that compiling a text takes. Measured with
// CUDA 13.0 for sm_90: 206 MiB for 114 kB and 368 MiB for 637 kB optimised, 131 and 262 quickly.
constexpr int64_t NvrtcBytes(int64_t text_bytes) { return (int64_t{160} << 20) + 500 * text_bytes; }

// `architecture`: sm_90.
// Joined images (kernel_image.h), one for each part of the text; parts are compiled at once.
absl::StatusOr<std::string> CompileWithNvrtc(const std::string& text,
                                             const std::string& architecture,
                                             Optimisation optimisation = Optimisation::kBest);

}  // namespace simgrad::sim::cuda
