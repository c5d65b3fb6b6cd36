#include "sim/backend/cuda/kernel_cache.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "sim/backend/cuda/generate.h"

namespace simgrad::sim::cuda {
namespace {

namespace fs = std::filesystem;

// Of the file's layout: this line, the digest of the image, a line feed, the image.
constexpr std::string_view kMagic = "simgrad kernel 1\n";

std::string Digest(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &length, EVP_sha256(), nullptr);
  return absl::BytesToHexString(std::string(reinterpret_cast<const char*>(digest.data()), length));
}

}  // namespace

std::string KernelKey(std::initializer_list<std::string_view> parts) {
  std::string all;
  for (std::string_view part : parts) {
    absl::StrAppend(&all, part.size(), ":");
    all.append(part);
  }
  return Digest(all);
}

const std::string& HeadersDigest() {
  static const auto* const digest = [] {
    std::string all;
    for (const EmbeddedHeader& header : EmbeddedHeaders()) {
      absl::StrAppend(&all, KernelKey({header.name, header.text}));
    }
    return new std::string(Digest(all));
  }();
  return *digest;
}

std::string KernelCache::PathOf(const std::string& key) const {
  return (fs::path(folder_) / (key + ".kernel")).string();
}

std::optional<std::string> KernelCache::Find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream file(PathOf(key), std::ios::binary);
  if (!file) return std::nullopt;
  std::stringstream read;
  read << file.rdbuf();
  const std::string all = read.str();
  const size_t head = kMagic.size() + 65;  // the digest's 64 digits and a line feed
  if (all.size() < head || all.compare(0, kMagic.size(), kMagic) != 0) return std::nullopt;
  std::string image = all.substr(head);
  if (all.compare(kMagic.size(), 64, Digest(image)) != 0) return std::nullopt;
  std::error_code error;  // a file that cannot be touched is one that may go sooner
  fs::last_write_time(PathOf(key), fs::file_time_type::clock::now(), error);
  return image;
}

void KernelCache::Keep(const std::string& key, const std::string& image) const {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  static std::atomic<int> files{0};
  const std::string path = PathOf(key);
  const std::string other = absl::StrCat(path, ".", getpid(), ".", files++);
  {
    std::ofstream file(other, std::ios::binary);
    file << kMagic << Digest(image) << "\n" << image;
    file.close();
    if (!file) {
      fs::remove(other, error);
      return;
    }
  }
  fs::rename(other, path, error);
  if (error) fs::remove(other, error);
  RemoveOldest();
}

// Others may write and remove at the same time: what is gone already is no error.
void KernelCache::RemoveOldest() const {
  struct File {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  std::vector<File> files;
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const File file = {it->last_write_time(gone), static_cast<int64_t>(it->file_size(gone)),
                       it->path()};
    if (gone || !it->is_regular_file(gone)) continue;
    bytes += file.bytes;
    files.push_back(file);
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.used < b.used; });
  for (size_t i = 0; i < files.size() && bytes > most_bytes_; ++i) {
    fs::remove(files[i].path, error);
    bytes -= files[i].bytes;
  }
}

}  // namespace simgrad::sim::cuda
