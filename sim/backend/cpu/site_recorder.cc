#include "sim/backend/cpu/site_recorder.h"

#include <algorithm>

#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {

double NumberAt(const Machine& m, int32_t s, int64_t row, int64_t lane) {
  const Slot& slot = m.slot(s);
  const int64_t i = row * m.width[slot.uniform ? 1 : 0] + (slot.uniform ? 0 : lane);
  const std::byte* at = m.at[s];
  switch (slot.carrier) {
    case Carrier::kF32:
      return static_cast<double>(reinterpret_cast<const float*>(at)[i]);
    case Carrier::kF64:
      return reinterpret_cast<const double*>(at)[i];
    case Carrier::kI32:
      return static_cast<double>(reinterpret_cast<const int32_t*>(at)[i]);
    case Carrier::kI64:
      return static_cast<double>(reinterpret_cast<const int64_t*>(at)[i]);
    case Carrier::kBool:
      break;
  }
  return reinterpret_cast<const int32_t*>(at)[i] != 0 ? 1.0 : 0.0;
}

LaneBits CountedOf(const Machine& m) { return m.lane_set.counted & m.lane_set.running; }

SiteRecorder::SiteRecorder(const RunOptions& options)
    : near_band_ulps_(options.near_band_ulps),
      extremes_(options.recording != Recording::kCounts),
      buckets_(kMaxBlockWidth) {}

void SiteRecorder::BeginBlock(PathBlock* path, const uint64_t* ids, int64_t first_row,
                              int64_t lanes, ChunkTarget target) {
  path_ = path;
  ids_ = ids;
  ascending_ids_ = std::is_sorted(ids, ids + lanes);
  smallest_id_ = *std::min_element(ids, ids + lanes);
  first_row_ = first_row;
  lanes_ = lanes;
  target_ = target;
  windows_.resize(target.diagnostics->terminations.size());
  for (std::vector<MarginWindow>& steps : windows_) {
    steps.resize(static_cast<size_t>(target.diagnostics->steps));
  }
}

void SiteRecorder::EndBlock(const KernelTable& kernels) {
  outcomes_.AddTo(path_->signature, kernels);
  SplitSignatureOf(*path_);
}

void SiteRecorder::SplitSignatureOf(PathBlock& path) {
  for (uint64_t& signature : path.signature) signature += path.common;
  path.common = 0;
}

// Positions of the current layout as lanes of the block.
LaneBits SiteRecorder::ToBlock(const Machine& m, const LaneBits& lanes) const {
  if (m.lane_set.block_lane == nullptr) return lanes;
  LaneBits block;
  ForEachLane(lanes, [&](int64_t j) { block.Add(m.lane_set.block_lane[j]); });
  return block;
}

uint64_t SiteRecorder::IdAt(const Machine& machine, int64_t position) const {
  return ids_[machine.lane_set.BlockLane(position)];
}

// Positions ascend with the lanes of the block.
uint64_t SiteRecorder::SmallestId(const Machine& machine, const LaneBits& lanes) const {
  if (ascending_ids_) return IdAt(machine, lanes.Lowest());
  uint64_t smallest = ~uint64_t{0};
  ForEachLane(lanes, [&](int64_t j) { smallest = std::min(smallest, IdAt(machine, j)); });
  return smallest;
}

}  // namespace simgrad::sim::cpu
