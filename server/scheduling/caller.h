// A caller of requests: its share of the workers, its limits, and what it uses.
//
// A caller is the name of a token, the name of a certificate, or an address. Callers share the
// workers by weight, however many requests each has open (fair_queue.h).
// Threads: any.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"

namespace simgrad::server::scheduling {

struct CallerLimits {
  double weight = 1.0;
  int64_t requests_in_flight = std::numeric_limits<int64_t>::max();
  double instance_steps_per_second = std::numeric_limits<double>::infinity();
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
  bool operator==(const CallerLimits&) const = default;
};

class Caller {
 public:
  Caller(std::string name, const CallerLimits& limits) : name_(std::move(name)), limits_(limits) {}

  const std::string& name() const { return name_; }
  CallerLimits limits() const;
  double weight() const { return limits().weight; }
  void SetLimits(const CallerLimits& limits);

  // One more request in flight; false: it has as many as it may.
  bool Enter();
  void Leave();
  int64_t requests_in_flight() const;

  // Takes instance-steps from an account that is paid into at the caller's rate, up to a second's
  // worth. What a request takes may leave a debt; while there is one nothing more is given.
  // Returns zero where they were taken, else how long to wait: a second at most for what work that has
  // not ended may give back.
  absl::Duration TakeSteps(double instance_steps, absl::Time now);
  // The work for which so many were taken has ended: gives back those that never ran.
  void EndSteps(double taken, double ran);

  // How long to wait before one more refusal is told. Some are told at once; a caller that comes
  // again whatever it is told has so many a second, each within three seconds.
  absl::Duration PaceRefusal(absl::Time now);

  bool TakeMemory(int64_t bytes);
  void GiveMemory(int64_t bytes);
  int64_t memory_bytes() const;

 private:
  const std::string name_;
  mutable std::mutex mutex_;
  CallerLimits limits_;
  int64_t requests_ = 0;
  int64_t memory_bytes_ = 0;
  double steps_ = 0.0;          // of the account, at `paid_`
  double working_steps_ = 0.0;  // taken for work that has not ended
  absl::Time paid_ = absl::InfinitePast();
  absl::Time refused_until_ = absl::InfinitePast();  // when the last refusal has its turn
};

// A request of a caller that is in flight, until destroyed.
class Visit {
 public:
  Visit() = default;
  // The caller has entered.
  explicit Visit(std::shared_ptr<Caller> caller) : caller_(std::move(caller)) {}
  Visit(Visit&&) = default;
  Visit& operator=(Visit&& other) noexcept {
    std::swap(caller_, other.caller_);
    return *this;
  }
  ~Visit() {
    if (caller_ != nullptr) caller_->Leave();
  }

 private:
  std::shared_ptr<Caller> caller_;
};

// The callers that are known: one object for each name. Callers that hold nothing are forgotten
// where there are many.
class Callers {
 public:
  explicit Callers(size_t most = 4096) : most_(most) {}
  // `limits` are in force from now on.
  std::shared_ptr<Caller> Find(const std::string& name, const CallerLimits& limits = {});
  size_t size() const;

 private:
  void Forget();  // mutex_ held

  const size_t most_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Caller>> callers_;
};

}  // namespace simgrad::server::scheduling
