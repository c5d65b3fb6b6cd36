// How much memory admitted work may take together, and who holds how much of it.
//
// Units: bytes. Threads: any.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace simgrad::server::scheduling {

class MemoryBudget {
 public:
  // Gives its bytes back when destroyed. The budget outlives it.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Reservation() {
      if (budget_ != nullptr) budget_->GiveBack(bytes_);
    }
    int64_t bytes() const { return bytes_; }

   private:
    friend class MemoryBudget;
    Reservation(MemoryBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}
    MemoryBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

  explicit MemoryBudget(int64_t limit_bytes) : limit_(limit_bytes) {}

  // Nullopt where it does not fit now.
  std::optional<Reservation> Reserve(int64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > limit_ - used_) return std::nullopt;
    used_ += bytes;
    return Reservation(this, bytes);
  }
  int64_t limit() const { return limit_; }
  int64_t used() const {
    std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  void GiveBack(int64_t bytes) {
    std::lock_guard lock(mutex_);
    used_ -= bytes;
  }

  const int64_t limit_;
  mutable std::mutex mutex_;
  int64_t used_ = 0;
};

}  // namespace simgrad::server::scheduling
