// The state of one compilation (compile.h): storage, the region being written, emission by kind.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/backend/cpu/compile.h"
#include "sim/backend/cpu/slot_pool.h"
#include "sim/program/detect.h"
#include "sim/program/loop.h"

namespace simgrad::sim::cpu {

// A cheap operation on two values that are recorded, or known without a record.
struct Recomputed {
  OpCode code = OpCode::kLt;
  ValueId a = ValueId::kNone, b = ValueId::kNone;
};

// Uses of values, counted before anything is emitted.
struct ValueUses {
  std::vector<int32_t> root;     // by value: the value whose slot it shares
  std::vector<int32_t> count;    // by value: uses by operations, yields and tapes
  std::vector<int32_t> readers;  // by root: the same, but for what only gives it another name
  std::vector<bool> stored;      // by root: the adjoint reads it (recording plans)
  // By root: what the adjoint computes again from recorded values instead, or nothing.
  std::vector<std::optional<Recomputed>> recomputed;
};
ValueUses AnalyzeUses(const NumericalProgram& program, const PlanOptions& options,
                      WorkMeter& meter);

// Of one operation that a pass of the compiler looks at, in element-operations.
inline constexpr int64_t kPassWork = 256;

class Compiler {
 public:
  Compiler(std::shared_ptr<const NumericalProgram> program, const std::vector<InputForm>& inputs,
           const KernelTable& kernels, const PlanOptions& options, WorkMeter meter);
  std::unique_ptr<Plan> Run();

 private:
  // A region being written.
  struct Scope {
    const Region* region = nullptr;
    RegionPlan* plan = nullptr;
    Scope* outer = nullptr;
    bool is_test = false;                             // of a while
    size_t at = 0;                                    // operation being emitted
    std::vector<std::vector<int32_t>> last_used;      // by operation: root values of this region
    std::vector<int32_t> scratch;                     // slots to free after the operation
    std::unordered_map<int32_t, size_t> last_at;      // by root: its place in last_used
    std::set<int32_t> kept;                           // slots to free with the region
    std::unordered_map<int32_t, const Op*> deferred;  // computed with their only reader
    std::unordered_map<ValueId, int32_t> deferred_under;  // of these, by attributes.where
    std::vector<std::pair<ValueId, size_t>> readers;  // value, operation of the region; ascending
    // Slots of one row that a product of this region reads or writes.
    std::set<int32_t> magnitudes_known;
  };

  // compile.cc
  void CompileInputs(const std::vector<InputForm>& inputs);
  void CompileForward();
  void CompileStateYields(Scope& scope);
  RegionPlan& BeginRecord(RegionPlan& plan);
  void OpenScope(Scope& scope, const Region& region, RegionPlan& plan);
  void CompileOps(Scope& scope);
  void CloseScope(Scope& scope);
  static void CountCode(RegionPlan& plan);
  void CountLastUses(Scope& scope, const std::vector<int32_t>& pinned);
  std::vector<ValueId> MarginOperands(const Scope& scope, ValueId id) const;

  // compile_slots.cc
  int32_t NewSlot(Carrier carrier, Format format, int64_t count, bool uniform, bool invariant);
  int32_t SlotLike(int32_t slot, bool uniform, bool invariant);
  int32_t At(ValueId id) const { return plan_->slot_of[Index(id)]; }
  Slot& SlotAt(int32_t slot) { return plan_->slots[static_cast<size_t>(slot)]; }
  void PlaceForever(int32_t slot);
  void PlaceTemporary(int32_t slot);  // gives storage from the pool
  int32_t Scratch(Carrier carrier, Format format, int64_t count, bool uniform, bool invariant);
  // A loop-carried buffer needs fresh storage: a slot freed inside the loop is written again by its
  // previous owner in the next iteration.
  int32_t LoopBuffer(Carrier carrier, Format format, int64_t count);  // freed after the operation
  void MakeExclusive(int32_t slot);
  // The slot of a result, placed; uniform and invariant as its operands are.
  int32_t Result(ValueId id, bool uniform, bool invariant);
  void Store(RegionPlan& plan, int32_t slot);  // recorded at every execution of the region
  // A varying slot with the same numbers.
  int32_t Varying(int32_t slot);
  // A varying slot that only this region writes, at its end at the latest.
  int32_t OwnedYield(Scope& scope, ValueId id, std::set<int32_t>& taken, bool stored);
  int32_t CopyOf(int32_t slot);  // emits a copy into a kept slot
  void Alias(ValueId id, int32_t slot) { plan_->slot_of[Index(id)] = slot; }
  void KeepUntilClosed(int32_t slot) { scope_->kept.insert(slot); }
  // Storage that the region no longer owns.
  void GiveUpPlace(Scope& scope, int32_t slot);

