// Compiled kernels in a folder, found again by what they were made from.
//
// A file is written whole under another name and then renamed, so that several processes may share
// the folder; it holds a digest of its content, and one that does not fit is as if it were not
// there. Nothing is ever removed.
// Errors: none; a folder that cannot be read or written holds nothing. Threads: any.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace simgrad::sim::cuda {

// SHA-256 of the parts, each with its length, in lower-case hex.
std::string KernelKey(std::initializer_list<std::string_view> parts);

// Of the names and texts of all embedded headers.
const std::string& HeadersDigest();

class KernelCache {
 public:
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}  // empty: no cache
  std::optional<std::string> Find(const std::string& key) const;
  void Keep(const std::string& key, const std::string& image) const;

 private:
  std::string PathOf(const std::string& key) const;
  std::string folder_;
};

}  // namespace simgrad::sim::cuda
