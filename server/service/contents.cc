#include "server/service/contents.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace simgrad::server::service {

Contents::Contents(ContentsOptions options)
    : options_(std::move(options)), sweeper_(options_.ttl, [this] { DropExpired(); }) {}

bool Contents::Keep(std::string content, const std::string& digest, const std::string& caller,
                    int64_t most_bytes, scheduling::MemoryBudget::Reservation memory) {
  Entry entry;
  entry.digest = digest;
  entry.bytes = static_cast<int64_t>(content.size()) + kBesideContent;
  const int64_t most = std::min(most_bytes, options_.max_bytes);
  // Before anything else is dropped for it.
  if (entry.bytes > most || !memory.Resize(entry.bytes)) return false;
  memory.TurnInto(scheduling::MemoryUse::kCache);
  entry.content = std::make_shared<const std::string>(std::move(content));
  entry.memory = std::move(memory);
  Entries dropped;
  const std::lock_guard lock(mutex_);
  DropExpiredLocked(dropped);
  if (Used(digest, caller) != nullptr) return true;
  MakeRoom(caller, entry.bytes, most, dropped);
  entry.expires = options_.now() + options_.ttl;
  Owner& owner = owners_[caller];
  owner.bytes += entry.bytes;
  bytes_ += entry.bytes;
  owner.entries.push_front(std::move(entry));
  owner.by_digest[digest] = owner.entries.begin();
  return true;
}

std::shared_ptr<const std::string> Contents::Find(const std::string& digest,
                                                  const std::string& caller) {
  Entries dropped;
  const std::lock_guard lock(mutex_);
  DropExpiredLocked(dropped);
  const Entry* const entry = Used(digest, caller);
  return entry == nullptr ? nullptr : entry->content;
}

int64_t Contents::Relieve(int64_t bytes) {
  Entries dropped;
  int64_t freed = 0;
  const std::lock_guard lock(mutex_);
  while (freed < bytes && !owners_.empty()) {
    // All live equally long after their last use.
    const auto oldest =
        std::min_element(owners_.begin(), owners_.end(), [](const auto& a, const auto& b) {
          return a.second.entries.back().expires < b.second.entries.back().expires;
        });
    freed += oldest->second.entries.back().bytes;
    DropLast(oldest, dropped);
  }
  return freed;
}

void Contents::DropExpired() {
  Entries dropped;
  const std::lock_guard lock(mutex_);
  DropExpiredLocked(dropped);
}

Contents::Use Contents::use() const {
  const std::lock_guard lock(mutex_);
  Use use = {0, bytes_};
  for (const auto& [name, owner] : owners_) {
    use.entries += static_cast<int64_t>(owner.by_digest.size());
  }
  return use;
}

Contents::Entry* Contents::Used(const std::string& digest, const std::string& caller) {
  const auto owner = owners_.find(caller);
  if (owner == owners_.end()) return nullptr;
  const auto found = owner->second.by_digest.find(digest);
  if (found == owner->second.by_digest.end()) return nullptr;
  Entries& entries = owner->second.entries;
  entries.splice(entries.begin(), entries, found->second);
  entries.front().expires = options_.now() + options_.ttl;
  return &entries.front();
}

void Contents::DropLast(Owners::iterator owner, Entries& dropped) {
  Entries& entries = owner->second.entries;
  const auto last = std::prev(entries.end());
  owner->second.by_digest.erase(last->digest);
  owner->second.bytes -= last->bytes;
  bytes_ -= last->bytes;
  dropped.splice(dropped.begin(), entries, last);
  if (entries.empty()) owners_.erase(owner);
}

void Contents::DropExpiredLocked(Entries& dropped) {
  const absl::Time now = options_.now();
  for (auto owner = owners_.begin(); owner != owners_.end();) {
    const auto next = std::next(owner);
    int64_t left = static_cast<int64_t>(owner->second.entries.size());
    for (; left > 0 && owner->second.entries.back().expires <= now; --left) {
      DropLast(owner, dropped);
      if (left == 1) break;  // it goes with its last
    }
    owner = next;
  }
}

bool Contents::DropOfHeaviest(const std::string& caller, int64_t bytes, Entries& dropped) {
  if (owners_.empty()) return false;
  const auto weight = [&](const Owners::value_type& owner) {
    return owner.second.bytes + (owner.first == caller ? bytes : 0);
  };
  DropLast(std::max_element(owners_.begin(), owners_.end(),
                            [&](const auto& a, const auto& b) { return weight(a) < weight(b); }),
           dropped);
  return true;
}

void Contents::MakeRoom(const std::string& caller, int64_t bytes, int64_t most_bytes,
                        Entries& dropped) {
  for (auto own = owners_.find(caller);
       own != owners_.end() && own->second.bytes + bytes > most_bytes; own = owners_.find(caller)) {
    DropLast(own, dropped);
  }
  while (bytes_ + bytes > options_.max_bytes && DropOfHeaviest(caller, bytes, dropped)) {
  }
}

}  // namespace simgrad::server::service
