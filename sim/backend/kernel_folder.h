// Compiled kernels in a folder, found again by what they were made from.
//
// A file is written whole under another name and then renamed, so several processes may share the
// folder. It holds a digest of its content. A file whose digest does not fit, or that another user
// owns, or that others may write than this user and groups of this process, is told and treated as
// missing: what is read here is run.
// Least recently used kernels are deleted above a size limit; an unbounded cache could fill the
// volume and get the pod evicted. The size is looked at when a process writes its first kernel, and after each
// 64th part of the limit that it writes, so each process may exceed the limit by as much. Other files in the
// folder are left alone.
// Errors: those of CheckKernelFolder; later, a folder that cannot be read or written holds nothing.
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "sim/backend/compile_watch.h"

namespace simgrad::sim {

// SHA-256 of the parts, each with its length, in lower-case hex.
std::string KernelKey(std::initializer_list<std::string_view> parts);

// Thousands of kernels; half of the volume that the chart mounts (kernelCache.sizeLimit).
inline constexpr int64_t kMostKernelBytes = int64_t{1} << 30;

// An error where the folder is missing and cannot be made, or where this user cannot write to it.
absl::Status CheckKernelFolder(const std::string& folder);

class KernelFolder {
 public:
  // `folder` empty: none.
  explicit KernelFolder(std::string folder, int64_t most_bytes = kMostKernelBytes,
                        std::shared_ptr<CompileWatch> watch = std::make_shared<NoCompileWatch>())
      : folder_(std::move(folder)), most_bytes_(most_bytes), watch_(std::move(watch)) {}
  std::optional<std::string> Find(const std::string& key) const;
  void Keep(const std::string& key, const std::string& image) const;
  // Files found that were not as they should be.
  int64_t refused() const { return refused_; }

 private:
  std::string PathOf(const std::string& key) const;
  static bool IsKernel(std::string_view name);
  void RemoveOldest() const;
  std::optional<std::string> Read(const std::string& key) const;
  std::nullopt_t Refuse(const std::string& path, const std::string& why) const;
  std::string folder_;
  int64_t most_bytes_;
  std::shared_ptr<CompileWatch> watch_;
  mutable std::atomic<int64_t> refused_{0};
  mutable std::atomic<int64_t> written_{-1};  // since the folder's size was looked at; -1: never
};

}  // namespace simgrad::sim
