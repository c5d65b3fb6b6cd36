// Contributions to gradients: acc = round(acc + value) in role gradient, where they are present.
#include <cmath>

#include "precision/arithmetic.h"
#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {
namespace {

// Adds round(x y) to a row of sums without leaving numbers near zero to the processor.
// `magnitudes` as in KernelTable::products; returns those of x.
uint64_t AddScaledNearZero(Machine& m, size_t f, const std::byte* x, const void* y, bool uniform,
                           uint64_t magnitudes, void* sums, const int32_t* mask) {
  const KernelTable& kernels = m.kernels();
  std::byte* const scaled = m.ScratchAt(m.depth).scaled;
  const ProductsMet met =
      kernels.products[f][uniform ? 1 : 0](scaled, x, y, magnitudes, m.width[0]);
  m.met_subnormals |= met.subnormal;
  // A sum is never -0, so a zero leaves it as it is.
  if (!met.zero) kernels.accumulate[f](sums, scaled, mask, m.width[0]);
  return met.factor;
}

// The same of round(z y) for one sum or two, z as in ScaledRow.
void AddRowNearZero(Machine& m, size_t f, Carrier carrier, const ScaledRow& row,
                    uint64_t magnitudes, const int32_t* mask) {
  const KernelTable& kernels = m.kernels();
  const std::byte* z = static_cast<const std::byte*>(row.x);
  if (row.by != nullptr) {
    std::byte* const products = m.ScratchAt(m.depth).products;
    const ProductsMet met = kernels.products[f][0](products, row.x, row.by, magnitudes, m.width[0]);
    m.met_subnormals |= met.subnormal;
    if (met.zero) {
      const auto finite = [&](const void* y) {
        return std::isfinite(LoadReal(static_cast<const std::byte*>(y), carrier, 0));
      };
      if (finite(row.y) && (row.second_sum == nullptr || finite(row.second_y))) return;
      return kernels.accumulate_scaled[f](row, mask, m.width[0]);
    }
    z = products;
    magnitudes = met.products;
  }
  magnitudes = AddScaledNearZero(m, f, z, row.y, true, magnitudes, row.sum, mask);
  if (row.second_sum == nullptr) return;
  AddScaledNearZero(m, f, z, row.second_y, true, magnitudes, row.second_sum, mask);
}

// Adds a row of contributions, in the current layout, to a row of sums, and to those of the second
// input.
void AddRow(Machine& m, const AccumulatePlan& plan, int64_t row, std::byte* sums,
            std::byte* second_sums, const int32_t* mask) {
  const KernelTable& kernels = m.kernels();
  const size_t f = static_cast<size_t>(plan.format);
  const int64_t width = m.width[0];
  const int64_t bytes = row * LaneBytes(plan.carrier);
  const auto row_of = [&](int32_t slot) { return m.at[slot] + bytes * width; };
  const auto number_of = [&](int32_t slot) { return m.at[slot] + bytes * kLaneGroup; };
  const std::byte* const value = row_of(plan.value);
  const uint64_t magnitudes =
      m.evades_subnormals ? m.MagnitudesOf(plan.value, plan.magnitudes_known) : kUnknownMagnitudes;
  if (plan.factor < 0) {
    if (magnitudes == 0) return;
    (plan.negated ? kernels.accumulate_negative : kernels.accumulate)[f](sums, value, mask, width);
    return;
  }
  if (!plan.uniform_factor) {
    const std::byte* const factor = row_of(plan.factor);
    if (!m.evades_subnormals)
      return kernels.accumulate_product[f](sums, value, factor, mask, width);
    AddScaledNearZero(m, f, value, factor, false, magnitudes, sums, mask);
    return;
  }
  ScaledRow scaled = {value, nullptr, number_of(plan.factor), nullptr, sums, second_sums};
  if (plan.by >= 0) scaled.by = row_of(plan.by);
  if (second_sums != nullptr) scaled.second_y = number_of(plan.second_factor);
  if (m.evades_subnormals) return AddRowNearZero(m, f, plan.carrier, scaled, magnitudes, mask);
  kernels.accumulate_scaled[f](scaled, mask, width);
}

// In the layout of the block.
void Connect(const Machine& m, GradientTarget& target, const LaneBits& lanes) {
  if (target.all_connected) return;
  *target.connected = *target.connected | lanes;
  target.all_connected = !(LaneBits::First(m.width[0]) - *target.connected).Any();
}

// In the layout of the block, all rows at once: with a mask of the running lanes, or without.
void AccumulateRows(Machine& m, const AccumulatePlan& plan, GradientTarget& target,
                    GradientTarget* second) {
  const int64_t width = m.width[0];
  const int32_t* const running = m.RunningMask();
  for (int64_t row = 0; row < plan.rows; ++row) {
    m.CountRow(row);
    const int64_t at = row * width;
    const int64_t bytes = at * LaneBytes(plan.carrier);
    std::byte* const sums = target.sum + bytes;
    std::byte* const second_sums = second == nullptr ? nullptr : second->sum + bytes;
    const int32_t* mask = running;
    if (plan.mask < 0) {
      AddRow(m, plan, row, sums, second_sums, mask);
      Connect(m, target, m.lane_set.running);
      if (second != nullptr) Connect(m, *second, m.lane_set.running);
      continue;
    }
    mask = reinterpret_cast<const int32_t*>(m.at[plan.mask]) + at;
    if (running == nullptr && target.all_connected &&
        (second == nullptr || second->all_connected)) {
      AddRow(m, plan, row, sums, second_sums, mask);
      continue;
    }
    LaneBits present;
    m.kernels().mask_share(mask, m.lane_set.running.word, present.word, width);
    if (running != nullptr) {
      int32_t* const both = m.ScratchAt(m.depth).mask;
      m.kernels().expand_bits(present.word, both, width);
      mask = both;
    }
    AddRow(m, plan, row, sums, second_sums, mask);
    Connect(m, target, present);
    if (second != nullptr) Connect(m, *second, present);
  }
}

// In a packed layout: the sums of its lanes are brought together, added to, and put back.
void AccumulatePacked(Machine& m, const AccumulatePlan& plan, GradientTarget& target) {
  const int64_t width = m.width[0];
  const int64_t bytes = LaneBytes(plan.carrier);
  LoopScratch& scratch = m.ScratchAt(m.depth);
  for (int64_t row = 0; row < plan.rows; ++row) {
    m.CountRow(row);
    LaneBits present = m.lane_set.counted & m.lane_set.running;
    if (plan.mask >= 0) {
      LaneBits bits;
      m.kernels().mask_bits(reinterpret_cast<const int32_t*>(m.at[plan.mask]) + row * width,
                            bits.word, width);
      present = present & bits;
    }
    m.kernels().expand_bits(present.word, scratch.mask, width);
    std::byte* const sums = target.sum + row * m.block_width() * bytes;
    m.kernels().gather[SizeIndex(plan.carrier)](scratch.packed, sums, m.lane_set.block_lane, width);
    AddRow(m, plan, row, scratch.packed, nullptr, scratch.mask);
    ScatterRow(sums, scratch.packed, bytes, m.lane_set.block_lane, present);
    ForEachLane(present, [&](int64_t j) { target.connected->Add(m.lane_set.block_lane[j]); });
  }
}

void AccumulateEach(Machine& m, const AccumulatePlan& plan, GradientTarget& target) {
  const int64_t width = m.width[0];
  const auto holds = [&](int32_t mask, int64_t row, int64_t j) {
    if (mask < 0) return true;
    const int32_t* at = reinterpret_cast<const int32_t*>(m.at[mask]);
    const int64_t rows = m.slot(mask).count;
    if (rows == plan.rows) return at[row * width + j] != 0;
    bool any = false;
    for (int64_t k = 0; k < rows; ++k) any |= at[k * width + j] != 0;
    return any;
  };
  const LaneBits lanes = m.lane_set.counted & m.lane_set.running;
  for (int64_t row = 0; row < plan.rows; ++row) {
    m.CountRow(row);
    ForEachLane(lanes, [&](int64_t j) {
      if (!holds(plan.mask, row, j) || !holds(plan.where, row, j)) return;
      const int64_t lane = m.lane_set.BlockLane(j);
      const int64_t to = row * m.block_width() + lane;
      const double x = LoadReal(m.at[plan.value], plan.carrier, row * width + j);
      const double sum = precision::Add(plan.format, LoadReal(target.sum, plan.carrier, to), x);
      if (plan.carrier == Carrier::kF64) {
        reinterpret_cast<double*>(target.sum)[to] = sum;
      } else {
        reinterpret_cast<float*>(target.sum)[to] = static_cast<float>(sum);
      }
      target.connected->Add(lane);
    });
  }
}

void AccumulateOne(Machine& m, const AccumulatePlan& plan, GradientTarget& target) {
  if (target.sum == nullptr) return;
  const bool whole_mask = plan.mask < 0 || m.slot(plan.mask).count == plan.rows;
  if (plan.where >= 0 || !whole_mask) {
    AccumulateEach(m, plan, target);
  } else if (m.lane_set.block_lane == nullptr) {
    AccumulateRows(m, plan, target, nullptr);
  } else {
    AccumulatePacked(m, plan, target);
  }
}

}  // namespace

void RunAccumulate(const Instruction& instruction, Lanes& lanes) {
  Machine& m = static_cast<Machine&>(lanes);
  const AccumulatePlan& plan = *static_cast<const AccumulatePlan*>(instruction.plan);
  GradientTarget& target = m.gradients[static_cast<size_t>(plan.input)];
  GradientTarget* const second =
      plan.second_input < 0 ? nullptr : &m.gradients[static_cast<size_t>(plan.second_input)];
  const bool together = m.lane_set.block_lane == nullptr && second != nullptr &&
                        target.sum != nullptr && second->sum != nullptr;
  if (together) return AccumulateRows(m, plan, target, second);
  if (second != nullptr) {
    AccumulatePlan alone = plan;
    alone.second_input = -1;
    AccumulateOne(m, alone, target);
    alone.factor = plan.second_factor;
    return AccumulateOne(m, alone, *second);
  }
  AccumulateOne(m, plan, target);
}

}  // namespace simgrad::sim::cpu
