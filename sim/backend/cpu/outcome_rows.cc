#include "sim/backend/cpu/outcome_rows.h"

#include <cstring>

namespace simgrad::sim::cpu {

void OutcomeRow::Add(const KernelTable& kernels, const LaneBits& lanes, uint64_t hash) {
  if (used_ == 0) std::memset(index_, 0, sizeof(index_));
  ++used_;
  table_[used_] = hash;
  kernels.fill_bytes(index_, static_cast<uint8_t>(used_), lanes.word, kMaxBlockWidth);
}

OutcomeRows::OutcomeRows()
    : index_(std::make_unique_for_overwrite<uint8_t[]>(kRows * kMaxBlockWidth)),
      tables_(std::make_unique_for_overwrite<uint64_t[]>(kRows * kOutcomes)) {}

void OutcomeRows::Keep(const OutcomeRow& row, const KernelTable& kernels,
                       std::vector<uint64_t>& signatures) {
  if (rows_ == kRows) AddTo(signatures, kernels);
  std::memcpy(index_.get() + rows_ * kMaxBlockWidth, row.index_, sizeof(row.index_));
  std::memcpy(tables_.get() + rows_ * kOutcomes, row.table_, sizeof(row.table_));
  ++rows_;
}

void OutcomeRows::AddTo(std::vector<uint64_t>& signatures, const KernelTable& kernels) {
  if (rows_ == 0) return;
  kernels.add_outcomes(signatures.data(), index_.get(), tables_.get(), rows_,
                       static_cast<int64_t>(signatures.size()));
  rows_ = 0;
}

}  // namespace simgrad::sim::cpu
