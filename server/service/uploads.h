// Bounds the requests that have begun to come and are not complete.
//
// gRPC gives a message out when all of it has come. Until then no budget has its bytes, and its
// size is not known. The bytes that a connection has sent are known: those since the oldest of its
// unfinished uploads began, less those of requests completed meanwhile, are the most that its
// uploads hold. Each look takes that much of the memory budget. Where the sum of all
// connections exceeds the limit, or the budget has no more, uploads of the connection that holds
// most are refused, the oldest first. An upload that is not complete in time is refused too.
// gRPC compares a message with its limit only when all of it has come. So a connection that holds
// more than its uploads may bring, and calls that ended without a message may have left, loses its
// oldest. A connection whose uploads are all of no known caller (health calls, unknown methods)
// holds at most kMostOfStrangers.
// gRPC reads some MiB of a request, at most a window of its stream, before its call is taken. These
// bytes count if the call is the first of its connection; of a later call nobody knows them, as they
// cannot be told from those of calls before it.
// What comes between two looks goes beyond the limit; gRPC's resource quota stands behind it.
// Errors: RESOURCE_EXHAUSTED (memory, length) or DEADLINE_EXCEEDED, as refusals.
// Threads: any; looks come from OpenStreams. Cost: two system calls each millisecond or two in
// which a connection begins calls; a look asks for each connection with unfinished uploads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/memory_budget.h"
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
  int64_t bytes = int64_t{1} << 30;           // of all together
  int64_t message_bytes = int64_t{64} << 20;  // of one message, the most that gRPC gives out
  absl::Duration timeout = absl::Seconds(120);
};

class Uploads final : public OpenStream {
 public:
  // The bytes that have come on the connection of a peer so far.
  using BytesRead = std::function<int64_t(const std::string& peer)>;
  // Gives memory that the allocator keeps back to the system.
  using Trim = std::function<void()>;
  static constexpr int64_t kMostOfStrangers = int64_t{1} << 20;
  // `memory` outlives it.
  Uploads(UploadLimits limits, scheduling::MemoryBudget& memory, BytesRead bytes_read, Trim trim);

  struct Origin {
    bool of_caller = true;  // the caller is known, and has been let in
    bool first_of_connection = false;
    int64_t most_content = 0;  // bytes that it may bring beyond one message, in further messages
  };
  void Begin(std::shared_ptr<Upload> upload, const std::string& peer, Origin origin,
             Clock::time_point now);
  // Forgets an upload. `bytes`: those that gRPC gave out of its request, 0 if none. The upload
  // lives on until a look at it has ended.
  void End(const Upload* upload, const std::string& peer, int64_t bytes);
  // A call of the peer was answered without being read.
  void Unread(const std::string& peer);
  void Look(Clock::time_point now) override;

  // The bytes that uploads held at the last look, at most.
  int64_t bytes() const;

 private:
  struct Open {
    std::shared_ptr<Upload> upload;
    Clock::time_point since;
    bool of_caller;
    int64_t most_bytes;   // that it may bring, beside frames
    int64_t undelivered;  // of the connection when it began
    int64_t lost = 0;     // most that came meanwhile of calls that ended without a message
  };
  struct Peer {
    std::vector<Open> open;  // oldest first
    int64_t delivered = 0;
    int64_t held = 0;  // at the last look, at most
    int64_t read = 0;  // at `asked`
    Clock::time_point asked = Clock::time_point::min();
  };
  using Peers = std::unordered_map<std::string, Peer>;
  using Refused = std::vector<std::pair<std::shared_ptr<Upload>, scheduling::Refusal>>;

  static bool AreStrangers(const Peer& peer);
  // The most bytes that may have come since the oldest upload of a peer began.
  static int64_t MostOf(const Peer& peer);
  // So many bytes of a peer may be of none of its uploads.
  static void Lose(Peer& peer, int64_t bytes);
  // Takes one that ends from its peer; so many bytes went with it.
  static std::shared_ptr<Upload> Take(Peer& peer, std::vector<Open>::iterator one, int64_t bytes);
  // The same of one without a message: what it sent beyond `bytes` stays counted.
  static std::shared_ptr<Upload> TakeUnread(Peer& peer, std::vector<Open>::iterator one,
                                            int64_t bytes);
  void RefuseLate(Clock::time_point now, Refused& refused);
  void Measure();
  void RefuseTooLong(Refused& refused);
  static scheduling::Refusal TooLong(const Peer& peer, int64_t most);
  void RefuseTooMuch(Refused& refused);
  // Returns whether the peer has others.
  bool RefuseOldestOf(Peers::iterator found, const scheduling::Refusal& refusal, Refused& refused);
  bool IsTrimDue(Clock::time_point now);

  const UploadLimits limits_;
  const BytesRead bytes_read_;
  const Trim trim_;
  mutable std::mutex mutex_;
  Peers peers_;
  int64_t held_ = 0;
  scheduling::MemoryBudget::Reservation reserved_;  // of held_
  int64_t most_held_ = 0;                           // since much ended
  int64_t given_up_ = 0;                            // as well
  Clock::time_point much_ended_;
  size_t trims_;  // that were done since
};

}  // namespace simgrad::server::service
