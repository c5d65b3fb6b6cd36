#include "sim/backend/cuda/compiler/kernel_image.h"

#include <cstdint>
#include <cstring>

namespace simgrad::sim::cuda {

std::string JoinImages(const std::vector<std::string>& images) {
  std::string joined;
  for (const std::string& image : images) {
    const uint64_t size = image.size();
    joined.append(reinterpret_cast<const char*>(&size), sizeof(size));
    joined.append(image);
  }
  return joined;
}

absl::StatusOr<std::vector<std::string>> SplitImages(std::string_view joined) {
  std::vector<std::string> images;
  while (!joined.empty()) {
    uint64_t size = 0;
    if (joined.size() < sizeof(size)) return absl::InternalError("a kernel image is cut off");
    std::memcpy(&size, joined.data(), sizeof(size));
    joined.remove_prefix(sizeof(size));
    if (joined.size() < size) return absl::InternalError("a kernel image is cut off");
    images.emplace_back(joined.substr(0, size));
    joined.remove_prefix(size);
  }
  if (images.empty()) return absl::InternalError("a kernel image is empty");
  return images;
}

}  // namespace simgrad::sim::cuda
