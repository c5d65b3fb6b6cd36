// Writes what is recorded of the lanes: tests, runs, events, ranges and non-finite results.
//
// Maths: docs/semantics.md, "Decisions", "Margins" and "Counters". What the lanes saw in a step is
//   gathered in vectors and joined at its end, so nothing depends on the order of lanes.
// Cost: of a test some 40 vector instructions, of a run 60 and an increment for each lane.
// Threads: one per module.
#pragma once

#include <llvm/ADT/SmallVector.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/backend/compiled/function_writer.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// Members of GroupArgs, in order.
enum Member : unsigned {
  kNumbers,
  kIntegers,
  kInputs,
  kFields,
  kWorkspace,
  kFuel,
  kPoll,
  kLanesUsed,
  kFirstStep,
  kCount,
  kHealth,
  kBadInputs,
  kNearBand,
  kRanks,
  kSignatures,
  kTerminations,
  kEvents,
  kRanges,
  kLastEvents,
  kFirstEvents,
  kTellTested,
  kTellRun,
  kSeedScale,
  kSentCotangents,
  kGradients,
  kConnectedFlags,
  kBackward,
  kFrames,
  kTapeBytes,
  kTape,
  kTapeCapacity,
  kGrow,
  kMembers
};

using Vectors = llvm::SmallVector<llvm::Value*, 4>;  // one per part

// The values of one statement that records, every one a vector per part.
struct Told {
  std::vector<Vectors> operands;
  Vectors extra;                   // empty: none
  Vectors mask;                    // lanes for which it happens
  Vectors where;                   // of these, where; empty: everywhere
  Vectors iteration;               // i64; empty: 0
  llvm::Value* element = nullptr;  // i64, the same for all lanes; null: 0
};

class RecordWriter {
 public:
  RecordWriter(llvm::Module& module, llvm::IRBuilder<>& builder, llvm::IRBuilder<>& entry,
               const plan::Plan& plan, const WriterOptions& options, llvm::Value* const* arguments,
               llvm::Function*& function);

  // Around the steps of a function, and around each of them. `column` counts the steps of the call.
  void Begin();
  void BeginStep(llvm::Value* column, llvm::Value* time);
  void EndStep();
  void End();

  void Look(const Told& told);
  void Test(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra, const Told& told);
  void Run(const plan::Statement& s, const Told& told);
  void Decide(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra, const Told& told);
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
  void JudgeLanes(llvm::Value* time, bool stops, uint64_t code);

  struct Nearest {
    Vectors magnitude, key;  // variables
  };
  // Counters are scalars of 64 bits, of all lanes.
  struct Termination {
    llvm::Value *checks, *near_stopped, *near_continued, *nan_margins;
    Vectors iterations_sum, tested_min, tested_max, iterations_min, iterations_max, last_ulps,
        has_last;
    Nearest absolute, ulps;
  };
  struct Event {
    llvm::Value *checks, *count, *changes, *nan_margins;
    Nearest absolute, ulps;
  };
  struct Distance {
    llvm::Value *absolute, *ulps, *negative, *number;
  };

  unsigned width() const { return static_cast<unsigned>(options_.shape.width); }
  size_t parts() const { return static_cast<size_t>(options_.shape.parts); }
  llvm::Type* VectorOf(llvm::Type* type) { return llvm::FixedVectorType::get(type, width()); }
  llvm::Value* Call(const std::string& name, const std::vector<llvm::Value*>& operands);
  llvm::Value* Splat(llvm::Value* value) { return b_.CreateVectorSplat(width(), value); }
  llvm::Value* Splat64(uint64_t n) { return Splat(b_.getInt64(n)); }
  llvm::Value* Splat32(uint32_t n) { return Splat(b_.getInt32(n)); }
  llvm::Value* Any(const Vectors& mask);
  llvm::Value* One(llvm::Value* mask) { return b_.CreateZExt(mask, VectorOf(b_.getInt32Ty())); }
  Vectors Variables(llvm::Type* type);
  void Set(const Vectors& variables, llvm::Value* value);
  llvm::Value* Get(const Vectors& variables, size_t part, llvm::Type* type);
  llvm::Value* Counter() { return entry_.CreateAlloca(b_.getInt64Ty()); }
  // The lanes of a mask as bits of one integer, the first part lowest.
  llvm::Value* BitsOf(const Vectors& mask);
  llvm::Value* Population(llvm::Value* bits);  // in 64 bits
  void Count(llvm::Value* counter, const Vectors& mask);
  Vectors Both(const Vectors& a, const Vectors& b);
  Vectors ButNot(const Vectors& a, const Vectors& b);
  void If(llvm::Value* condition, const std::function<void()>& body);
  llvm::Value* Memory(Member member, llvm::Value* index, uint64_t stride, uint64_t offset);
  void AddTo(llvm::Value* address, llvm::Value* amount);
  void CallBack(Member member, std::vector<llvm::Value*> operands);
  llvm::Value* SumOf(const Vectors& variables);

  Distance DistanceOf(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra,
                      const Told& told, size_t part);
  void ClearNearest(const Nearest& nearest);
  Nearest NewNearest();
  void Offer(const Nearest& nearest, size_t part, llvm::Value* counts, llvm::Value* magnitude,
             llvm::Value* negative);
  void JoinNearest(const Nearest& nearest, llvm::Value* column, uint64_t offset);
  // Adds one at histogram[bucket] for each lane of the mask: as many turns as buckets differ.
  // Calls body(lane) for each lane of a mask, one after the other.
  void EachLaneOf(const Vectors& mask, const std::function<void(llvm::Value* lane)>& body);
  // The numbers of all lanes, to be read at a lane.
  llvm::Value* Listed(const Vectors& values, llvm::Type* type);
  void CountInHistogram(llvm::Value* column, uint64_t offset, const Vectors& buckets,
                        const Vectors& mask);
  // Adds the hash of an outcome, in 64 bits for each lane, to the signatures of the mask.
  void Sign(uint64_t site, const Told& told, const Vectors& outcomes, const Vectors& mask);
  void JoinTermination(const Termination& t, llvm::Value* column);
  void JoinEvent(const Event& e, llvm::Value* column);
  llvm::Value* ColumnOf(Member member, int32_t site, size_t sites, uint64_t bytes);
  void RangeVariables(precision::Role role, Vectors*& under, Vectors*& over);

  llvm::Module& module_;
  llvm::LLVMContext& context_;
  llvm::IRBuilder<>& b_;
  llvm::IRBuilder<>& entry_;
  const plan::Plan& plan_;
  const WriterOptions& options_;
  llvm::Value* const* arguments_;
  llvm::Function*& function_;  // that is written
  llvm::Value* column_ = nullptr;
  llvm::Value* time_ = nullptr;
  std::vector<Termination> terminations_;
  std::vector<Event> events_;
  Vectors used_, ranks_, signatures_, health_, bad_;
  std::map<int, std::pair<Vectors, Vectors>> ranges_;  // by role
};

}  // namespace simgrad::sim::compiled
