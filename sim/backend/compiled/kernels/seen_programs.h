// Knows which of the last kMost programs were run before. Holds none of them. Threads: any.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "sim/program/numerical_program.h"

namespace simgrad::sim::compiled {

class SeenPrograms {
 public:
  // Whether SawBefore was called for this program. Records nothing.
  bool HasSeen(const std::shared_ptr<const NumericalProgram>& program) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = seen_.find(program.get());
    return entry != seen_.end() && !entry->second.expired();
  }

  // Whether it was called for this program before.
  bool SawBefore(const std::shared_ptr<const NumericalProgram>& program) {
    constexpr size_t kMost = 4096;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto [entry, is_new] = seen_.try_emplace(program.get());
    // Another program may have stood at this address.
    const bool saw = !is_new && !entry->second.expired();
    entry->second = program;
    if (is_new) order_.push_front(program.get());
    if (order_.size() > kMost) {
      seen_.erase(order_.back());
      order_.pop_back();
    }
    return saw;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const NumericalProgram*, std::weak_ptr<const NumericalProgram>> seen_;
  std::list<const NumericalProgram*> order_;  // the newest first
};

}  // namespace simgrad::sim::compiled