  // Instructions.
  void Emit(Instruction instruction, int32_t result);
  void NoteProduct(Instruction& instruction);
  Instruction Make(Kernel kernel, int32_t to, int32_t a = -1, int32_t b = -1, int32_t c = -1,
                   int32_t d = -1);
  void EmitLook(const Op& op, ValueId id);
  void EmitRange(const Op& op, ValueId source, int32_t source_slot);

  // compile_operations.cc
  void CompileOp(const Op& op);
  void CompilePlain(const Op& op);
  void CompileElementwise(const Op& op);
  bool IsUnread(const Op& op) const;
  void NameUnread(const Op& op);
  bool CompileIsNegative(const Op& op);
  std::span<const std::pair<ValueId, size_t>> ReadersAfter(ValueId id) const;
  const Op* LastReluReader(ValueId x) const;
  void CompileArithmetic(const Op& op);
  bool IsZeroLiteral(ValueId id) const;
  bool LooksZero(ValueId id) const;
  const Op* OnlyReader(ValueId id) const;
  const Op* OnlyRealReader(ValueId id) const;
  void ReadLater(const Op& op, const Op& reader);
  void ReadNow(std::unordered_map<int32_t, const Op*>::iterator deferred);
  void KeepOperands(const Op& op, const Op& reader);
  bool SkipSelect(const Op& op);
  bool DeferNegation(const Op& op);
  bool CompileRelu(const Op& op);
  bool DeferProduct(const Op& op, bool invariant);
  bool CompileMultiplyAdd(const Op& op);
  void CompilePair(const Op& op, const Kernel kernels[3]);
  void CompileUnary(const Op& op, Kernel kernel);
  void CompileSelect(const Op& op);
  void CompileMerge(const Op& op);
  struct BoundTest {
    int32_t x = -1, bound = -1;
    bool greater = false;
  };
  std::optional<BoundTest> TakeComparison(ValueId mask, Carrier carrier);
  void CompileLiteral(const Op& op);
  void CompileCast(const Op& op);
  void EmitCast(int32_t from, int32_t to, Overflow overflow);
  void CompileConvert(const Op& op);
  void CompileEvent(const Op& op);
  TestedPair MakeTest(ValueId a, ValueId b);
  // The operands of what made `id`, for the margin.
  void AddExtra(ValueId id, TestedPair& pair);

  // compile_shapes.cc
  void CompileRows(const Op& op);
  void EmitRows(ValueId result, std::vector<int32_t> from, std::vector<int32_t> operand,
                const std::vector<int32_t>& slots);
  void CompileReduction(const Op& op);
  void CompileSum(const Op& op, const ReducePlan* reduce);
  const ReducePlan* MakeReduction(const Op& op);

  // compile_loops.cc
  void CompileWhile(const Op& op);
  void CompileWhileRegions(const Op& op, WhilePlan& plan);
  WhilePlan::Decision MakeDecision(Comparison comparison, ValueId a, ValueId b);
  void CompileFor(const Op& op);
  CarriedPlan MakeCarried(ValueId operand, ValueId result, int64_t elements, bool stored);
  int32_t StoredCopy(Scope& scope, int32_t slot);
  std::vector<CapturePlan> CapturesOf(const std::vector<const RegionPlan*>& regions,
                                      int32_t first_inside);
  int32_t LoopResult(ValueId id);

