#include "sim/backend/kernel_folder.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace simgrad::sim {
namespace {

namespace fs = std::filesystem;

// The layout of a file: this line, the digest of the key and the image, a line feed, the image. A file under
// another's name is therefore not taken for one.
constexpr std::string_view kMagic = "simgrad kernel 2\n";

std::string Digest(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &length, EVP_sha256(), nullptr);
  return absl::BytesToHexString(std::string(reinterpret_cast<const char*>(digest.data()), length));
}

// Whether this process is in the group: as its own one, or beside it (`fsGroup` of Kubernetes).
bool IsOwnGroup(gid_t group) {
  if (group == getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  groups.resize(
      static_cast<size_t>(std::max(getgroups(static_cast<int>(groups.size()), groups.data()), 0)));
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

// Whether a file is this user's, and nobody may write it but this user and groups of this process.
bool IsOwn(const struct stat& about) {
  if (about.st_uid != geteuid() || (about.st_mode & S_IWOTH) != 0) return false;
  return (about.st_mode & S_IWGRP) == 0 || IsOwnGroup(about.st_gid);
}

// NotFound where there is no such file. A FIFO is opened without a wait for its writer.
absl::StatusOr<std::string> ReadOwn(const std::string& path, int64_t most_bytes) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return absl::ErrnoToStatus(errno, "it cannot be opened");
  struct stat about {};
  absl::StatusOr<std::string> all = std::string();
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size > most_bytes) {
    all = absl::FailedPreconditionError("it is no file of a kernel's size");
  } else if (!IsOwn(about)) {
    all = absl::PermissionDeniedError("others own it or may write it");
  } else {
    all->resize(static_cast<size_t>(about.st_size));
    size_t done = 0;
    while (done < all->size()) {
      const ssize_t n = read(file, all->data() + done, all->size() - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    all->resize(done);
  }
  close(file);
  return all;
}

bool WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(file, text.data(), text.size());
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
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

absl::Status CheckKernelFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("'", folder, "' is no folder that this user can write to: ", error.message()));
}

std::string KernelFolder::PathOf(const std::string& key) const {
  return (fs::path(folder_) / (key + ".kernel")).string();
}

// Whether a file is one that Keep writes: KEY.kernel, or a name that one has before it is whole.
bool KernelFolder::IsKernel(std::string_view name) {
  const size_t digits = name.find_first_not_of("0123456789abcdef");
  const std::string_view ending = ".kernel";
  if (digits != 64 || name.substr(64, ending.size()) != ending) return false;
  const std::string_view rest = name.substr(64 + ending.size());
  return rest.empty() ||
         (rest[0] == '.' && rest.find_first_not_of("0123456789.") == std::string_view::npos);
}

std::optional<std::string> KernelFolder::Read(const std::string& key) const {
  const std::string path = PathOf(key);
  const absl::StatusOr<std::string> all = ReadOwn(path, most_bytes_);
  if (absl::IsNotFound(all.status())) return std::nullopt;
  if (!all.ok()) return Refuse(path, std::string(all.status().message()));
  const size_t head = kMagic.size() + 65;  // the digest's 64 digits and a line feed
  const bool is_whole = all->size() >= head && all->compare(0, kMagic.size(), kMagic) == 0;
  std::string image = is_whole ? all->substr(head) : "";
  if (!is_whole || all->compare(kMagic.size(), 64, KernelKey({key, image})) != 0) {
    return Refuse(path, "it is damaged, or another's under this name");
  }
  return image;
}

std::nullopt_t KernelFolder::Refuse(const std::string& path, const std::string& why) const {
  ++refused_;
  watch_->Refused(path, why);
  return std::nullopt;
}

std::optional<std::string> KernelFolder::Find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::optional<std::string> image = Read(key);
  if (!image) return std::nullopt;
  std::error_code error;  // a file that cannot be touched is one that may go sooner
  fs::last_write_time(PathOf(key), fs::file_time_type::clock::now(), error);
  return image;
}

void KernelFolder::Keep(const std::string& key, const std::string& image) const {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  // By chance: processes of several pods, which share a folder, have the same number.
  std::random_device random;
  const std::string path = PathOf(key);
  const std::string other = absl::StrCat(path, ".", random(), ".", random());
  {
    const int made = open(other.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (made < 0) return;
    const std::string head = std::string(kMagic) + KernelKey({key, image}) + "\n";
    const bool is_whole = WriteAll(made, head) && WriteAll(made, image);
    if (close(made) != 0 || !is_whole) {
      fs::remove(other, error);
      return;
    }
  }
  fs::rename(other, path, error);
  if (error) fs::remove(other, error);
  const auto bytes = static_cast<int64_t>(image.size());
  const int64_t before = written_.fetch_add(bytes);
  if (before >= 0 && before + bytes <= most_bytes_ / 64) return;
  written_ = 0;
  RemoveOldest();
}

// Others may write and remove at the same time: what is gone already is no error.
void KernelFolder::RemoveOldest() const {
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
    if (!IsKernel(it->path().filename().string())) continue;  // a file of somebody else
    const File file = {it->last_write_time(gone), static_cast<int64_t>(it->file_size(gone)),
                       it->path()};
    if (gone || !fs::is_regular_file(it->symlink_status(gone))) continue;
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

}  // namespace simgrad::sim
