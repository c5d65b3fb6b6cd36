// Writes what is recorded of the lanes: tests, runs, events, ranges and non-finite results.
//
// Maths: docs/semantics.md, "Decisions", "Margins" and "Counters". What the lanes saw in a step is
//   gathered in vectors and joined at its end, so nothing depends on the order of lanes.
// Cost: of a test some 40 vector instructions, of a run 60 and an increment for each lane.
// Threads: one per module.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "sim/backend/compiled/analysis/taken_fields.h"
#include "sim/backend/compiled/writer/decision_writer.h"
#include "sim/backend/compiled/writer/lane_builder.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

class RecordWriter : private LaneBuilder {
 public:
  RecordWriter(const LaneBuilder& lanes, const plan::Plan& plan, const plan::Function& function);

  // Begin and End enclose the steps, BeginStep begins each. `column`: the step in the call.
  void Begin();
  void BeginStep(llvm::Value* column, llvm::Value* time);
  // For a piece of a step, what the pieces before it looked at lies at `looked`: LookedBytes.
  void BeginPiece(llvm::Value* looked, bool is_first, llvm::Value* column, llvm::Value* time);
  static int64_t LookedBytes(const LaneShape& shape);
  void End();

  void Take(const TakenField& field, llvm::Value* values, llvm::Value* present, int64_t count,
            const Vectors& mask);
  void Look(const Told& told);
  void Decision(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra,
                const Told& told);  // kTest, kRun, kDecide
  void Range(const plan::Statement& s, plan::Carrier from, const Told& told);
  void Stored(const plan::Statement& s, const Told& told);
  // Names a flag, an i32, that is set where a range counts anything.
  void WatchRanges(llvm::Value* flag) { watched_ = flag; }
  // Counts an addition and whether it was absorbed. Only for steps that are sampled: IsSampled.
  void Absorbed(const plan::Statement& s, const Told& told);
  llvm::Value* IsSampled();
  void Take(const plan::Statement& s, const Told& told);

  // Enclose a loop over elements whose turns, one lane, add at most 2^32 - 1 to any counter.
  void BeginLoop() { in_loop_ = true; }
  void EndLoop();

  // Lanes whose instance runs: it exists, and no policy stopped it.
  Vectors Running();
  // Takes the looks of this step into the health of the lanes; `stops`: the policy stops instances
  // that are not finite. Afterwards Running is up to date.
  // `code`: 2 in a forward step, 4 in the adjoint.
  void Judge(llvm::Value* time, bool stops, uint64_t code);

 private:
  llvm::Value* NegativeWhereNotFinite(llvm::Value* x);
  void JudgeLanes(llvm::Value* time, bool stops, uint64_t code);
  void BeginLanes();
  // Adds `times` to the underflows and the overflows of a role for each lane of `under` and `over`.
  void CountRanges(precision::Role role, int64_t times, const Vectors& under, const Vectors& over);

  // Two counters in registers, where a lane holds elements. Those of a loop have 32 bits: they become
  // vectors where nothing branches. Behind it they are added to those of 64 bits. Where lanes hold
  // instances they are counted in memory, behind a branch that few steps take.
  struct CounterPair {
    llvm::Value* first = nullptr;
    llvm::Value* second = nullptr;
    bool counts = true;  // in the loop that is written
  };
  struct Counters {
    std::map<int, CounterPair> total;
    std::map<int, CounterPair> of_loop;
  };
  bool in_registers() const { return options_.shape.lanes() == 1; }
  CounterPair& CountersOf(int key, std::map<int, CounterPair>& all, llvm::Type* type);
  void Count(Counters& all, int key, llvm::Value* first, llvm::Value* second, int64_t times);
  void AddLoop(Counters& all);
  void CountLanes(llvm::Value* counter, const Vectors& mask, int64_t times);
  // Adds each pair of counters to `member` at stride * key, at the offsets `first` and `second`.
  void AddAll(const Counters& all, Member member, uint64_t stride, uint64_t first, uint64_t second);

  DecisionWriter decisions_;
  llvm::Value* column_ = nullptr;
  Vectors used_, health_;
  Vectors bad_;     // negative where a result of this step was not finite
  Vectors looked_;  // memory for them between the pieces of a step
  llvm::Value* watched_ = nullptr;
  bool in_loop_ = false;
  Counters ranges_;     // by role: underflows, overflows
  Counters additions_;  // by site: additions, absorbed
};

}  // namespace simgrad::sim::compiled