  // compile_records.cc
  void CompileTape(const Op& op);
  int32_t ReadRecord(size_t root);
  int32_t Recompute(ValueId result, const Recomputed& from);
  void CompileAccumulate(const Op& op);
  bool JoinAccumulate(const AccumulatePlan& plan);
  void FoldProduct(int32_t value);
  bool IsMaskedLikeValue(const Op& accumulate) const;
  bool TakesDeferred(const Op& accumulate, ValueId value) const;

  // compile_adjoint.cc
  void CompileAdjoint();
  void CompileAdjointRegion(const Region& region, bool seeded, AdjointRegionPlan& plan);
  static bool IsIdle(const VjpRegion& region, const std::vector<TravellingSlot>& slots);
  void CompileWhileVjp(const Op& op);
  void CompileForVjp(const Op& op);
  // `args`, `yields`: by place in the region's lists, the travelling slot; args below 0: -1 - k is
  // export k from outside.
  void CompileVjpRegion(const Region& region, size_t leading, const std::vector<int32_t>& args,
                        const std::vector<int32_t>& yields, std::vector<TravellingSlot>& slots,
                        size_t outside, VjpRegion& plan);
  // What a cotangent looks like, and lists that name cotangents of travelling slots: `slot` by
  // place in the list; inside a mapped loop they are one of `repeats` elements.
  struct CotangentType {
    Format format = Format::kF32;
    int64_t count = 0;
  };
  struct NamedSlots {
    SlotList list;
    std::vector<int32_t> slot;
    int64_t repeats = 1;
  };
  std::vector<CotangentType> TypesOfSlots(size_t slots, const std::vector<NamedSlots>& lists) const;
  TravellingSlot MakeTravelling(const SlotList& operands, size_t k, const CotangentType& type);
  void FinishTravelling(std::vector<TravellingSlot>& slots,
                        const std::vector<const VjpRegion*>& regions, int64_t elements);
  SlotPair PairAt(const SlotList& list, size_t k);
  SlotPair FilledPair(const SlotList& list, size_t k, const CotangentType& type);
  // A varying slot of equal numbers.
  int32_t Constant(Carrier carrier, Format format, int64_t count, double value);

  bool IsReal(ValueId id) const { return program_->program[id].type.element == ElementType::kReal; }
  int64_t CountOf(ValueId id) const { return ElementCount(program_->program[id].type.shape); }
  const Value& ValueAt(ValueId id) const { return program_->program[id]; }
  const std::vector<int32_t>& Keep(std::vector<int32_t> list) {
    return plan_->lists.emplace_back(std::move(list));
  }
  bool Stored(ValueId id) const { return uses_.stored[static_cast<size_t>(uses_.root[Index(id)])]; }

  std::shared_ptr<const NumericalProgram> program_;
  const KernelTable& kernels_;
  PlanOptions options_;
  std::unique_ptr<Plan> plan_;
  WorkMeter meter_;
  ValueUses uses_;
  std::vector<bool> look_;
  SlotPool pool_;
  Scope* scope_ = nullptr;
  bool hoists_ = false;
  std::unordered_map<int32_t, int32_t> widened_;  // invariant uniform slots
  std::map<std::tuple<Carrier, int64_t, double>, int32_t> constants_;
  std::vector<const Op*> producer_;                         // by value
  mutable std::vector<std::optional<bool>> zero_literal_;   // by value, once it has been asked
  std::set<std::pair<const RegionPlan*, int32_t>> stored_;  // RegionPlan::stored
  std::map<std::pair<const RegionPlan*, int32_t>, size_t> taped_;  // places in RegionPlan::taped
  std::vector<RegionPlan*> region_of_;  // by value: where it is defined (recorded regions)
  struct LoopHome {
    const WhilePlan* while_plan = nullptr;
    const ForPlan* for_plan = nullptr;
    int32_t region = -1;
    int32_t record = -1;
  };
  std::unordered_map<int32_t, LoopHome> loop_of_;  // by first result of a loop
  std::map<std::string, int32_t> site_numbers_;
  bool of_step_ = false;     // the region being compiled decides
  bool of_adjoint_ = false;  // the region being compiled belongs to the adjoint
};

}  // namespace simgrad::sim::cpu
