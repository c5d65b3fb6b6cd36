#include "server/scheduling/memory_budget.h"

#include <algorithm>
#include <numeric>

namespace simgrad::server::scheduling {

MemoryBudget::Reservation::~Reservation() {
  if (budget_ == nullptr) return;
  budget_->GiveBack(bytes_, use_);
  if (caller_ != nullptr) caller_->GiveMemory(bytes_);
}

bool MemoryBudget::Reservation::Grow(int64_t more) {
  if (budget_ == nullptr) return false;
  if (caller_ != nullptr && !caller_->TakeMemory(more)) return false;
  if (!budget_->TakeWithRelief(more, use_)) {
    if (caller_ != nullptr) caller_->GiveMemory(more);
    return false;
  }
  bytes_ += more;
  return true;
}

bool MemoryBudget::Reservation::Resize(int64_t bytes) {
  if (bytes >= bytes_) return Grow(bytes - bytes_);
  if (caller_ != nullptr) caller_->GiveMemory(bytes_ - bytes);
  budget_->GiveBack(bytes_ - bytes, use_);
  bytes_ = bytes;
  return true;
}

void MemoryBudget::Reservation::TurnInto(MemoryUse use) {
  if (budget_ == nullptr) return;
  budget_->Move(bytes_, use_, use);
  use_ = use;
  if (caller_ == nullptr) return;
  caller_->GiveMemory(bytes_);
  caller_ = nullptr;
}

std::optional<MemoryBudget::Reservation> MemoryBudget::Reserve(int64_t bytes, MemoryUse use,
                                                               std::shared_ptr<Caller> caller) {
  if (caller != nullptr && !caller->TakeMemory(bytes)) return std::nullopt;
  if (TakeWithRelief(bytes, use)) return Reservation(this, bytes, use, std::move(caller));
  if (caller != nullptr) caller->GiveMemory(bytes);
  return std::nullopt;
}

bool MemoryBudget::Take(int64_t bytes, MemoryUse use) {
  std::lock_guard lock(mutex_);
  if (bytes > limit_ - All()) return false;
  used_[static_cast<size_t>(use)] += bytes;
  return true;
}

bool MemoryBudget::TakeWithRelief(int64_t bytes, MemoryUse use) {
  if (Take(bytes, use)) return true;
  // A cache does not make room for another.
  if (!relief_ || IsKeptForLater(use)) return false;
  const auto kept_for_later = [this] { return limit_ - free() - used(); };
  while (bytes <= limit_ - used()) {
    const int64_t kept = kept_for_later();
    relief_(std::max<int64_t>(bytes - free(), 0));
    if (Take(bytes, use)) return true;
    // Something may still be read where it was given up, and then holds its memory.
    if (kept_for_later() >= kept) return false;
  }
  return false;
}

void MemoryBudget::GiveBack(int64_t bytes, MemoryUse use) {
  std::lock_guard lock(mutex_);
  used_[static_cast<size_t>(use)] -= bytes;
}

void MemoryBudget::Move(int64_t bytes, MemoryUse from, MemoryUse to) {
  std::lock_guard lock(mutex_);
  used_[static_cast<size_t>(from)] -= bytes;
  used_[static_cast<size_t>(to)] += bytes;
}

int64_t MemoryBudget::All() const {
  return std::accumulate(used_.begin(), used_.end(), int64_t{0});
}

int64_t MemoryBudget::free() const {
  std::lock_guard lock(mutex_);
  return limit_ - All();
}

int64_t MemoryBudget::used(MemoryUse use) const {
  std::lock_guard lock(mutex_);
  return used_[static_cast<size_t>(use)];
}

int64_t MemoryBudget::used() const {
  std::lock_guard lock(mutex_);
  return All() - used_[static_cast<size_t>(MemoryUse::kCache)] -
         used_[static_cast<size_t>(MemoryUse::kKept)];
}

}  // namespace simgrad::server::scheduling
