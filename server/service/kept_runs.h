// Rollouts that callers keep for later reversals, by handle.
//
// A handle is the replica's name, a dot and 128 random bits. It is bound to the caller that kept
// the run, lives for `ttl` after its last use, and goes earlier where memory is needed: the one
// least recently used first. Runs of one program hold it together. Threads: any.
// Errors: NOT_FOUND with reason TAPE_GONE, the same whether a handle is unknown, expired, given up
//   or another caller's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/conversion/program_cache.h"
#include "server/scheduling/steady_time.h"
#include "server/service/sweeper.h"
#include "sim/engine/kept_run.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::service {

// Why a kept run went: kLimit, for newer ones; kTtl, unused for so long; kReleased, as work needed
// its memory.
enum class KeptLost : uint8_t { kLimit, kTtl, kReleased };
inline constexpr std::array<const char*, 3> kKeptLostNames = {"limit", "ttl", "released"};

struct KeptRunsOptions {
  std::string replica;
  absl::Duration ttl = absl::Minutes(10);
  int64_t max_bytes = 0;  // of all together
  // Takes memory for an entry, which goes with what it returns; null: there is none now.
  std::function<std::shared_ptr<void>(int64_t bytes)> lease;
  // The bytes that a lease may take without any entry dropped.
  std::function<int64_t()> free_bytes;
  std::function<void(KeptLost)> on_lost = [](KeptLost) {};
  std::function<absl::Time()> now = SteadyNow;
};

class KeptRuns {
 public:
  struct Kept {
    std::shared_ptr<const sim::KeptRun> run;
    // The spec of the rollout; its tensors have no content, and its world has no program.
    std::shared_ptr<const v1::RolloutSpec> spec;
    std::shared_ptr<const conversion::CachedWorld> world;
  };
  struct Use {
    int64_t entries = 0;
    int64_t bytes = 0;
  };

  // Expired runs are dropped by a thread of its own, too.
  explicit KeptRuns(KeptRunsOptions options);

  // The handle; nothing where there is no memory even without the others, which then stay.
  std::optional<std::string> Keep(Kept kept, const std::string& caller);
  absl::StatusOr<Kept> Find(const std::string& handle, const std::string& caller);
  // Gives up about so many bytes, or all that no running reversal reads; returns how many. What is
  // read stays.
  int64_t Relieve(int64_t bytes);
  void DropExpired();
  Use use() const;
  int64_t max_bytes() const { return options_.max_bytes; }
  absl::Duration ttl() const { return options_.ttl; }

 private:
  // A program and its world; it may be that entries alone keep them.
  struct Program {
    int64_t bytes = 0;
    int64_t entries = 0;
    std::shared_ptr<void> lease;
  };
  struct Entry {
    std::string handle, caller;
    Kept kept;
    int64_t bytes = 0;  // beside those of the program
    absl::Time expires;
    std::shared_ptr<void> lease;
    std::shared_ptr<Program> program;
  };
  using Entries = std::list<Entry>;
  // Takes a lease, for which idle entries go; null: all of them would not do.
  std::shared_ptr<void> Lease(int64_t bytes);
  // Entries that go are freed without the lock. Returns the bytes that come free then.
  int64_t DropLocked(Entries::iterator entry, KeptLost why, Entries& dropped);
  void DropExpiredLocked(Entries& dropped);
  // The oldest entry that no reversal reads; end: there is none. Others would give no memory back.
  Entries::iterator OldestIdleLocked();
  // The bytes of entries that no reversal reads, and of programs that only these have, but for `needed`.
  int64_t FreeableLocked(const Program& needed) const;

  const KeptRunsOptions options_;
  mutable std::mutex mutex_;
  Entries entries_;  // the most recently used first
  std::unordered_map<std::string, Entries::iterator> by_handle_;
  std::unordered_map<const sim::NumericalProgram*, std::shared_ptr<Program>> programs_;
  int64_t bytes_ = 0;
  Sweeper sweeper_;  // the last member: it goes first
};

}  // namespace simgrad::server::service
