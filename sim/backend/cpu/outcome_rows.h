// How loops ended, lane by lane, until it is added to the path signatures.
//
// A run of a loop ends in one of a few ways that lanes share, each with one hash (docs/numerics.md,
// section 7). So a run is a row of small numbers, one per lane of the block, and a table of hashes.
// Rows are kept for a while and then added lane by lane; sums do not depend on the order.
// Threads: one recorder, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/backend/cpu/kernel_table.h"
#include "sim/backend/cpu/lane_bits.h"

namespace simgrad::sim::cpu {

// The outcomes of one run.
class OutcomeRow {
 public:
  void Clear() { used_ = 0; }
  bool IsEmpty() const { return used_ == 0; }
  bool IsFull() const { return used_ + 1 == kOutcomes; }
  // Another outcome for the lanes of the block; not where the row is full.
  void Add(const KernelTable& kernels, const LaneBits& lanes, uint64_t hash);

 private:
  friend class OutcomeRows;
  int used_ = 0;
  alignas(64) uint8_t index_[kMaxBlockWidth] = {};
  alignas(64) uint64_t table_[kOutcomes] = {};
};

class OutcomeRows {
 public:
  OutcomeRows();
  // Adds the rows that are kept first, where there is no more room.
  void Keep(const OutcomeRow& row, const KernelTable& kernels, std::vector<uint64_t>& signatures);
  void AddTo(std::vector<uint64_t>& signatures, const KernelTable& kernels);

 private:
  static constexpr int kRows = 32;
  int rows_ = 0;
  // Only rows that were kept are read: the rest is never written either.
  std::unique_ptr<uint8_t[]> index_;    // [kRows][kMaxBlockWidth]
  std::unique_ptr<uint64_t[]> tables_;  // [kRows][kOutcomes]
};

}  // namespace simgrad::sim::cpu
