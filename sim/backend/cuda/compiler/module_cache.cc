#include "sim/backend/cuda/compiler/module_cache.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

namespace simgrad::sim::cuda {
namespace {

ModuleCache::Loaded Made(const std::function<ModuleCache::Loaded()>& make) {
  try {
    return make();
  } catch (const std::exception& error) {  // out of memory, above all; waiting requests get it
    return absl::InternalError(error.what());
  }
}

bool IsReady(const std::shared_future<ModuleCache::Loaded>& module) {
  return module.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

std::shared_ptr<const Module> ModuleCache::Find(const std::string& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end() || !IsReady(found->second->module)) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return *found->second->module.get();  // a failure would have gone under the same lock
}

ModuleCache::Answer ModuleCache::Get(const std::string& key, const std::function<Loaded()>& make) {
  std::promise<Loaded> promise;
  std::shared_future<Loaded> module;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = index_.find(key); found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      module = found->second->module;
    } else {
      entries_.push_front({key, promise.get_future().share()});
      index_[key] = entries_.begin();
    }
  }
  if (module.valid()) return {module.get(), false};
  Loaded made = Made(make);
  const int64_t bytes = made.ok() ? (*made)->bytes() : 0;
  HeldMemory memory = made.ok() ? watch_->ForCache(bytes) : nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  // Under the lock: no other thread drops an entry that is not ready.
  promise.set_value(made);
  const Entries::iterator entry = index_.at(key);
  if (memory == nullptr) {
    Drop(entry);
  } else {
    entry->memory = std::move(memory);
    entry->bytes = bytes;
    bytes_ += bytes;
  }
  DropUnused(most_bytes_);
  return {std::move(made), true};
}

int64_t ModuleCache::Relieve(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t before = bytes_;
  DropUnused(std::max<int64_t>(before - bytes, 0));
  return before - bytes_;
}

size_t ModuleCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

int64_t ModuleCache::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

void ModuleCache::Drop(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  index_.erase(entry->key);
  entries_.erase(entry);
}

void ModuleCache::DropUnused(int64_t most_bytes) {
  for (auto entry = entries_.end(); entry != entries_.begin() && bytes_ > most_bytes;) {
    const auto candidate = std::prev(entry);
    const bool unused = IsReady(candidate->module) && candidate->module.get().ok() &&
                        candidate->module.get()->use_count() == 1;
    if (unused) {
      Drop(candidate);
    } else {
      entry = candidate;
    }
  }
}

}  // namespace simgrad::sim::cuda
