#include "server/service/container_limits.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace simgrad::server::service {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The numbers of the first line of a file; a word that is no number ("max") is -1.
std::vector<int64_t> NumbersIn(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<int64_t> numbers;
  std::string line;
  std::getline(stream, line);
  for (const auto word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    int64_t number = 0;
    numbers.push_back(absl::SimpleAtoi(word, &number) ? number : -1);
  }
  return numbers;
}

// The folders of a controller's groups, from the process's own up to the mounted root. Inside a
// container the own path may be the host's and lead nowhere: the root alone is there then.
std::vector<fs::path> GroupFolders(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> folders;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // number:controllers:path; version 2 names no controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool second = parts[0] == "0" && parts[1].empty();
    if (!second &&
        std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    const fs::path mounted = second ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / controller;
    for (fs::path own = fs::path(parts[2]).relative_path(); !own.empty(); own = own.parent_path()) {
      folders.push_back(mounted / own);
    }
    folders.push_back(mounted);
  }
  return folders;
}

int64_t Smallest(const std::vector<fs::path>& folders,
                 const std::function<int64_t(const fs::path&)>& limit) {
  int64_t smallest = kNoLimit;
  for (const fs::path& folder : folders) {
    if (const int64_t here = limit(folder); here > 0) smallest = std::min(smallest, here);
  }
  return smallest;
}

int64_t Processors(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return 0;
  return (quota + period - 1) / period;
}

}  // namespace

int64_t ContainerMemoryBytes(const fs::path& root) {
  return Smallest(GroupFolders(root, "memory"), [](const fs::path& folder) -> int64_t {
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      if (const auto numbers = NumbersIn(folder / name); !numbers.empty()) return numbers[0];
    }
    return 0;
  });
}

int ContainerProcessors(const fs::path& root) {
  const int64_t found = Smallest(GroupFolders(root, "cpu"), [](const fs::path& folder) -> int64_t {
    if (const auto both = NumbersIn(folder / "cpu.max"); both.size() == 2) {
      return Processors(both[0], both[1]);
    }
    const auto quota = NumbersIn(folder / "cpu.cfs_quota_us");
    const auto period = NumbersIn(folder / "cpu.cfs_period_us");
    return quota.empty() || period.empty() ? 0 : Processors(quota[0], period[0]);
  });
  return static_cast<int>(std::min<int64_t>(found, std::numeric_limits<int>::max()));
}

}  // namespace simgrad::server::service
