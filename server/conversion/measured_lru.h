// A map that forgets what was used longest ago: bounded by entries and by the bytes they hold.
//
// Units: bytes, as the caller measured them. Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

namespace simgrad::server::conversion {

template <class Value>
class MeasuredLru {
 public:
  MeasuredLru(int64_t max_entries, int64_t max_bytes)
      : max_entries_(max_entries), max_bytes_(max_bytes) {}

  // Null: it is not known.
  std::shared_ptr<const Value> Find(const std::string& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->value;
  }

  // Whether an entry of this size is worth others' places: one that takes more than half is not.
  // Large programs are what is worth most: a gradient of 20,000 operations takes a third of the
  // default and 0.2 s to make.
  bool Takes(int64_t bytes) const { return bytes <= max_bytes_ / 2; }

  void Insert(const std::string& key, std::shared_ptr<const Value> value, int64_t bytes) {
    if (index_.count(key) > 0 || !Takes(bytes)) return;
    entries_.push_front({key, std::move(value), bytes});
    index_[key] = entries_.begin();
    bytes_ += bytes;
    while (size() > max_entries_ || bytes_ > max_bytes_) DropOldest();
  }

  // Returns the bytes it held; 0 where there is none.
  int64_t DropOldest() {
    if (entries_.empty()) return 0;
    const int64_t bytes = entries_.back().bytes;
    bytes_ -= bytes;
    index_.erase(entries_.back().key);
    entries_.pop_back();
    return bytes;
  }

  // Drops the oldest entry whose value nothing else holds: others would give no memory back. Returns
  // the bytes it held; 0 where there is none.
  int64_t DropOldestIdle() {
    const auto idle = std::find_if(entries_.rbegin(), entries_.rend(),
                                   [](const Entry& e) { return e.value.use_count() == 1; });
    if (idle == entries_.rend()) return 0;
    const int64_t bytes = idle->bytes;
    bytes_ -= bytes;
    index_.erase(idle->key);
    entries_.erase(std::next(idle).base());
    return bytes;
  }

  int64_t size() const { return static_cast<int64_t>(index_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Value> value;
    int64_t bytes = 0;
  };
  int64_t max_entries_;
  int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::list<Entry> entries_;  // most recent first
  std::unordered_map<std::string, typename std::list<Entry>::iterator> index_;
};

}  // namespace simgrad::server::conversion
