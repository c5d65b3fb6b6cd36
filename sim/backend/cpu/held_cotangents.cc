// What goes into a region of the adjoint and comes out of it: seeds, cotangents, sums of a step.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "precision/arithmetic.h"
#include "precision/rounding.h"
#include "sim/backend/cpu/block_adjoint.h"

namespace simgrad::sim::cpu {
namespace {

void SaveReal(std::byte* to, Carrier carrier, int64_t i, double x) {
  if (carrier == Carrier::kF64) {
    reinterpret_cast<double*>(to)[i] = x;
  } else {
    reinterpret_cast<float*>(to)[i] = static_cast<float>(x);
  }
}

}  // namespace

void BlockAdjoint::SetSeed(int32_t slot) {
  if (slot < 0) return;
  const Slot& seed = m_.slot(slot);
  for (int64_t j = 0; j < rows_.width; ++j) SaveReal(m_.at[slot], seed.carrier, j, seed_);
}

// What the caller sent for one value.
void BlockAdjoint::BindSent(const SlotPair& pair, const std::vector<std::vector<double>>& sent,
                            size_t k, int64_t entries, int64_t entry) {
  if (pair.cotangent < 0) return;
  const Slot& slot = m_.slot(pair.cotangent);
  const int64_t n = slot.count * rows_.width;
  const bool present = k < sent.size() && !sent[k].empty();
  if (present) {
    LoadReals(sent[k], seed_, adjoint_format_, slot, rows_, entries, entry, m_.at[pair.cotangent],
              m_.meter);
  } else {
    InPieces(m_.meter, n, 1, [&](int64_t begin, int64_t end) {
      std::memset(m_.at[pair.cotangent] + begin * slot.lane_bytes(), 0,
                  static_cast<size_t>((end - begin) * slot.lane_bytes()));
    });
  }
  if (pair.mask < 0) return;
  int32_t* const mask = reinterpret_cast<int32_t*>(m_.at[pair.mask]);
  InPieces(m_.meter, n, 1, [&](int64_t begin, int64_t end) {
    std::fill(mask + begin, mask + end, present ? -1 : 0);
  });
}

// Regions do not write to their arguments, so these may point to what is held.
void BlockAdjoint::BindHeld(const SlotPair& pair, HeldSlot& held) {
  if (pair.cotangent < 0) return;
  const Slot& slot = m_.slot(pair.cotangent);
  const int64_t n = slot.count * rows_.width;
  if (slot.format == adjoint_format_) {
    m_.at[pair.cotangent] = held.cotangent.data();
  } else {
    InPieces(m_.meter, n, kConversionWork, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double x = LoadReal(held.cotangent.data(), adjoint_carrier_, i);
        SaveReal(m_.at[pair.cotangent], slot.carrier, i, precision::RoundTo(slot.format, x));
      }
    });
  }
  if (pair.mask >= 0) m_.at[pair.mask] = reinterpret_cast<std::byte*>(held.mask.data());
}

// What a region yields is written where it is going to be held.
void BlockAdjoint::BindYield(const SlotPair& pair, HeldSlot& held) {
  if (pair.cotangent < 0 || held.next.empty()) return;
  if (m_.slot(pair.cotangent).format == adjoint_format_) m_.at[pair.cotangent] = held.next.data();
}

void BlockAdjoint::Hold(const SlotPair& pair, HeldSlot& held) {
  using enum HeldSlot::Presence;
  const int64_t n = static_cast<int64_t>(held.mask.size());
  const auto presence = pair.cotangent < 0 ? kNever : pair.mask < 0 ? kAlways : kMasked;
  if (n == 0) {  // a state without elements has no place
    held.presence = presence;
    return;
  }
  if (presence == kMasked) {
    CopyInPieces(m_.meter, reinterpret_cast<std::byte*>(held.mask.data()), m_.at[pair.mask], n * 4);
  } else if (presence != held.presence) {
    std::fill(held.mask.begin(), held.mask.end(), presence == kAlways ? -1 : 0);
  }
  held.presence = presence;
  if (presence == kNever) return;
  const Slot& slot = m_.slot(pair.cotangent);
  if (m_.at[pair.cotangent] == held.next.data()) {
    std::swap(held.cotangent, held.next);
    return;
  }
  if (slot.format == adjoint_format_) {  // a record, which the region has only pointed to
    CopyInPieces(m_.meter, held.cotangent.data(), m_.at[pair.cotangent], n * slot.lane_bytes());
    return;
  }
  InPieces(m_.meter, n, kConversionWork, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double x = LoadReal(m_.at[pair.cotangent], slot.carrier, i);
      SaveReal(held.cotangent.data(), adjoint_carrier_, i, precision::RoundTo(adjoint_format_, x));
    }
  });
}

