// Counts the decisions of a block of lanes: diagnostics, path signatures, event history.
//
// The rules are docs/semantics.md, "Decisions" and "Margins". Four things make it cheap:
// - Most tests are far from their threshold. The comparison itself finds that out (MarginWindow,
//   kernels_tests.inc).
// - What depends only on the last test of a run is counted once, when all lanes have ended.
// - The hash of an outcome is computed once for all lanes that had it and added later
//   (OutcomeRows).
// - The smallest margin is found by a scan of keys. Only the lanes that attain it are evaluated
//   exactly.
// Threads: one recorder, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "precision/ulp.h"
#include "sim/backend/cpu/kernel_table.h"
#include "sim/backend/cpu/lane_bits.h"
#include "sim/backend/cpu/margin_window.h"
#include "sim/backend/cpu/outcome_rows.h"
#include "sim/backend/cpu/plan.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cpu {

class Machine;

// What a block remembers of its decisions from step to step.
struct PathBlock {
  uint64_t common = 0;                             // of every lane that is still deciding
  std::vector<uint64_t> signature;                 // [width]; the lane's is this plus `common`
  std::vector<std::vector<LaneBits>> last_events;  // [event site][element]: the lanes where it held
  std::vector<LaneBits> seen_events;               // [event site]: the lanes where it ever held
  std::vector<std::vector<int64_t>> first_event;   // [event site][lane]; -1: never
};

// Where the decisions of a chunk are written to.
struct ChunkTarget {
  StepDiagnostics* diagnostics = nullptr;
  std::vector<InstanceSite>* instance_sites = nullptr;  // null below level `instances`
  int64_t first_step = 0;
  int64_t instances = 0;
};

// One evaluation of the test of a loop.
struct LoopTestEvent {
  int64_t iteration = 0;
  int64_t outer_iteration = 0;  // j
  LaneBits held;                // stop: the test held
  LaneBits refused;             // stop: not entered
  bool last = false;            // the others end here, at the cap
  bool quiet = false;           // TestWatch::quiet
};

class SiteRecorder {
 public:
  explicit SiteRecorder(const RunOptions& options);

  // The block whose lanes decide: its path and the ids of its lanes [width].
  void BeginBlock(PathBlock* path, const uint64_t* ids, int64_t first_row, int64_t lanes,
                  ChunkTarget target);
  void BeginStep(int64_t step) { step_ = step; }
  void EndBlock(const KernelTable& kernels);
  // Moves the common part of the signatures into the lanes, before some of them stop deciding.
  static void SplitSignatureOf(PathBlock& path);

  // A run of a loop: all lanes together, until the last of them has stopped. What happens in it
  // stays at the machine's depth.
  void BeginRun(const Machine& machine);
  // What to watch while a test is decided; for a loop whose plan says so.
  void Watch(const Machine& machine, const WhilePlan& plan, int64_t iteration, TestWatch& watch);
  void Test(Machine& machine, const WhilePlan& plan, const LoopTestEvent& event);
  void EndRun(const Machine& machine, const WhilePlan& plan);
  void Event(Machine& machine, const EventPlan& plan);

 private:
  // A scan of all lanes pays from this many on.
  static constexpr int64_t kFewLanes = 24;
  struct Pair {
    double a = 0.0;
    double b = 0.0;
    double extra = 0.0;
  };
  // One test of a loop: what is counted of which lanes.
  struct Tests {
    Machine& machine;
    const TestedPair& tested;
    TerminationStep& step;
    LaneBits held;      // of the lanes below
    LaneBits ended;     // those whose margin goes to the histogram
    bool less = false;  // held: exactly the lanes below with a < b
  };
  // The run of a loop at some depth.
  struct Run {
    OutcomeRow outcomes;
    int64_t left = 0;       // lanes that run
    bool deferred = false;  // what is asked of last tests is counted from `last`, at the end
    bool below = true;      // all that ended have a < b
    LaneBits lanes;         // of the block
    alignas(64) float last[kMaxBlockWidth] = {};
  };
  Run& RunAt(int depth) {
    while (runs_.size() <= static_cast<size_t>(depth)) runs_.push_back(std::make_unique<Run>());
    return *runs_[static_cast<size_t>(depth)];
  }
  TerminationStep& StepOf(const WhilePlan& plan) const;
  Pair PairAt(const Machine& machine, const TestedPair& tested, int64_t row, int64_t lane) const;
  precision::Margin MarginAt(const Machine& machine, const TestedPair& tested, int64_t row,
                             int64_t lane) const;
  static bool IsNan(const precision::Margin& margin);

