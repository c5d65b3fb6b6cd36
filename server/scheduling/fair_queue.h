// Items of several callers, taken so that each caller gets time in proportion to its weight.
//
// Maths: start-time fair queueing. A caller's virtual time is the seconds it had, divided by its
//   weight; the caller with the least goes next, its own items first in, first out. A caller that
//   comes back begins at the virtual time of the last one taken: being away earns nothing.
// Cost: taking and charging are linear in the callers that have items. Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/scheduling/caller.h"

namespace simgrad::server::scheduling {

template <class Item>
class FairQueue {
 public:
  void PushBack(const std::shared_ptr<Caller>& caller, Item item) {
    Of(caller).items.push_back(std::move(item));
    ++size_;
  }
  // Before the caller's other items.
  void PushFront(const std::shared_ptr<Caller>& caller, Item item) {
    Of(caller).items.push_front(std::move(item));
    ++size_;
  }

  bool empty() const { return size_ == 0; }
  int64_t size() const { return size_; }
  int64_t size(const Caller* caller) const {
    const auto found = entries_.find(caller);
    return found == entries_.end() ? 0 : static_cast<int64_t>(found->second.items.size());
  }

  // The next item, whose caller is charged `seconds` in advance. Expects that there is one.
  Item Pop(double seconds) {
    Entry* next = nullptr;
    for (auto& [key, entry] : entries_) {
      if (!entry.items.empty() && (next == nullptr || entry.virtual_time < next->virtual_time)) {
        next = &entry;
      }
    }
    virtual_now_ = std::max(virtual_now_, next->virtual_time);
    next->virtual_time += seconds / next->caller->weight();
    Item item = std::move(next->items.front());
    next->items.pop_front();
    --size_;
    return item;
  }

  // Charges what an item took beyond the charge in advance; `seconds` may be negative.
  void Charge(const std::shared_ptr<Caller>& caller, double seconds) {
    Of(caller).virtual_time += seconds / caller->weight();
  }

  // Whether a waiting caller has had less than this one, by more than `seconds` of its weight.
  bool IsAhead(const Caller* caller, double seconds) const {
    const auto found = entries_.find(caller);
    if (found == entries_.end()) return false;
    return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
      const Entry& other = entry.second;
      return !other.items.empty() && &other != &found->second &&
             other.virtual_time + seconds / other.caller->weight() < found->second.virtual_time;
    });
  }

  // The caller with most items, and how many.
  std::pair<std::shared_ptr<Caller>, int64_t> Longest() const {
    std::pair<std::shared_ptr<Caller>, int64_t> longest = {nullptr, 0};
    for (const auto& [key, entry] : entries_) {
      const auto count = static_cast<int64_t>(entry.items.size());
      if (count > longest.second) longest = {entry.caller, count};
    }
    return longest;
  }

  // Takes out every item for which `wanted` holds.
  template <class Wanted>
  std::vector<Item> TakeIf(const Wanted& wanted) {
    std::vector<Item> taken;
    for (auto& [key, entry] : entries_) {
      std::deque<Item> kept;
      for (Item& item : entry.items) {
        (wanted(item) ? taken.emplace_back(std::move(item)) : kept.emplace_back(std::move(item)));
      }
      entry.items = std::move(kept);
    }
    size_ -= static_cast<int64_t>(taken.size());
    return taken;
  }

  // The caller's newest item for which `wanted` holds.
  template <class Wanted>
  std::optional<Item> TakeNewest(const Caller* caller, const Wanted& wanted) {
    const auto found = entries_.find(caller);
    if (found == entries_.end()) return std::nullopt;
    std::deque<Item>& items = found->second.items;
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      if (!wanted(*item)) continue;
      std::optional<Item> taken = std::move(*item);
      items.erase(std::next(item).base());
      --size_;
      return taken;
    }
    return std::nullopt;
  }

  // Visits every item; the order of callers is unspecified.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (const auto& [key, entry] : entries_) {
      for (const Item& item : entry.items) visit(item);
    }
  }

  // Forgets a caller without items: call it where nothing of it runs any more.
  void Forget(const Caller* caller) {
    const auto found = entries_.find(caller);
    if (found != entries_.end() && found->second.items.empty()) entries_.erase(found);
  }

 private:
  struct Entry {
    std::shared_ptr<Caller> caller;
    std::deque<Item> items;
    double virtual_time = 0.0;
  };
  Entry& Of(const std::shared_ptr<Caller>& caller) {
    const auto [found, is_new] = entries_.try_emplace(caller.get());
    if (is_new) found->second = {caller, {}, virtual_now_};
    return found->second;
  }

  std::unordered_map<const Caller*, Entry> entries_;
  double virtual_now_ = 0.0;
  int64_t size_ = 0;
};

}  // namespace simgrad::server::scheduling
