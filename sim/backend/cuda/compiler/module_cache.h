// Compiled texts in memory, by what they were made from.
//
// A module is made once: a second request for it waits until it is ready. Above the bound in bytes
// (Module::bytes) the least recently used modules are dropped, except those in use. The watch gives
// the memory for what is kept; without it a module is given to those who wait and not kept.
// Errors: those of `make`, for all waiting requests; the next request tries again.
// Cost: a look-up; one more per module that is dropped. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/statusor.h"
#include "sim/backend/compile_watch.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::sim::cuda {

class ModuleCache {
 public:
  using Loaded = absl::StatusOr<std::shared_ptr<const Module>>;
  explicit ModuleCache(int64_t most_bytes,
                       std::shared_ptr<CompileWatch> watch = std::make_shared<NoCompileWatch>())
      : most_bytes_(most_bytes), watch_(std::move(watch)) {}

  struct Answer {
    Loaded module;
    bool made = false;  // by this call
  };
  // The module where it is made already, else null.
  std::shared_ptr<const Module> Find(const std::string& key);
  Answer Get(const std::string& key, const std::function<Loaded()>& make);
  // Drops modules as the bound does, until so many bytes are free, or all that are not in use;
  // returns how many bytes.
  int64_t Relieve(int64_t bytes);
  size_t size() const;
  int64_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::shared_future<Loaded> module;
    int64_t bytes = 0;  // 0: not ready yet
    HeldMemory memory;
  };
  using Entries = std::list<Entry>;

  void Drop(Entries::iterator entry);
  void DropUnused(int64_t most_bytes);

  const int64_t most_bytes_;
  const std::shared_ptr<CompileWatch> watch_;
  mutable std::mutex mutex_;
  Entries entries_;  // the most recently used first
  std::unordered_map<std::string, Entries::iterator> index_;
  int64_t bytes_ = 0;
};

}  // namespace simgrad::sim::cuda
