#include "server/scheduling/memory_budget.h"

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

std::optional<MemoryBudget::Reservation> MemoryBudget::Reserve(int64_t bytes, MemoryUse use,
                                                               std::shared_ptr<Caller> caller) {
  if (caller != nullptr && !caller->TakeMemory(bytes)) return std::nullopt;
  if (TakeWithRelief(bytes, use)) return Reservation(this, bytes, use, std::move(caller));
  if (caller != nullptr) caller->GiveMemory(bytes);
  return std::nullopt;
}

bool MemoryBudget::Take(int64_t bytes, MemoryUse use) {
  std::lock_guard lock(mutex_);
  const int64_t all = std::accumulate(used_.begin(), used_.end(), int64_t{0});
  if (bytes > limit_ - all) return false;
  used_[static_cast<size_t>(use)] += bytes;
  return true;
}

bool MemoryBudget::TakeWithRelief(int64_t bytes, MemoryUse use) {
  if (Take(bytes, use)) return true;
  // A cache does not make room for another.
  if (!relief_ || IsKeptForLater(use) || bytes > limit_) return false;
  relief_(bytes);
  return Take(bytes, use);
}

void MemoryBudget::GiveBack(int64_t bytes, MemoryUse use) {
  std::lock_guard lock(mutex_);
  used_[static_cast<size_t>(use)] -= bytes;
}

int64_t MemoryBudget::used(MemoryUse use) const {
  std::lock_guard lock(mutex_);
  return used_[static_cast<size_t>(use)];
}

int64_t MemoryBudget::used() const {
  std::lock_guard lock(mutex_);
  return std::accumulate(used_.begin(), used_.end(), int64_t{0}) -
         used_[static_cast<size_t>(MemoryUse::kCache)] -
         used_[static_cast<size_t>(MemoryUse::kKept)];
}

}  // namespace simgrad::server::scheduling
