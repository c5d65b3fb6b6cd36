// Refusals that wait for their time to be told.
//
// A caller that comes again at once, whatever the answer says, would spend the processor on being
// refused: its refusals leave at a pace (scheduling::Caller), or as soon as the queue has room for
// the callers. What waits holds a call of gRPC and nothing of the service; there are at most so
// many, and what is beyond is told at once.
// Threads: any; looks come from OpenStreams.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/time/time.h"
#include "server/service/open_streams.h"

namespace simgrad::server::service {

class HeldRefusal {
 public:
  virtual ~HeldRefusal() = default;
  // Ends the call, unless it has ended.
  virtual void Tell() = 0;
};

class HeldRefusals final : public OpenStream {
 public:
  // `room`: how many callers the queue has room for.
  HeldRefusals(int64_t most, std::function<int64_t()> room) : most_(most), room_(std::move(room)) {}

  // How long to hold a refusal whose turn comes after `turn` and whose caller waits for `left`: a
  // look tells it before half of that is over.
  static absl::Duration HoldFor(absl::Duration turn, absl::Duration left);

  // False: as many wait as may.
  bool Add(std::shared_ptr<HeldRefusal> refusal, Clock::time_point due);
  // Tells those that are due, and the next ones as far as there is room, and was at the last look:
  // a queue that is empty for a moment only is no reason to call all.
  void Look(Clock::time_point now) override;

  int64_t size() const;

 private:
  const int64_t most_;
  const std::function<int64_t()> room_;
  mutable std::mutex mutex_;
  bool had_room_ = false;
  std::multimap<Clock::time_point, std::shared_ptr<HeldRefusal>> refusals_;  // by when they are due
};

}  // namespace simgrad::server::service
