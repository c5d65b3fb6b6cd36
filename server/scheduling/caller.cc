#include "server/scheduling/caller.h"

#include <algorithm>
#include <cmath>

namespace simgrad::server::scheduling {

CallerLimits Caller::limits() const {
  std::lock_guard lock(mutex_);
  return limits_;
}

void Caller::SetLimits(const CallerLimits& limits) {
  std::lock_guard lock(mutex_);
  limits_ = limits;
}

bool Caller::Enter() {
  std::lock_guard lock(mutex_);
  if (requests_ >= limits_.requests_in_flight) return false;
  ++requests_;
  return true;
}

void Caller::Leave() {
  std::lock_guard lock(mutex_);
  --requests_;
}

int64_t Caller::requests_in_flight() const {
  std::lock_guard lock(mutex_);
  return requests_;
}

absl::Duration Caller::TakeSteps(double instance_steps, absl::Time now) {
  std::lock_guard lock(mutex_);
  const double rate = limits_.instance_steps_per_second;
  if (std::isinf(rate)) {
    working_steps_ += instance_steps;
    return absl::ZeroDuration();
  }
  const double paid =
      paid_ == absl::InfinitePast() ? rate : rate * absl::ToDoubleSeconds(now - paid_);
  steps_ = std::min(rate, steps_ + std::max(paid, 0.0));
  paid_ = now;
  if (steps_ <= 0) {
    const auto until_paid = [&](double debt) {
      return absl::Seconds(std::max(debt, 0.0) / rate) + absl::Milliseconds(1);
    };
    return std::max(until_paid(-steps_ - working_steps_),
                    std::min(until_paid(-steps_), absl::Seconds(1)));
  }
  steps_ -= instance_steps;
  working_steps_ += instance_steps;
  return absl::ZeroDuration();
}

void Caller::EndSteps(double taken, double ran) {
  std::lock_guard lock(mutex_);
  working_steps_ -= taken;
  if (!std::isinf(limits_.instance_steps_per_second)) steps_ += taken - ran;
}

// Each refusal has its turn one interval after the last, and a burst may come before its turn. A
// refusal costs a processor half a millisecond, its caller's part included: at this pace a
// thirty-second of one processor. Four times the pace took a tenth of the goodput of two cores.
absl::Duration Caller::PaceRefusal(absl::Time now) {
  constexpr absl::Duration kInterval = absl::Milliseconds(16);
  const absl::Duration kBurst = 64 * kInterval;
  constexpr absl::Duration kLongest = absl::Seconds(3);
  std::lock_guard lock(mutex_);
  refused_until_ = std::max(refused_until_, now) + kInterval;
  const absl::Duration wait = refused_until_ - now - kBurst;
  if (wait > kLongest) refused_until_ = now + kBurst + kLongest;
  return std::clamp(wait, absl::ZeroDuration(), kLongest);
}

bool Caller::TakeMemory(int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > limits_.memory_bytes - memory_bytes_) return false;
  memory_bytes_ += bytes;
  return true;
}

void Caller::GiveMemory(int64_t bytes) {
  std::lock_guard lock(mutex_);
  memory_bytes_ -= bytes;
}

int64_t Caller::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return memory_bytes_;
}

std::shared_ptr<Caller> Callers::Find(const std::string& name, const CallerLimits& limits) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Caller>& caller = callers_[name];
  if (caller == nullptr) {
    caller = std::make_shared<Caller>(name, limits);
    const std::shared_ptr<Caller> found = caller;
    if (callers_.size() > most_) Forget();
    return found;
  }
  if (caller->limits() != limits) caller->SetLimits(limits);
  return caller;
}

size_t Callers::size() const {
  std::lock_guard lock(mutex_);
  return callers_.size();
}

// A caller with a debt of instance-steps must be remembered, else it would come back without one.
void Callers::Forget() {
  std::erase_if(callers_, [](const auto& entry) {
    const Caller& caller = *entry.second;
    return entry.second.use_count() == 1 && caller.requests_in_flight() == 0 &&
           std::isinf(caller.limits().instance_steps_per_second);
  });
}

}  // namespace simgrad::server::scheduling
