// Counters, gauges and histograms that a non-finite number cannot poison.
//
// One Observe(NaN) would make the sum of a histogram NaN for the life of the process, a counter
// likewise. Every observation passes the guard; a refused one is counted as a non-finite value. Finite
// ones cannot add up to infinity: what is beyond 2^959 counts as 2^959 in a sum, which 2^64 of them fit.
// Threads: any. Cost: an atomic or a short lock; no look-up.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace simgrad::server::metrics {

// A finite number as sums take it.
inline double Summed(double value) { return std::clamp(value, -0x1p959, 0x1p959); }

// The counters of refused observations.
struct Guard {
  prometheus::Counter* nan = nullptr;
  prometheus::Counter* inf = nullptr;
  bool Admits(double value) const {
    if (std::isfinite(value)) return true;
    (std::isnan(value) ? nan : inf)->Increment();
    return false;
  }
};

class GuardedCounter {
 public:
  GuardedCounter() = default;
  GuardedCounter(prometheus::Counter* counter, const Guard* guard)
      : counter_(counter), guard_(guard) {}
  void Add(double amount) {
    if (guard_->Admits(amount) && amount > 0) counter_->Increment(Summed(amount));
  }
  void Add(uint64_t amount) { Add(static_cast<double>(amount)); }
  void Increment() { counter_->Increment(); }

 private:
  prometheus::Counter* counter_ = nullptr;
  const Guard* guard_ = nullptr;
};

class GuardedGauge {
 public:
  GuardedGauge() = default;
  GuardedGauge(prometheus::Gauge* gauge, const Guard* guard) : gauge_(gauge), guard_(guard) {}
  void Set(double value) {
    if (guard_->Admits(value)) gauge_->Set(value);
  }
  void Increment() { gauge_->Increment(); }
  void Decrement() { gauge_->Decrement(); }
  double Value() const { return gauge_->Value(); }

 private:
  prometheus::Gauge* gauge_ = nullptr;
  const Guard* guard_ = nullptr;
};

class GuardedHistogram {
 public:
  GuardedHistogram() = default;
  GuardedHistogram(prometheus::Histogram* histogram, const Guard* guard)
      : histogram_(histogram), guard_(guard) {}
  void Observe(double value) {
    if (guard_->Admits(value)) histogram_->Observe(Summed(value));
  }
  // Counts per bucket (one more than there are bounds) and their sum, at once.
  void ObserveMany(const std::vector<double>& counts, double sum) {
    for (double count : counts) {
      if (!guard_->Admits(count)) return;
    }
    if (guard_->Admits(sum)) histogram_->ObserveMultiple(counts, Summed(sum));
  }

 private:
  prometheus::Histogram* histogram_ = nullptr;
  const Guard* guard_ = nullptr;
};

}  // namespace simgrad::server::metrics
