// The cotangents of a reversed loop on their way through its iterations.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {

// The slots of one reversed loop, wherever they are: where the loop was given them, until a region
// yields something else or lanes are moved; then in buffers of its own.
class Travellers {
 public:
  Travellers(Machine& m, const std::vector<TravellingSlot>& slots, ReverseScratch& scratch)
      : m_(m),
        slots_(slots),
        cotangent_(scratch.cotangent),
        mask_(scratch.mask),
        own_(scratch.own) {}

  // Takes the operands, element `element` of them, at the layout around the loop.
  void Enter(int64_t element) {
    cotangent_.clear();
    mask_.clear();
    own_.assign(slots_.size(), 0);
    for (const TravellingSlot& slot : slots_) {
      const int64_t n = slot.count * m_.width[0];
      cotangent_.push_back(m_.at[slot.operand.cotangent] + element * n * LaneBytes(slot.carrier));
      mask_.push_back(m_.at[slot.operand.mask] + element * n * 4);
    }
  }

  // Hands them out as the results.
  void Leave(int64_t element) {
    for (size_t k = 0; k < slots_.size(); ++k) {
      const TravellingSlot& slot = slots_[k];
      const int64_t n = slot.count * m_.width[0];
      const int64_t bytes = n * LaneBytes(slot.carrier);
      if (slot.result.cotangent >= 0) {
        CopyInPieces(m_.meter, m_.at[slot.result.cotangent] + element * bytes, cotangent_[k],
                     bytes);
      }
      if (slot.result.mask >= 0) {
        CopyInPieces(m_.meter, m_.at[slot.result.mask] + element * n * 4, mask_[k], n * 4);
      }
    }
  }

  void BindArguments(const VjpRegion& region) {
    for (size_t k = 0; k < region.args.size(); ++k) {
      if (region.args[k].cotangent >= 0) m_.at[region.args[k].cotangent] = cotangent_[k];
      if (region.args[k].mask >= 0) m_.at[region.args[k].mask] = mask_[k];
    }
  }

  // The buffers that a region's yields are written to are its own again.
  void ResetYields(const VjpRegion& region) {
    for (const SlotPair& pair : region.yields) {
      if (pair.cotangent >= 0) m_.at[pair.cotangent] = m_.HomeOf(pair.cotangent);
      if (pair.mask >= 0) m_.at[pair.mask] = m_.HomeOf(pair.mask);
    }
  }

  // Takes what a region yielded for the running lanes; `all`: for every lane that matters.
  void TakeYields(const VjpRegion& region, bool all) {
    const int32_t* const running = all ? nullptr : m_.RunningMask();
    for (size_t k = 0; k < region.yields.size(); ++k) {
      const TravellingSlot& slot = slots_[k];
      const SlotPair& yield = region.yields[k];
      const int64_t n = slot.count * m_.width[0];
      if (yield.cotangent >= 0) {
        Own(k, kCotangent, running != nullptr);
        Take(m_.at[yield.cotangent], cotangent_[k], slot.count, LaneBytes(slot.carrier), running);
      }
      if (!slot.masked || yield.mask == kUnchanged || yield.mask == -1) continue;
      Own(k, kMask, running != nullptr);
      if (yield.mask >= 0) {
        Take(m_.at[yield.mask], mask_[k], slot.count, 4, running);
      } else if (running == nullptr) {
        std::fill_n(reinterpret_cast<int32_t*>(mask_[k]), n, yield.mask == kEverywhere ? -1 : 0);
      } else {
        int32_t* const mask = reinterpret_cast<int32_t*>(mask_[k]);
        for (int64_t j = 0; j < n; ++j) {
          const int32_t changed = running[j % m_.width[0]];
          mask[j] = yield.mask == kEverywhere ? mask[j] | changed : mask[j] & ~changed;
        }
      }
    }
  }

  // From the layout `from` (null: that around the loop) to `to`, both of the current run.
  void Move(const int32_t* from, int64_t from_width, const LaneLayout& to, int64_t around_width) {
    for (size_t k = 0; k < slots_.size(); ++k) {
      const TravellingSlot& slot = slots_[k];
      Own(k, kCotangent, true);
      if (slot.masked) Own(k, kMask, true);
      MoveRows(cotangent_[k], m_.HomeOf(slot.home), slot.count, LaneBytes(slot.carrier), from,
               from_width, to, around_width);
      if (!slot.masked) continue;
      MoveRows(mask_[k], m_.HomeOf(slot.home_mask), slot.count, 4, from, from_width, to,
               around_width);
    }
  }

 private:
  enum Part : uint8_t { kCotangent = 1, kMask = 2 };
  // Numbers that are written to are the loop's own; `keep`: some of them stay.
  void Own(size_t k, Part part, bool keep) {
    if ((own_[k] & part) != 0) return;
    own_[k] |= part;
    const TravellingSlot& slot = slots_[k];
    std::byte*& at = part == kCotangent ? cotangent_[k] : mask_[k];
    std::byte* const home = m_.HomeOf(part == kCotangent ? slot.cotangent : slot.mask);
    const int64_t bytes = part == kCotangent ? LaneBytes(slot.carrier) : 4;
    if (keep) CopyInPieces(m_.meter, home, at, slot.count * bytes * m_.width[0]);
    at = home;
  }

  void Take(std::byte*& yielded, std::byte*& kept, int64_t count, int64_t bytes,
            const int32_t* running) {
    if (running == nullptr) {
      std::swap(yielded, kept);
      return;
    }
    for (int64_t row = 0; row < count; ++row) {
      m_.CountRow(row);
      const int64_t at = row * m_.width[0] * bytes;
      m_.kernels().blend[SizeIndex(bytes)](kept + at, yielded + at, running, m_.width[0]);
    }
  }

  void MoveRows(std::byte* rows, std::byte* home, int64_t count, int64_t bytes, const int32_t* from,
                int64_t from_width, const LaneLayout& to, int64_t around_width) {
    if (from == nullptr) {
      std::memcpy(home, rows, static_cast<size_t>(count * bytes * around_width));
    } else {
      for (int64_t row = 0; row < count; ++row) {
        ScatterRow(home + row * around_width * bytes, rows + row * from_width * bytes, bytes, from,
                   LaneBits::First(from_width));
      }
    }
    if (to.from == nullptr) {
      std::memcpy(rows, home, static_cast<size_t>(count * bytes * around_width));
      return;
    }
    for (int64_t row = 0; row < count; ++row) {
      m_.kernels().gather[SizeIndex(bytes)](rows + row * to.width * bytes,
                                            home + row * around_width * bytes, to.from, to.width);
    }
  }

  Machine& m_;
  const std::vector<TravellingSlot>& slots_;
  std::vector<std::byte*>&cotangent_, &mask_;
  std::vector<uint8_t>& own_;
};

}  // namespace simgrad::sim::cpu
