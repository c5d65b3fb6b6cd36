// Random choices that are the same on every machine: splitmix64 in counter mode.
#pragma once

#include <cstdint>
#include <vector>

#include "precision/hash.h"

namespace simgrad::sim::equality {

class Random {
 public:
  explicit Random(uint64_t seed) : key_(precision::SplitMix64(seed)) {}

  uint64_t Bits() { return precision::SplitMix64(key_ + 0x632BE59BD9B4E019u * ++count_); }
  // Uniform in low..high, both included.
  int64_t Integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Bits() % static_cast<uint64_t>(high - low + 1));
  }
  double Uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(Bits() >> 11) * 0x1p-53);
  }
  bool Chance(double probability) { return Uniform(0.0, 1.0) < probability; }
  template <typename T>
  const T& Pick(const std::vector<T>& list) {
    return list[static_cast<size_t>(Integer(0, static_cast<int64_t>(list.size()) - 1))];
  }

 private:
  uint64_t key_;
  uint64_t count_ = 0;
};

}  // namespace simgrad::sim::equality
