#include "server/service/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/service/request_log.h"

namespace simgrad::server::service {
namespace {

// Log, files of TLS and tokens, the metrics port with its callers, gRPC's own, the health port.
constexpr int64_t kOthers = 96;
constexpr int64_t kMostConnections = 4096;  // of about 50 KiB each while they are idle
constexpr int64_t kFewDescriptors = 1024;

}  // namespace

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewDescriptors;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised = {limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  const int64_t descriptors =
      static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, rlim_t{1} << 30));
  if (descriptors <= kFewDescriptors) {
    LogNote(LogLevel::kWarning,
            absl::StrCat("this process may have ", descriptors, " file descriptors, which allows ",
                         ConnectionsWithin(descriptors),
                         " connections; raise the hard limit (ulimit -Hn) for more"));
  }
  return descriptors;
}

int64_t ConnectionsWithin(int64_t descriptors) {
  // Half of very few: something must be left for them.
  const int64_t left = std::max(descriptors - kOthers, descriptors / 2);
  return std::clamp<int64_t>(left / 2, 1, kMostConnections);
}

}  // namespace simgrad::server::service
