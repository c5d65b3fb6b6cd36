// Compiled texts in memory, by what they were made from.
//
// A module is made once: a second request for it waits until it is ready. Above the bound the least
// recently used modules are dropped, except those in use.
// Errors: those of `make`, for all waiting requests; the next request tries again.
// Cost: a look-up; one more per module that is dropped. Threads: any.
#pragma once

#include <cstddef>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::sim::cuda {

class ModuleCache {
 public:
  using Loaded = absl::StatusOr<std::shared_ptr<const Module>>;
  explicit ModuleCache(size_t most) : most_(most) {}

  struct Answer {
    Loaded module;
    bool made = false;  // by this call
  };
  // The module where it is made already, else null.
  std::shared_ptr<const Module> Find(const std::string& key);
  Answer Get(const std::string& key, const std::function<Loaded()>& make);
  size_t size() const;

 private:
  struct Entry {
    std::string key;
    std::shared_future<Loaded> module;
  };
  using Entries = std::list<Entry>;

  void Drop(Entries::iterator entry);
  void DropUnused();

  const size_t most_;
  mutable std::mutex mutex_;
  Entries entries_;  // the most recently used first
  std::unordered_map<std::string, Entries::iterator> index_;
};

}  // namespace simgrad::sim::cuda
