#include "server/service/kept_runs.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/validation/request_error.h"
#include "sim/program/field_error.h"

namespace simgrad::server::service {
namespace {

// Empty where the system has none.
std::string RandomBits() {
  constexpr size_t kBytes = 16;
  std::string bytes(kBytes, '\0');
  if (getentropy(bytes.data(), bytes.size()) != 0) return "";
  return absl::BytesToHexString(bytes);
}

absl::Status Gone() {
  return validation::WithReason(
      sim::InField("handle", absl::NotFoundError(
                                 "no rollout is kept for this caller under it on this server: it "
                                 "was never given, has expired or was given up; ask for the "
                                 "gradient instead, or roll out again with keep")),
      "TAPE_GONE");
}

}  // namespace

KeptRuns::KeptRuns(KeptRunsOptions options)
    : options_(std::move(options)), sweeper_(options_.ttl, [this] { DropExpired(); }) {}

std::optional<std::string> KeptRuns::Keep(Kept kept, const std::string& caller) {
  const std::string bits = RandomBits();
  if (bits.empty()) return std::nullopt;
  Entry entry;
  entry.handle = absl::StrCat(options_.replica, ".", bits);
  entry.caller = caller;
  entry.bytes = kept.run->bytes + static_cast<int64_t>(kept.spec->SpaceUsedLong());
  entry.kept = std::move(kept);
  if (entry.bytes > options_.max_bytes) return std::nullopt;
  Entries dropped;
  const auto make_room = [&] {  // under the lock
    while (!entries_.empty() && bytes_ + entry.bytes > options_.max_bytes) {
      DropLocked(std::prev(entries_.end()), KeptLost::kLimit, dropped);
    }
  };
  {
    const std::lock_guard lock(mutex_);
    DropExpiredLocked(dropped);
  }
  dropped.clear();
  {
    const std::lock_guard lock(mutex_);
    const int64_t free = options_.free_bytes();
    if (entry.bytes > free && entry.bytes > free + FreeableLocked()) return std::nullopt;
    make_room();
  }
  while (true) {
    dropped.clear();  // gives its memory back
    entry.lease = options_.lease(entry.bytes);
    if (entry.lease != nullptr) break;
    const std::lock_guard lock(mutex_);
    const auto idle = OldestIdleLocked();
    if (idle == entries_.end()) return std::nullopt;
    DropLocked(idle, KeptLost::kLimit, dropped);
  }
  const std::lock_guard lock(mutex_);
  make_room();  // once more: others may have kept runs since
  entry.expires = options_.now() + options_.ttl;
  bytes_ += entry.bytes;
  std::string handle = entry.handle;
  entries_.push_front(std::move(entry));
  by_handle_[handle] = entries_.begin();
  return handle;
}

absl::StatusOr<KeptRuns::Kept> KeptRuns::Find(const std::string& handle,
                                              const std::string& caller) {
  Entries dropped;
  const std::lock_guard lock(mutex_);
  DropExpiredLocked(dropped);
  const auto found = by_handle_.find(handle);
  if (found == by_handle_.end() || found->second->caller != caller) return Gone();
  entries_.splice(entries_.begin(), entries_, found->second);
  Entry& entry = entries_.front();
  entry.expires = options_.now() + options_.ttl;
  // The memory counts as long as a reversal reads it.
  struct Held {
    std::shared_ptr<const sim::KeptRun> run;
    std::shared_ptr<void> lease;
  };
  auto held = std::make_shared<Held>(Held{entry.kept.run, entry.lease});
  return Kept{{held, held->run.get()}, entry.kept.spec};
}

int64_t KeptRuns::Relieve(int64_t bytes) {
  Entries dropped;
  int64_t freed = 0;
  const std::lock_guard lock(mutex_);
  while (freed < bytes) {
    const auto idle = OldestIdleLocked();
    if (idle == entries_.end()) break;
    freed += idle->bytes;
    DropLocked(idle, KeptLost::kReleased, dropped);
  }
  return freed;
}

void KeptRuns::DropExpired() {
  Entries dropped;
  const std::lock_guard lock(mutex_);
  DropExpiredLocked(dropped);
}

void KeptRuns::DropExpiredLocked(Entries& dropped) {
  const absl::Time now = options_.now();
  // All live equally long after their last use.
  while (!entries_.empty() && entries_.back().expires <= now) {
    DropLocked(std::prev(entries_.end()), KeptLost::kTtl, dropped);
  }
}

void KeptRuns::DropLocked(Entries::iterator entry, KeptLost why, Entries& dropped) {
  by_handle_.erase(entry->handle);
  bytes_ -= entry->bytes;
  dropped.splice(dropped.begin(), entries_, entry);
  options_.on_lost(why);
}

KeptRuns::Entries::iterator KeptRuns::OldestIdleLocked() {
  const auto idle = std::find_if(entries_.rbegin(), entries_.rend(),
                                 [](const Entry& e) { return e.lease.use_count() == 1; });
  return idle == entries_.rend() ? entries_.end() : std::prev(idle.base());
}

int64_t KeptRuns::FreeableLocked() const {
  int64_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.lease.use_count() == 1 ? entry.bytes : 0;
  return bytes;
}

KeptRuns::Use KeptRuns::use() const {
  const std::lock_guard lock(mutex_);
  return {static_cast<int64_t>(entries_.size()), bytes_};
}

}  // namespace simgrad::server::service
