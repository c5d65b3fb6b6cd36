// Bounds the requests that have begun to come and are not complete.
//
// gRPC gives a message out when all of it has come; until then it is in nobody's budget, and its
// size is not told. What a connection has sent is: the bytes that came since the oldest of its
// unfinished uploads began, less those of requests that were completed meanwhile, bound what its
// uploads hold. Where the sum of all connections exceeds the limit, uploads of the connection that
// holds most are refused, the oldest first; an upload that is not complete in time is refused too.
// What comes between two looks goes beyond the limit; gRPC's resource quota stands behind it.
// Errors: RESOURCE_EXHAUSTED (memory) or DEADLINE_EXCEEDED, as refusals.
// Threads: any; looks come from OpenStreams. Cost: two system calls each millisecond or two in
// which a connection begins calls; a look asks for each connection with unfinished uploads.
#pragma once

#include <malloc.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/refusal.h"
#include "server/service/open_streams.h"

namespace simgrad::server::service {

class Upload {
 public:
  virtual ~Upload() = default;
  // Ends the call unless its request is complete.
  virtual void Refuse(const scheduling::Refusal& refusal) = 0;
};

struct UploadLimits {
  int64_t bytes = int64_t{1} << 30;
  absl::Duration timeout = absl::Seconds(120);
};

class Uploads final : public OpenStream {
 public:
  // The bytes that have come on the connection of a peer so far.
  using BytesRead = std::function<int64_t(const std::string& peer)>;
  // Gives memory that the allocator keeps back to the system.
  using Trim = std::function<void()>;
  Uploads(
      UploadLimits limits, BytesRead bytes_read, Trim trim = [] { malloc_trim(0); });

  void Begin(std::shared_ptr<Upload> upload, const std::string& peer, Clock::time_point now);
  // `bytes`: of the request that is complete; 0 where it will not be. The upload lives on until a
  // look at it has ended.
  void End(const Upload* upload, const std::string& peer, int64_t bytes);
  void Look(Clock::time_point now) override;

  // At the last look.
  int64_t bytes() const;

 private:
  struct Open {
    std::shared_ptr<Upload> upload;
    Clock::time_point since;
    int64_t undelivered;  // of the connection when it began
  };
  struct Peer {
    std::vector<Open> open;  // oldest first
    int64_t delivered = 0;
    int64_t held = 0;  // at the last look, at most
    int64_t read = 0;  // at `asked`
    Clock::time_point asked = Clock::time_point::min();
  };
  using Refused = std::vector<std::pair<std::shared_ptr<Upload>, scheduling::Refusal>>;

  void RefuseLate(Clock::time_point now, Refused& refused);
  void Measure();
  void RefuseTooMuch(Refused& refused);
  bool IsTrimDue(Clock::time_point now);

  const UploadLimits limits_;
  const BytesRead bytes_read_;
  const Trim trim_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Peer> peers_;
  int64_t held_ = 0;
  int64_t most_held_ = 0;  // since much ended
  int64_t given_up_ = 0;   // as well
  Clock::time_point much_ended_;
  size_t trims_;  // that were done since
};

}  // namespace simgrad::server::service
