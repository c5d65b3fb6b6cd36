// Contributions to gradients: acc = round(acc + value) in role gradient, where they are present.
#include <algorithm>

#include "precision/arithmetic.h"
#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {
namespace {

// In the layout of the block, all rows at once: with a mask of the running lanes, or without.
void AccumulateRows(Machine& m, const AccumulatePlan& plan, const GradientTarget& target,
                    Format format) {
  const Slot& value = m.slot(plan.value);
  const int64_t width = m.width[0];
  LoopScratch& scratch = m.ScratchAt(m.depth + 8);
  const int32_t* running = m.RunningMask();
  if (running == nullptr) {
    std::fill_n(scratch.mask, width, -1);
  } else {
    std::copy_n(running, width, scratch.mask);
  }
  for (int64_t row = 0; row < value.count; ++row) {
    const int64_t at = row * width;
    const int64_t bytes = at * value.lane_bytes();
    const int32_t* mask = scratch.mask;
    if (plan.mask >= 0) {
      const int32_t* present = reinterpret_cast<const int32_t*>(m.at[plan.mask]) + at;
      if (running == nullptr) {
        mask = present;
      } else {
        for (int64_t j = 0; j < width; ++j) scratch.mask[j] = running[j] & present[j];
      }
    }
    m.kernels().accumulate[static_cast<size_t>(format)](target.sum + bytes,
                                                        m.at[plan.value] + bytes, mask, width);
    for (int64_t j = 0; j < width; ++j) target.connected[j] |= mask[j] != 0 ? 1 : 0;
  }
}

void AccumulateEach(Machine& m, const AccumulatePlan& plan, const GradientTarget& target,
                    Format format) {
  const Slot& value = m.slot(plan.value);
  const int64_t width = m.width[0];
  const auto holds = [&](int32_t mask, int64_t row, int64_t j) {
    if (mask < 0) return true;
    const int32_t* at = reinterpret_cast<const int32_t*>(m.at[mask]);
    const int64_t rows = m.slot(mask).count;
    if (rows == value.count) return at[row * width + j] != 0;
    bool any = false;
    for (int64_t k = 0; k < rows; ++k) any |= at[k * width + j] != 0;
    return any;
  };
  const LaneBits lanes = m.lane_set.counted & m.lane_set.running;
  for (int64_t row = 0; row < value.count; ++row) {
    ForEachLane(lanes, [&](int64_t j) {
      if (!holds(plan.mask, row, j) || !holds(plan.where, row, j)) return;
      const int64_t lane = m.lane_set.BlockLane(j);
      const int64_t to = row * m.block_width() + lane;
      const double x = LoadReal(m.at[plan.value], value.carrier, row * width + j);
      const double sum = precision::Add(format, LoadReal(target.sum, value.carrier, to), x);
      if (value.carrier == Carrier::kF64) {
        reinterpret_cast<double*>(target.sum)[to] = sum;
      } else {
        reinterpret_cast<float*>(target.sum)[to] = static_cast<float>(sum);
      }
      target.connected[lane] = 1;
    });
  }
}

}  // namespace

void RunAccumulate(const Instruction& instruction, Lanes& lanes) {
  Machine& m = static_cast<Machine&>(lanes);
  const AccumulatePlan& plan = *static_cast<const AccumulatePlan*>(instruction.plan);
  const GradientTarget& target = m.gradients[static_cast<size_t>(plan.input)];
  if (target.sum == nullptr) return;
  const Format format = m.plan().program->policy[precision::Role::kGradient].format;
  const bool whole_mask = plan.mask < 0 || m.slot(plan.mask).count == m.slot(plan.value).count;
  if (m.lane_set.block_lane == nullptr && plan.where < 0 && whole_mask) {
    AccumulateRows(m, plan, target, format);
  } else {
    AccumulateEach(m, plan, target, format);
  }
}

}  // namespace simgrad::sim::cpu
