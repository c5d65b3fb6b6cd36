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
#include "sim/program/held_bytes.h"

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

std::shared_ptr<void> KeptRuns::Lease(int64_t bytes) {
  while (true) {
    if (auto lease = options_.lease(bytes)) return lease;
    Entries dropped;  // gives its memory back
    const std::lock_guard lock(mutex_);
    const auto idle = OldestIdleLocked();
    if (idle == entries_.end()) return nullptr;
    DropLocked(idle, KeptLost::kLimit, dropped);
  }
}

std::optional<std::string> KeptRuns::Keep(Kept kept, const std::string& caller) {
  const std::string bits = RandomBits();
  if (bits.empty()) return std::nullopt;
  Entry entry;
  entry.handle = absl::StrCat(options_.replica, ".", bits);
  entry.caller = caller;
  entry.bytes = kept.run->bytes + static_cast<int64_t>(kept.spec->SpaceUsedLong());
  entry.kept = std::move(kept);
  const sim::NumericalProgram* const program = entry.kept.run->batch.program.get();
  Entries dropped;
  const auto bytes_to_come = [&] {  // under the lock
    return entry.bytes + (entry.program->entries > 0 ? 0 : entry.program->bytes);
  };
  const auto make_room = [&] {  // under the lock
    while (!entries_.empty() && bytes_ + bytes_to_come() > options_.max_bytes) {
      DropLocked(std::prev(entries_.end()), KeptLost::kLimit, dropped);
    }
  };
  {
    const std::lock_guard lock(mutex_);
    DropExpiredLocked(dropped);
    if (const auto known = programs_.find(program); known != programs_.end()) {
      entry.program = known->second;
    }
  }
  dropped.clear();
  if (entry.program == nullptr) {
    entry.program = std::make_shared<Program>();
    if (program != nullptr) entry.program->bytes = sim::HeldBytes(*program);
    if (entry.kept.world != nullptr) {
      entry.program->bytes += sim::HeldBytes(entry.kept.world->program);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (entry.bytes + entry.program->bytes > options_.max_bytes) return std::nullopt;
    const int64_t free = options_.free_bytes();
    const int64_t needed = bytes_to_come();
    if (needed > free && needed > free + FreeableLocked(*entry.program)) return std::nullopt;
    make_room();
  }
  dropped.clear();
  if (entry.program->lease == nullptr) {
    entry.program->lease = Lease(entry.program->bytes);
    if (entry.program->lease == nullptr) return std::nullopt;
  }
  entry.lease = Lease(entry.bytes);
  if (entry.lease == nullptr) return std::nullopt;
  const std::shared_ptr<Program> ours = entry.program;  // goes without the lock
  const std::lock_guard lock(mutex_);
  // Others may have kept runs since, of this program too.
  entry.program = programs_.try_emplace(program, ours).first->second;
  make_room();
  programs_[program] = entry.program;  // room may have been made of its entries
  bytes_ += bytes_to_come();
  ++entry.program->entries;
  entry.expires = options_.now() + options_.ttl;
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
    std::shared_ptr<Program> program;
  };
  auto held = std::make_shared<Held>(Held{entry.kept.run, entry.lease, entry.program});
  return Kept{{held, held->run.get()}, entry.kept.spec, entry.kept.world};
}

int64_t KeptRuns::Relieve(int64_t bytes) {
  Entries dropped;
  int64_t freed = 0;
  const std::lock_guard lock(mutex_);
  while (freed < bytes) {
    const auto idle = OldestIdleLocked();
    if (idle == entries_.end()) break;
    freed += DropLocked(idle, KeptLost::kReleased, dropped);
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

int64_t KeptRuns::DropLocked(Entries::iterator entry, KeptLost why, Entries& dropped) {
  by_handle_.erase(entry->handle);
  int64_t bytes = entry->bytes;
  if (--entry->program->entries == 0) {
    bytes += entry->program->bytes;
    programs_.erase(entry->kept.run->batch.program.get());
  }
  bytes_ -= bytes;
  dropped.splice(dropped.begin(), entries_, entry);
  options_.on_lost(why);
  return bytes;
}

KeptRuns::Entries::iterator KeptRuns::OldestIdleLocked() {
  const auto idle = std::find_if(entries_.rbegin(), entries_.rend(),
                                 [](const Entry& e) { return e.lease.use_count() == 1; });
  return idle == entries_.rend() ? entries_.end() : std::prev(idle.base());
}

int64_t KeptRuns::FreeableLocked(const Program& needed) const {
  int64_t bytes = 0;
  std::unordered_map<const Program*, int64_t> idle;  // entries
  for (const Entry& entry : entries_) {
    if (entry.lease.use_count() != 1) continue;
    bytes += entry.bytes;
    const Program* const program = entry.program.get();
    const bool is_last = ++idle[program] == program->entries;
    if (is_last && program != &needed) bytes += program->bytes;
  }
  return bytes;
}

KeptRuns::Use KeptRuns::use() const {
  const std::lock_guard lock(mutex_);
  return {static_cast<int64_t>(entries_.size()), bytes_};
}

}  // namespace simgrad::server::service
