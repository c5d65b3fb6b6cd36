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

#include "sim/backend/compiled/decision_writer.h"
#include "sim/backend/compiled/lane_builder.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

class RecordWriter : private LaneBuilder {
 public:
  RecordWriter(const LaneBuilder& lanes, const plan::Plan& plan, const plan::Function& function);

  // Around the steps of a function, and around each of them. `column` counts the steps of the call.
  void Begin();
  void BeginStep(llvm::Value* column, llvm::Value* time);
  // For a piece of a step, what the pieces before it looked at lies at `looked`: LookedBytes.
  void BeginPiece(llvm::Value* looked, bool is_first, llvm::Value* column, llvm::Value* time);
  static int64_t LookedBytes(const LaneShape& shape);
  void End();

  void Look(const Told& told);
  void Decision(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra,
                const Told& told);  // kTest, kRun, kDecide
  void Range(const plan::Statement& s, plan::Carrier from, const Told& told);
  void Stored(const plan::Statement& s, const Told& told);
  void Take(const Told& told);

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
  // The sum of 32-bit counters, in 64 bits.
  llvm::Value* SumOf(const Vectors& variables);
  void RangeVariables(precision::Role role, Vectors*& under, Vectors*& over);

  DecisionWriter decisions_;
  llvm::Value* column_ = nullptr;
  Vectors used_, health_;
  Vectors bad_;  // negative where a result of this step was not finite
  std::map<int, std::pair<Vectors, Vectors>> ranges_;  // by role
};

}  // namespace simgrad::sim::compiled
