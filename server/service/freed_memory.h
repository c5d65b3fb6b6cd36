// Gives the system back what requests freed, now and then: pages between long-lived pieces stay with the
// arenas of the allocator otherwise, some more after each burst.
//
// Cost: a walk over what is free, a few milliseconds each kInterval. Threads: looks come from one.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "server/service/open_streams.h"

namespace simgrad::server::service {

class FreedMemory final : public OpenStream {
 public:
  static constexpr std::chrono::seconds kInterval{10};
  using Trim = std::function<void()>;

  explicit FreedMemory(Trim trim, Clock::time_point now = Clock::now())
      : trim_(std::move(trim)), last_(now) {}

  void Look(Clock::time_point now) override {
    if (now - last_ < kInterval) return;
    last_ = now;
    trim_();
  }

 private:
  const Trim trim_;
  Clock::time_point last_;
};

}  // namespace simgrad::server::service