// A sum that is not finite was left so by the step that has just been reversed.
void BlockAdjoint::LookAtSums() {
  const int wide = gradient_carrier_ == Carrier::kF64 ? 1 : 0;
  for (const RowBytes& sum : adjoint_->sums) {
    const int64_t n = static_cast<int64_t>(sum.size()) / LaneBytes(gradient_carrier_);
    const int64_t rows = n / rows_.width;
    InPieces(m_.meter, rows, rows_.width, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * rows_.width;
      const std::byte* const numbers = sum.data() + first * LaneBytes(gradient_carrier_);
      const int64_t some = (end - begin) * rows_.width;
      if (!m_.kernels().any_nonfinite[wide](numbers, some)) return;
      for (int64_t i = 0; i < some; ++i) {
        if (std::isfinite(LoadReal(numbers, gradient_carrier_, i))) continue;
        const int64_t lane = i % rows_.width;
        if (m_.lane_set.counted.Has(lane)) m_.nonfinite.Add(lane);
      }
    });
  }
}

void BlockAdjoint::NoteCotangents(BackwardStep& step) {
  const KernelTable& kernels = m_.kernels();
  const int wide = adjoint_carrier_ == Carrier::kF64 ? 1 : 0;
  buckets_.resize(static_cast<size_t>(rows_.width));
  for (const HeldSlot& held : adjoint_->states) {
    const int64_t rows = static_cast<int64_t>(held.mask.size()) / rows_.width;
    for (int64_t row = 0; row < rows; ++row) {
      m_.CountRow(row);
      const std::byte* const numbers =
          held.cotangent.data() + row * rows_.width * LaneBytes(adjoint_carrier_);
      LaneBits present = m_.lane_set.counted;
      if (held.presence != HeldSlot::Presence::kAlways) {
        LaneBits bits;
        kernels.mask_bits(held.mask.data() + row * rows_.width, bits.word, rows_.width);
        present = present & bits;
      }
      if (!present.Any()) continue;
      step.largest = std::max(step.largest,
                              kernels.largest_magnitude[wide](numbers, present.word, rows_.width));
      kernels.exponent_buckets[wide](numbers, buckets_.data(), rows_.width);
      // Lanes mostly share a few buckets.
      for (LaneBits rest = present; rest.Any();) {
        const int32_t bucket = buckets_[static_cast<size_t>(rest.Lowest())];
        LaneBits same;
        kernels.equal_bits[0](buckets_.data(), &bucket, same.word, rows_.width);
        same = same & rest;
        uint64_t& count = bucket < 0 ? step.nonfinite : step.exponents[static_cast<size_t>(bucket)];
        count += static_cast<uint64_t>(same.Count());
        rest = rest - same;
      }
    }
  }
}

template <class F>
void BlockAdjoint::ForEachStepSum(int64_t t, const F& f) {
  if (t < 0 || !sums_per_step_) return;
  const Program& p = context_.program.program;
  for (size_t i = 0; i < adjoint_->sums.size(); ++i) {
    RowBytes& sum = adjoint_->sums[i];
    if (sum.empty() || !context_.IsSummedPerStep(i)) continue;
    const int64_t count = ElementCount(p[p.inputs[i].value].type.shape);
    ForEachLane(m_.lane_set.counted, [&](int64_t lane) {
      const int64_t row = (rows_.first + lane) * context_.batch.steps + t;
      InPieces(m_.meter, count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t e = begin; e < end; ++e) {
          f(i, static_cast<size_t>(row * count + e), sum.data(), e * rows_.width + lane);
        }
      });
    });
  }
}

void BlockAdjoint::LoadSums(int64_t t, const GradientStore& store) {
  ForEachStepSum(t, [&](size_t input, size_t at, std::byte* sum, int64_t k) {
    SaveReal(sum, gradient_carrier_, k, store.values[input][at]);
  });
}

void BlockAdjoint::FlushSums(int64_t t, GradientStore& store) {
  ForEachStepSum(t, [&](size_t input, size_t at, const std::byte* sum, int64_t k) {
    store.values[input][at] = precision::Canonical(LoadReal(sum, gradient_carrier_, k));
  });
}

}  // namespace simgrad::sim::cpu
