// How much memory the server may take for everything that requests make it hold, by use.
//
// Units: bytes. Threads: any.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "server/scheduling/caller.h"

namespace simgrad::server::scheduling {

enum class MemoryUse : uint8_t {
  kWork,     // what runs or is about to, with its answer
  kCompile,  // programs while they are verified and lowered
  kCache,    // lowered programs that are kept
  kUpload,   // requests as they came
  kKept,     // rollouts that callers keep
};
inline constexpr std::array<const char*, 5> kMemoryUseNames = {"work", "compile", "cache", "upload",
                                                               "kept"};
// Given up where other uses need the memory.
constexpr bool IsKeptForLater(MemoryUse use) {
  return use == MemoryUse::kCache || use == MemoryUse::kKept;
}

class MemoryBudget {
 public:
  // Gives its bytes back when destroyed. The budget outlives it.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          use_(other.use_),
          caller_(std::move(other.caller_)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      std::swap(use_, other.use_);
      std::swap(caller_, other.caller_);
      return *this;
    }
    ~Reservation();
    int64_t bytes() const { return bytes_; }
    // More of the same use and caller; false: it does not fit now, and nothing changed.
    bool Grow(int64_t more);
    // To `bytes` in all: grows as Grow does, or gives back.
    bool Resize(int64_t bytes);
    // Goes on as memory of another use, which is of no caller's share.
    void TurnInto(MemoryUse use);

   private:
    friend class MemoryBudget;
    Reservation(MemoryBudget* budget, int64_t bytes, MemoryUse use, std::shared_ptr<Caller> caller)
        : budget_(budget), bytes_(bytes), use_(use), caller_(std::move(caller)) {}
    MemoryBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
    MemoryUse use_ = MemoryUse::kWork;
    std::shared_ptr<Caller> caller_;
  };

  explicit MemoryBudget(int64_t limit_bytes) : limit_(limit_bytes) {}

  // Nullopt where it does not fit now, into the budget or into the share of `caller` (may be null).
  std::optional<Reservation> Reserve(int64_t bytes, MemoryUse use,
                                     std::shared_ptr<Caller> caller = nullptr);
  // Sets what gives memory back (it destroys reservations) where a reservation lacks so many bytes. It
  // is asked only where the reservation would fit once all that is kept for later is given up.
  // Set before there are threads.
  void SetRelief(std::function<void(int64_t bytes)> relief) { relief_ = std::move(relief); }

  int64_t limit() const { return limit_; }
  // The bytes that no use has.
  int64_t free() const;
  int64_t used(MemoryUse use) const;
  // The bytes of all uses but those that are given back when needed (IsKeptForLater).
  int64_t used() const;

 private:
  // With the lock held: the bytes of all uses.
  int64_t All() const;
  bool Take(int64_t bytes, MemoryUse use);
  bool TakeWithRelief(int64_t bytes, MemoryUse use);
  void GiveBack(int64_t bytes, MemoryUse use);
  void Move(int64_t bytes, MemoryUse from, MemoryUse to);

  const int64_t limit_;
  std::function<void(int64_t)> relief_;
  mutable std::mutex mutex_;
  std::array<int64_t, kMemoryUseNames.size()> used_{};
};

}  // namespace simgrad::server::scheduling
