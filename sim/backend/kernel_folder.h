// Compiled kernels in a folder, found again by what they were made from.
//
// A file is written whole under another name and then renamed, so several processes may share the
// folder. It holds a digest of its content. A file whose digest does not fit, or that another user
// owns or may write, is treated as missing: what is read here is run.
// Least recently used kernels are deleted above a size limit; an unbounded cache could fill the
// volume and get the pod evicted. Other files in the folder are left alone.
// Errors: those of CheckKernelFolder; later, a folder that cannot be read or written holds nothing.
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace simgrad::sim {

// SHA-256 of the parts, each with its length, in lower-case hex.
std::string KernelKey(std::initializer_list<std::string_view> parts);

// Thousands of kernels; half of the volume that the chart mounts (kernelCache.sizeLimit).
inline constexpr int64_t kMostKernelBytes = int64_t{1} << 30;

// An error where the folder is missing and cannot be made, or where this user cannot write to it.
absl::Status CheckKernelFolder(const std::string& folder);

class KernelFolder {
 public:
  explicit KernelFolder(std::string folder, int64_t most_bytes = kMostKernelBytes)  // empty: none
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}
  std::optional<std::string> Find(const std::string& key) const;
  void Keep(const std::string& key, const std::string& image) const;
  // Files found that were not as they should be.
  int64_t refused() const { return refused_; }

 private:
  std::string PathOf(const std::string& key) const;
  static bool IsKernel(std::string_view name);
  void RemoveOldest() const;
  std::optional<std::string> Read(const std::string& key) const;
  std::string folder_;
  int64_t most_bytes_;
  mutable std::atomic<int64_t> refused_{0};
};

}  // namespace simgrad::sim