  void CountTests(const Tests& tests, const LaneBits& counted);
  void CountEqualTests(const Tests& tests, const LaneBits& lanes);
  bool CountManyTests(const Tests& tests, const LaneBits& lanes);
  bool CountLess(const Tests& tests, const LaneBits& counted);
  void CountNear(const Tests& tests, const LaneBits& lanes);
  void CountEachTest(const Tests& tests, const LaneBits& lanes);
  void CountOneTest(const Tests& tests, const precision::Margin& margin, int64_t lane,
                    uint64_t times, uint64_t instance);
  double OfferNeighbour(const Tests& tests, double a, const LaneBits& lanes);
  void CountBuckets(const Tests& tests, const LaneBits& lanes);

  void EndRuns(Machine& machine, const WhilePlan& plan, const LoopTestEvent& event,
               const LaneBits& lanes, StopReason reason);
  void AddOutcome(const Machine& machine, Run& run, const LaneBits& lanes, uint64_t hash);
  void EndAtCap(Machine& machine, const WhilePlan& plan, const LoopTestEvent& event,
                const LaneBits& capped);
  void KeepLast(const Machine& machine, const WhilePlan& plan, Run& run,
                const LaneBits& lanes) const;
  void CountLast(const Machine& machine, const WhilePlan& plan, const Run& run);
  void NoteTested(const Machine& machine, const TestedPair& tested, const LaneBits& lanes,
                  TerminationStep& step) const;
  void NoteInstances(Machine& machine, const WhilePlan& plan, const LaneBits& lanes);

  void CountChanges(const Machine& machine, const EventPlan& plan, int64_t row,
                    const LaneBits& counted, const LaneBits& value, EventStep& step);
  LaneBits ToBlock(const Machine& machine, const LaneBits& lanes) const;
  // Offers the smallest margins of a row.
  void OfferMargins(Machine& machine, const TestedPair& tested, int64_t row, const LaneBits& lanes,
                    SmallestMargin& smallest, uint64_t& nans);
  bool IsBeyond(const Machine& machine, const TestedPair& tested, const MarginScan& scan,
                const SmallestMargin& smallest) const;
  bool IsBeaten(const Machine& machine, const TestedPair& tested, const MarginScan& scan,
                const LaneBits& lanes, const SmallestMargin& smallest) const;
  void OfferEach(Machine& machine, const TestedPair& tested, int64_t row, const LaneBits& lanes,
                 SmallestMargin& smallest, uint64_t& nans);
  uint64_t IdAt(const Machine& machine, int64_t position) const;
  uint64_t SmallestId(const Machine& machine, const LaneBits& lanes) const;

  const double near_band_ulps_;
  const bool extremes_;  // margins and tested values are recorded
  PathBlock* path_ = nullptr;
  const uint64_t* ids_ = nullptr;
  bool ascending_ids_ = true;
  uint64_t smallest_id_ = 0;
  int64_t first_row_ = 0;
  int64_t lanes_ = 0;
  ChunkTarget target_;
  int64_t step_ = 0;
  std::vector<std::unique_ptr<Run>> runs_;          // by depth
  std::vector<std::vector<MarginWindow>> windows_;  // [termination site][step of the chunk]
  OutcomeRows outcomes_;
  std::vector<int32_t> buckets_;  // scratch
};

// Element (row, lane) of a value of any type as a double.
double NumberAt(const Machine& machine, int32_t slot, int64_t row, int64_t lane);

// The running positions of a layout that stand for an instance.
LaneBits CountedOf(const Machine& machine);

}  // namespace simgrad::sim::cpu
