#include "sim/backend/cpu/machine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "precision/rounding.h"
#include "sim/backend/cpu/memory_need.h"

namespace simgrad::sim::cpu {
namespace {

// The first element of a vector with room to spare that lies on a cache line.
int32_t* AlignedIn(std::vector<int32_t>& memory) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<int32_t*>((at + 63) & ~uintptr_t{63});
}

}  // namespace

LoopScratch::LoopScratch(int64_t width) {
  const size_t lanes_of_block = static_cast<size_t>(width);
  memory.resize(7 * lanes_of_block + kLaneGroup);
  mask = AlignedIn(memory);
  packed = reinterpret_cast<std::byte*>(mask + lanes_of_block);
  products = reinterpret_cast<std::byte*>(mask + 3 * lanes_of_block);
  scaled = reinterpret_cast<std::byte*>(mask + 5 * lanes_of_block);
  for (std::vector<int32_t>* list : {&index, &lanes[0], &lanes[1], &from[0], &from[1]}) {
    list->resize(lanes_of_block);
  }
}

Machine::Machine(const Plan& plan, int64_t block_width, WorkMeter counted)
    : meter(std::move(counted)), plan_(plan), capacity_(block_width), block_width_(block_width) {
  count = [](Lanes& lanes, int64_t work) { static_cast<Machine&>(lanes).meter.Add(work); };
  const int64_t bytes = plan.varying_bytes * block_width + plan.uniform_bytes * kLaneGroup + 64;
  ResizeInPieces(meter, memory_, static_cast<size_t>(bytes));
  const uintptr_t start = (reinterpret_cast<uintptr_t>(memory_.data()) + 63) & ~uintptr_t{63};
  std::byte* const varying = reinterpret_cast<std::byte*>(start);
  std::byte* const uniform = varying + plan.varying_bytes * block_width;
  home_.reserve(plan.slots.size());
  for (const Slot& slot : plan.slots) {
    std::byte* place = nullptr;
    if (slot.offset >= 0) {
      place =
          slot.uniform ? uniform + slot.offset * kLaneGroup : varying + slot.offset * block_width;
    }
    home_.push_back(place);
  }
  at_ = home_;
  at = at_.data();
  magnitudes_.assign(plan.slots.size(), kUnknownMagnitudes);
  magnitudes = magnitudes_.data();
  width[0] = block_width;
  width[1] = kLaneGroup;
  running_memory_.resize(static_cast<size_t>(block_width) + kLaneGroup);
  running_mask_ = AlignedIn(running_memory_);
  frames.resize(static_cast<size_t>(plan.regions));
  gradients.resize(plan.inputs.size());
  usual_ranges_.resize(static_cast<size_t>(plan.invariant_ranges));
}

void Machine::ResetPointers() { std::copy(home_.begin(), home_.end(), at_.begin()); }

void Machine::SetLanes(const LaneSet& set) {
  lane_set = set;
  width[0] = set.width;
  running_mask_valid_ = false;
}

void Machine::Leave(const LaneBits& lanes) {
  lane_set.running = lane_set.running - lanes;
  lane_set.counted = lane_set.counted - lanes;
  lane_set.all_running = false;
  running_mask_valid_ = false;
}

const int32_t* Machine::RunningMask() {
  if (lane_set.all_running) return nullptr;
  if (!running_mask_valid_) {
    kernels().expand_bits(lane_set.running.word, running_mask_, lane_set.width);
    running_mask_valid_ = true;
  }
  return running_mask_;
}

LoopScratch& Machine::ScratchAt(int level) {
  while (scratch_.size() <= static_cast<size_t>(level)) {
    scratch_.push_back(std::make_unique<LoopScratch>(capacity_));
  }
  return *scratch_[static_cast<size_t>(level)];
}

ReverseScratch& Machine::EnterReverse() {
  if (reverse_depth_ == reverse_scratch_.size()) {
    reverse_scratch_.push_back(std::make_unique<ReverseScratch>());
  }
  return *reverse_scratch_[reverse_depth_++];
}

