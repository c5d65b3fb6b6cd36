// Content that callers uploaded, by its SHA-256: requests name it instead of sending it again.
//
// Each caller finds its own content alone, as a digest can be made from guessed content. What
// two callers upload is kept, and takes memory, twice. An entry lives for `ttl` after its last
// use, and is dropped earlier where memory is needed: where newer content would exceed a limit, the
// least recently used of the caller that has most, so a caller that uploads much drops its own; for
// work, the least recently used of all.
// Units: bytes, as measured. Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/scheduling/memory_budget.h"
#include "server/scheduling/steady_time.h"
#include "server/service/sweeper.h"

namespace simgrad::server::service {

struct ContentsOptions {
  absl::Duration ttl = absl::Minutes(10);
  int64_t max_bytes = 0;  // of all together
  std::function<absl::Time()> now = SteadyNow;
};

class Contents {
 public:
  // The bytes that an entry takes beside its content.
  static constexpr int64_t kBesideContent = 512;
  struct Use {
    int64_t entries = 0;
    int64_t bytes = 0;
  };

  // Expired content is dropped by a thread of its own, too.
  explicit Contents(ContentsOptions options);

  // Keeps `content`, whose digest is `digest`. All content of this caller may take `most_bytes`.
  // `memory`: what was reserved for the content and kBesideContent while it came; it becomes the
  // entry's. False: the content is larger than may be, and nothing was dropped for it.
  bool Keep(std::string content, const std::string& digest, const std::string& caller,
            int64_t most_bytes, scheduling::MemoryBudget::Reservation memory);
  // Null: this caller has no such content here.
  std::shared_ptr<const std::string> Find(const std::string& digest, const std::string& caller);
  // Drops entries until at least so many bytes are freed or none is left; returns the bytes freed.
  int64_t Relieve(int64_t bytes);
  void DropExpired();
  Use use() const;
  int64_t max_bytes() const { return options_.max_bytes; }
  absl::Duration ttl() const { return options_.ttl; }

 private:
  struct Entry {
    std::string digest;
    std::shared_ptr<const std::string> content;
    int64_t bytes = 0;
    absl::Time expires;
    scheduling::MemoryBudget::Reservation memory;
  };
  using Entries = std::list<Entry>;
  struct Owner {
    Entries entries;  // the most recently used first
    std::unordered_map<std::string, Entries::iterator> by_digest;
    int64_t bytes = 0;
  };
  using Owners = std::map<std::string, Owner>;
  // Called with the lock held. `dropped` is freed once the lock is released.
  Entry* Used(const std::string& digest, const std::string& caller);
  void DropLast(Owners::iterator owner, Entries& dropped);
  void DropExpiredLocked(Entries& dropped);
  // Drops an entry of the caller with most bytes, counting `bytes` more for `caller`. False: none.
  bool DropOfHeaviest(const std::string& caller, int64_t bytes, Entries& dropped);
  void MakeRoom(const std::string& caller, int64_t bytes, int64_t most_bytes, Entries& dropped);

  const ContentsOptions options_;
  mutable std::mutex mutex_;
  Owners owners_;  // that have any
  int64_t bytes_ = 0;
  Sweeper sweeper_;  // the last member: it goes first
};

}  // namespace simgrad::server::service
