#include "sim/backend/cpu/block_state.h"

#include <algorithm>

namespace simgrad::sim::cpu {
namespace {

int64_t Padded(int64_t lanes) { return (lanes + kLaneGroup - 1) / kLaneGroup * kLaneGroup; }

}  // namespace

BlockLayout::BlockLayout(const NumericalProgram& program, int64_t instances, int64_t width)
    : instances_(instances), width_(width) {
  const Program& p = program.program;
  const auto place = [&](const Value& value) {
    const int64_t at = bytes_per_lane_;
    bytes_per_lane_ += ElementCount(value.type.shape) * LaneBytes(CarrierOfValue(value));
    return at;
  };
  for (int32_t input : p.InputsOf(InputKind::kState)) {
    states_.push_back(place(p[p.inputs[static_cast<size_t>(input)].value]));
  }
  exported_begin_ = bytes_per_lane_;
  for (const Export& exported : p.exports) exports_.push_back(place(p[exported.value]));
  cost_ = bytes_per_lane_;
  bytes_per_lane_ += 8;
}

int64_t BlockLayout::Lanes(int64_t block) const {
  return std::min(width_, instances_ - FirstRow(block));
}

int64_t BlockLayout::PaddedLanes(int64_t block) const { return Padded(Lanes(block)); }

int64_t ChooseBlockWidth(int64_t bytes_per_lane, int64_t instances, int threads) {
  // For small programs about the first-level cache (a step spends more on what it does per block
  // than on waiting for the second level), a part of the second for large ones.
  constexpr int64_t kSmall = 64 << 10;
  constexpr int64_t kLarge = 512 << 10;
  int64_t width = kMaxBlockWidth;
  while (width > 128 && width * bytes_per_lane > kSmall) width /= 2;
  while (width > kLaneGroup && width * bytes_per_lane > kLarge) width /= 2;
  const int64_t share = (instances + threads - 1) / std::max(threads, 1);
  return std::max<int64_t>(kLaneGroup, std::min(width, Padded(share)));
}

}  // namespace simgrad::sim::cpu