Frame* Machine::Run(const RegionPlan& region) {
  recorded_bytes += RecordBytesOf(region, lane_set.width);
  if (tape == nullptr) {
    RunCode(region);
    return nullptr;
  }
  Frame* const made = tape->TakeFrame(static_cast<int64_t>(region.taped.size()), region.loops);
  for (int32_t s : region.stored) {
    const int64_t lanes = width[slot(s).uniform ? 1 : 0];
    at[s] = tape->Take(slot(s).bytes_per_lane() * lanes);
  }
  Frame* const around = frame;
  frame = made;
  RunCode(region);
  frame = around;
  for (size_t k = 0; k < region.taped.size(); ++k) made->values[k] = at[region.taped[k]];
  return made;
}

double LoadReal(const std::byte* at, Carrier carrier, int64_t i) {
  if (carrier == Carrier::kF64) return reinterpret_cast<const double*>(at)[i];
  return static_cast<double>(reinterpret_cast<const float*>(at)[i]);
}

double NumberOfKey(int64_t key, bool wide) {
  if (wide) {
    const int64_t bits = key ^ ((key >> 63) & INT64_MAX);
    return precision::DoubleOf(static_cast<uint64_t>(bits));
  }
  const int32_t low = static_cast<int32_t>(key);
  const int32_t bits = low ^ ((low >> 31) & INT32_MAX);
  return static_cast<double>(precision::FloatOf(static_cast<uint32_t>(bits)));
}

void Machine::Look(int32_t s, int32_t where) {
  const Slot& looked = slot(s);
  const int64_t row_width = width[looked.uniform ? 1 : 0];
  const int wide = looked.carrier == Carrier::kF64 ? 1 : 0;
  bool any = false;
  InPieces(meter, looked.count, row_width, [&](int64_t begin, int64_t end) {
    const std::byte* const rows = at[s] + begin * row_width * looked.lane_bytes();
    any = any || kernels().any_nonfinite[wide](rows, (end - begin) * row_width);
  });
  if (!any) return;
  ForEachExecuted(static_cast<int32_t>(looked.count), where, [&](int64_t row, int64_t position) {
    const int64_t lane = looked.uniform ? 0 : position;
    const double x = LoadReal(at[s], looked.carrier, row * row_width + lane);
    if (!std::isfinite(x)) nonfinite.Add(lane_set.BlockLane(position));
  });
}

void Machine::CountRange(const RangePlan& plan) {
  if (plan.invariant >= 0 && usual_ranges_[static_cast<size_t>(plan.invariant)] != 0) return;
  const Slot& source = slot(plan.source);
  const Slot& result = slot(plan.result);
  const int64_t source_width = width[source.uniform ? 1 : 0];
  const int64_t result_width = width[result.uniform ? 1 : 0];
  const auto traits = precision::Traits(plan.to);
  const double normal = precision::DoublePowerOfTwo(traits.min_exponent);
  const int from = source.carrier == Carrier::kF64 ? 1 : 0;
  const int to = result.carrier == Carrier::kF64 ? 1 : 0;
  bool unusual = false;
  InPieces(meter, result.count, result_width, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * result_width;
    unusual = unusual || kernels().cast_unusual[from][to](
                             at[plan.source] + first * source.lane_bytes(),
                             at[plan.result] + first * result.lane_bytes(), normal,
                             traits.max_finite, (end - begin) * result_width);
  });
  if (!unusual) {
    if (plan.invariant >= 0) usual_ranges_[static_cast<size_t>(plan.invariant)] = 1;
    return;
  }
  ForEachExecuted(static_cast<int32_t>(result.count), plan.where,
                  [&](int64_t row, int64_t position) {
                    const double x = LoadReal(at[plan.source], source.carrier,
                                              row * source_width + (source.uniform ? 0 : position));
                    const double r = LoadReal(at[plan.result], result.carrier,
                                              row * result_width + (result.uniform ? 0 : position));
                    if (std::isfinite(x)) ranges->NoteCast(plan.role, plan.to, x, r);
                  });
}

void RunLook(const Instruction& instruction, Lanes& lanes) {
  Machine& machine = static_cast<Machine&>(lanes);
  if (machine.looks) machine.Look(instruction.a, instruction.b);
}

void RunRange(const Instruction& instruction, Lanes& lanes) {
  Machine& machine = static_cast<Machine&>(lanes);
  if (machine.ranges != nullptr) {
    machine.CountRange(*static_cast<const RangePlan*>(instruction.plan));
  }
}

}  // namespace simgrad::sim::cpu
