// Executes the regions of a plan for one block of instances.
//
// A machine belongs to one thread. It holds the block's workspace, the current layout of lanes, and
// the places where decisions, non-finite results and records go. All of these places may be absent.
//
// Lanes that left a loop: the loop continues with all lanes of its layout. Results of lanes that
// have left are never read and never counted. When half of the lanes have left, the others are
// packed into a narrower layout (loop.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/backend/cpu/lane_bits.h"
#include "sim/backend/cpu/plan.h"
#include "sim/backend/cpu/tape.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/work_meter.h"

namespace simgrad::sim::cpu {

class SiteRecorder;

// The lanes in which a region runs.
struct LaneSet {
  int64_t width = 0;                    // positions, a multiple of kLaneGroup
  LaneBits running;                     // positions whose results are read, padding among them
  LaneBits counted;                     // of these the ones that stand for an instance
  const int32_t* block_lane = nullptr;  // position -> lane of the block; null: the same
  bool all_running = true;              // every position is
  int64_t BlockLane(int64_t position) const {
    return block_lane == nullptr ? position : block_lane[position];
  }
};

// Where gradients of a block are summed while a region of the adjoint runs.
struct GradientTarget {
  std::byte* sum = nullptr;  // [elements][block width], carrier of role gradient; null: not wanted
  LaneBits* connected = nullptr;  // lanes that received something
  bool all_connected = false;     // every lane of the block has
};

// Aligned memory for the lanes of one loop.
struct LoopScratch {
  explicit LoopScratch(int64_t width);
  std::vector<int32_t> memory;
  int32_t* mask = nullptr;        // [width], aligned
  std::byte* packed = nullptr;    // [width] of any carrier, aligned
  std::byte* products = nullptr;  // the same
  std::byte* scaled = nullptr;    // the same
  std::vector<int32_t> index, lanes[2], from[2];
  std::vector<std::byte*> saved;  // pointers of the captures of a loop
  std::vector<uint8_t> own;       // which carried arguments point to its own buffers
  LaneSet around;                 // the lanes around the loop, once they are not those that run
  LaneBits stopped;               // by the last test
};

// What one reversed loop needs while it runs; kept, so that nothing is allocated in every step.
struct ReverseScratch {
  std::vector<std::byte*> cotangent, mask;  // of the travelling slots
  std::vector<uint8_t> own;                 // which of them are in buffers of the loop's own
  std::vector<std::byte*> saved;            // pointers of what the regions read
  std::vector<const int32_t*> parents;      // Machine::position_in around the loop
  std::vector<std::vector<int32_t>> composed;
  std::vector<int32_t> iterations;  // of a packed layout
};

class Machine : public Lanes {
 public:
  // Throws StopRequested, as all that runs here does.
  Machine(const Plan& plan, int64_t block_width, WorkMeter meter);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const Plan& plan() const { return plan_; }
  const KernelTable& kernels() const { return *plan_.kernels; }
  const Slot& slot(int32_t s) const { return plan_.slots[static_cast<size_t>(s)]; }
  // Lanes per row of the block that is loaded; at most what the machine was made for.
  int64_t block_width() const { return block_width_; }
  void SetBlockWidth(int64_t lanes) { block_width_ = layout_width[0] = lanes; }

  // Points every slot to its own place again.
  void ResetPointers();
  uint64_t MagnitudesOf(int32_t s, bool magnitudes_known) const {
    return magnitudes_known ? magnitudes[s] : kUnknownMagnitudes;
  }
  std::byte* HomeOf(int32_t s) const { return home_[static_cast<size_t>(s)]; }

  // Runs the code of a region: small ones are counted as a whole. Run also records.
  void RunCode(const RegionPlan& region) {
    const int64_t work = kRegionWork + region.work * lane_set.width;
    if (work > WorkMeter::kPiece) return RunInPieces(region.code);
    meter.Add(work);
    for (const Instruction& i : region.code) i.run(i, *this);
  }
  // Counts every instruction by itself, and those of many rows in parts.
  void RunInPieces(const std::vector<Instruction>& code);
  // Returns the frame, where there is a tape.
  Frame* Run(const RegionPlan& region);

  // The int32 mask of lane_set.running; null where all run.
  const int32_t* RunningMask();
  void SetLanes(const LaneSet& set);
  // Goes on without these lanes.
  void Leave(const LaneBits& lanes);

  // For loops over rows that are not counted by their caller.
  void CountRow(int64_t row) const {
    constexpr int64_t kRows = 1024;
    if (row % kRows == kRows - 1) meter.Add(kRows * width[0]);
  }

