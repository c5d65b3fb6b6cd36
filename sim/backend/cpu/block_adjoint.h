// Runs one block at a time in reverse: replays a range of steps with recording, then their adjoint.
//
// The range is cut into segments whose records fit the second-level cache. The states at the start
// of each segment are kept; a segment that is no longer on the tape is recorded again. Instances
// are independent, so no bit depends on the cuts.
// Threads: one object per thread.
#pragma once

#include <vector>

#include "sim/backend/cpu/block_runner.h"
#include "sim/backend/cpu/cache_lines.h"
#include "sim/backend/cpu/tape.h"
#include "sim/backend/cpu/underflow_watch.h"

namespace simgrad::sim::cpu {

// A cotangent of a state or an export between two regions.
struct HeldSlot {
  enum class Presence : uint8_t { kNever, kAlways, kMasked };
  RowBytes cotangent;  // [element][lane], carrier of role adjoint
  RowBytes next;       // where the next region yields it
  RowMask mask;        // says what `presence` says
  Presence presence = Presence::kNever;
};

// What travels with a block from step to step in reverse.
struct AdjointBlock {
  std::vector<HeldSlot> states, exports;
  std::vector<RowBytes> sums;          // by input: [element][lane] in role gradient
  std::vector<LaneBits> connected;     // by input
  std::vector<InstanceHealth> health;  // [lanes]; empty while every instance is ok
  LaneBits not_ok;
  LaneBits stopped;
};

// Per-instance gradients of the whole batch: [instances][steps, where per step][elements].
struct GradientStore {
  std::vector<std::vector<double>> values;      // by input; empty: not wanted
  std::vector<std::vector<uint8_t>> connected;  // by input: [instances]
};

// Records beyond this are cut off into segments.
inline constexpr int64_t kSegmentBytes = 1 << 20;

class BlockAdjoint {
 public:
  BlockAdjoint(const RunContext& context, const Plan& plan);

  void Start(int64_t block, const BlockState& state, AdjointBlock& adjoint, double seed,
             GradientStore& store);
  // The states of `state` are those at `first`.
  void Reverse(int64_t block, const BlockState& state, AdjointBlock& adjoint, double seed,
               int64_t first, int64_t count, AdjointChunk& chunk, GradientStore& store);
  void Finish(int64_t block, const BlockState& state, AdjointBlock& adjoint, GradientStore& store);

 private:
  bool Load(int64_t block, const BlockState& state, AdjointBlock& adjoint);
  void CopyStates(const std::byte* numbers);
  void RecordSteps(int64_t first, int64_t end, bool cuts);
  void ReverseStep(int64_t t, const Frame* frame, AdjointChunk& chunk, int64_t first,
                   GradientStore& store);
  void BindSent(const SlotPair& pair, const std::vector<std::vector<double>>& sent, size_t k,
                int64_t entries, int64_t entry);
  void BindHeld(const SlotPair& pair, HeldSlot& held);
  void BindYield(const SlotPair& pair, HeldSlot& held);
  void Hold(const SlotPair& pair, HeldSlot& held);
  void RunAdjoint(const AdjointRegionPlan& region, int64_t step);
  void SetSeed(int32_t slot);
  void Report(int64_t step);
  void LookAtSums();
  void NoteCotangents(BackwardStep& step);
  // Sums of inputs that change from step to step are those of one step: taken from the store before
  // a region that adds to step t, and put back.
  template <class F>
  void ForEachStepSum(int64_t t, const F& f);
  void LoadSums(int64_t t, const GradientStore& store);
  void FlushSums(int64_t t, GradientStore& store);
  const Frame* StateFrame();
  bool HandOutState(size_t input, const HeldSlot& held, int64_t lane, GradientStore& store);
  void HandOutSum(size_t input, int64_t lane, GradientStore& store);

  const RunContext& context_;
  Machine m_;
  Tape tape_;
  UnderflowWatch underflow_;
  BlockRows rows_;
  AdjointBlock* adjoint_ = nullptr;
  double seed_ = 1.0;
  bool sums_per_step_ = false;  // of any input
  Format adjoint_format_;
  Carrier adjoint_carrier_;
  Format gradient_format_;
  Carrier gradient_carrier_;
  struct Cut {
    int64_t step = 0;
    std::vector<std::byte> states;
  };
  std::vector<Cut> cuts_;
  std::vector<const Frame*> frames_;  // of the segment on the tape
  int64_t frames_first_ = 0;
  std::vector<int32_t> buckets_;
};

}  // namespace simgrad::sim::cpu
