// How a batch is divided into blocks, and what travels with a block from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/backend/cpu/lane_bits.h"
#include "sim/backend/cpu/plan.h"
#include "sim/backend/cpu/site_recorder.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cpu {

// Places in BlockState::numbers, in bytes per lane.
class BlockLayout {
 public:
  BlockLayout(const NumericalProgram& program, int64_t instances, int64_t width);

  int64_t width() const { return width_; }
  int64_t blocks() const { return (instances_ + width_ - 1) / width_; }
  int64_t FirstRow(int64_t block) const { return block * width_; }
  // Instances of a block, and its width with padding.
  int64_t Lanes(int64_t block) const;
  int64_t PaddedLanes(int64_t block) const;

  int64_t state(size_t k) const { return states_[k]; }
  int64_t exported(size_t k) const { return exports_[k]; }
  // Where the states end.
  int64_t exported_begin() const { return exported_begin_; }
  int64_t cost() const { return cost_; }
  int64_t bytes_per_lane() const { return bytes_per_lane_; }

 private:
  int64_t instances_;
  int64_t width_;
  std::vector<int64_t> states_, exports_;
  int64_t exported_begin_ = 0;
  int64_t cost_ = 0;
  int64_t bytes_per_lane_ = 0;
};

// A checkpoint is a copy of it.
struct BlockState {
  std::vector<std::byte> numbers;  // states, exports, cost: [element][lane] each, in their carriers
  PathBlock path;                  // empty where nothing is recorded
  std::vector<InstanceHealth> health;  // [lanes]; empty while every instance is ok
  LaneBits not_ok;
  LaneBits stopped;
};

// A width that keeps the values of a step in cache and every thread busy.
int64_t ChooseBlockWidth(int64_t bytes_per_lane, int64_t instances, int threads);

}  // namespace simgrad::sim::cpu