  // Adds the non-finite elements of executed lanes to `nonfinite`.
  void Look(int32_t slot, int32_t where);
  // Counts what a cast did.
  void CountRange(const RangePlan& plan);
  // Calls f(row, position) for the elements that the mask `where` (or none) lets through.
  template <class F>
  void ForEachExecuted(int32_t rows, int32_t where, const F& f) const;

  LoopScratch& ScratchAt(int depth);
  // Of the reversed loops that run now, the outermost first.
  ReverseScratch& EnterReverse();
  void LeaveReverse() { --reverse_depth_; }
  // Invariants have new numbers: of a new block.
  void ForgetRanges() { std::fill(usual_ranges_.begin(), usual_ranges_.end(), uint8_t{0}); }

  mutable WorkMeter meter;
  LaneSet lane_set;
  LaneBits nonfinite;  // by lane of the block
  SiteRecorder* sites = nullptr;
  RangeCounts* ranges = nullptr;
  bool looks = true;
  int64_t step = 0;
  int64_t iteration = 0;  // flattened, of the loops around
  int64_t element = 0;    // flattened, of the mapped axes around
  int depth = 0;          // of loops

  // Recording.
  Tape* tape = nullptr;
  Frame* frame = nullptr;      // of the region that runs
  int64_t recorded_bytes = 0;  // bound of what recording would take; counted always

  // Adjoint: the frame of each recorded region that is being reversed, the number of layouts
  // around it, and for each depth the positions of the current layout in that one.
  struct FrameRef {
    const Frame* frame = nullptr;
    int depth = 0;
  };
  std::vector<FrameRef> frames;                         // by region
  std::vector<const int32_t*> position_in = {nullptr};  // by depth; null: the same
  std::vector<int64_t> layout_width = {0};              // by depth
  std::vector<GradientTarget> gradients;                // by input

 private:
  static constexpr int64_t kRegionWork = 16;  // of a region that is empty
  // instruction_pieces.cc
  int64_t RowBytesOf(int32_t slot) const;
  void RunElementwise(const Instruction& whole);
  void RunCopies(const Instruction& whole);
  void RunReduction(const Instruction& whole);
  const Plan& plan_;
  const int64_t capacity_;
  int64_t block_width_;
  std::vector<std::byte> memory_;
  std::vector<std::byte*> home_;
  std::vector<std::byte*> at_;
  std::vector<uint64_t> magnitudes_;
  std::vector<int32_t> running_memory_;
  int32_t* running_mask_ = nullptr;
  bool running_mask_valid_ = false;
  std::vector<std::unique_ptr<LoopScratch>> scratch_;
  std::vector<std::unique_ptr<ReverseScratch>> reverse_scratch_;
  size_t reverse_depth_ = 0;
  std::vector<uint8_t> usual_ranges_;  // by RangePlan::invariant: nothing to count in this block
};

template <class F>
void Machine::ForEachExecuted(int32_t rows, int32_t where, const F& f) const {
  const LaneBits lanes = lane_set.counted & lane_set.running;
  const int64_t mask_width = where < 0 ? 0 : width[slot(where).uniform ? 1 : 0];
  const int64_t mask_rows = where < 0 ? 0 : slot(where).count;
  const int32_t* mask = where < 0 ? nullptr : reinterpret_cast<const int32_t*>(at[where]);
  const auto lane_of = [&](int64_t position) { return slot(where).uniform ? 0 : position; };
  for (int32_t row = 0; row < rows; ++row) {
    CountRow(row);
    ForEachLane(lanes, [&](int64_t position) {
      if (mask != nullptr && mask_rows == rows) {
        if (mask[row * mask_width + lane_of(position)] == 0) return;
      } else if (mask != nullptr) {
        // A mask of another length speaks for the whole operation.
        bool any = false;
        for (int64_t k = 0; k < mask_rows; ++k) {
          any |= mask[k * mask_width + lane_of(position)] != 0;
        }
        if (!any) return;
      }
      f(row, position);
    });
  }
}

// Number `i` of a row of reals.
double LoadReal(const std::byte* at, Carrier carrier, int64_t i);

// The number that a key of the kernels (KeyRange) stands for.
double NumberOfKey(int64_t key, bool wide);

// Instructions that need more than lanes.
void RunLook(const Instruction& instruction, Lanes& lanes);
void RunRange(const Instruction& instruction, Lanes& lanes);
void RunEvent(const Instruction& instruction, Lanes& lanes);
void RunWhile(const Instruction& instruction, Lanes& lanes);
void RunFor(const Instruction& instruction, Lanes& lanes);
void RunTape(const Instruction& instruction, Lanes& lanes);
void RunAccumulate(const Instruction& instruction, Lanes& lanes);
void RunWhileVjp(const Instruction& instruction, Lanes& lanes);
void RunForVjp(const Instruction& instruction, Lanes& lanes);

}  // namespace simgrad::sim::cpu
