// Content that callers uploaded, by its SHA-256: what requests name instead of sending it again.
//
// It is its caller's alone: a digest can be guessed from the content, so what one caller uploaded is
// not there for another, nor does it save that one's memory. It lives for `ttl` after its last use,
// and goes earlier where memory is needed. For newer content the least recently used of the caller
// that has most goes first, so a caller that uploads much pushes out its own; for work, the least
// recently used of all.
// Units: bytes, as measured. Threads: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace simgrad::server::service {

struct ContentsOptions {
  absl::Duration ttl = absl::Minutes(10);
  int64_t max_bytes = 0;  // of all together
  // Takes memory for an entry, which goes with what it returns; null: there is none now.
  std::function<std::shared_ptr<void>(int64_t bytes)> lease;
  std::function<absl::Time()> now = [] { return absl::Now(); };
};

class Contents {
 public:
  // What an entry takes beside its content.
  static constexpr int64_t kBesideContent = 512;
  struct Use {
    int64_t entries = 0;
    int64_t bytes = 0;
  };

  // Expired content is dropped by a thread of its own, too.
  explicit Contents(ContentsOptions options);

  // `digest`: of `content`. `most_bytes`: what all content of this caller may take. False: there is
  // no memory for it, even without the others'.
  bool Keep(std::string content, const std::string& digest, const std::string& caller,
            int64_t most_bytes);
  // Null: this caller has no such content here.
  std::shared_ptr<const std::string> Find(const std::string& digest, const std::string& caller);
  // Gives up about so many bytes, or all it has; returns how many.
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
    std::shared_ptr<void> lease;
  };
  using Entries = std::list<Entry>;
  struct Owner {
    Entries entries;  // the most recently used first
    std::unordered_map<std::string, Entries::iterator> by_digest;
    int64_t bytes = 0;
  };
  using Owners = std::map<std::string, Owner>;
  // What goes is freed without the lock. All of these with it.
  Entry* Used(const std::string& digest, const std::string& caller);
  void DropLast(Owners::iterator owner, Entries& dropped);
  void DropExpiredLocked(Entries& dropped);
  // Whether anything was there to be dropped, for `bytes` more of a caller.
  bool DropOfHeaviest(const std::string& caller, int64_t bytes, Entries& dropped);
  void MakeRoom(const std::string& caller, int64_t bytes, int64_t most_bytes, Entries& dropped);

  const ContentsOptions options_;
  mutable std::mutex mutex_;
  Owners owners_;  // that have any
  int64_t bytes_ = 0;
  std::condition_variable_any ended_;
  std::jthread sweeper_;  // the last member: it goes first
};

}  // namespace simgrad::server::service
