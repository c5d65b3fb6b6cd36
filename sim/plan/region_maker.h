// Writes the operations of regions as statements of a plan.
//
// Broadcasts, slices and reshapes are views of their operand where they can be, so they cost nothing.
// Errors: none; a lowered program can be planned. Cost: linear in the program. Threads: pure.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sim/op/lowering.h"
#include "sim/plan/frame_writer.h"
#include "sim/plan/outer_products.h"
#include "sim/plan/radii.h"
#include "sim/plan/scale_writer.h"
#include "sim/plan/site_writer.h"
#include "sim/plan/statement_writer.h"
#include "sim/plan/values.h"
#include "sim/program/additions.h"
#include "sim/program/detect.h"
#include "sim/program/numerical_program.h"
#include "sim/work_meter.h"

namespace simgrad::sim::plan {

// A cotangent and where it is present. Without a cotangent it never is, without a mask everywhere.
struct Slot {
  View cotangent;
  View mask;
};

class RegionMaker {
 public:
  // `meter` is told of every operation.
  RegionMaker(const NumericalProgram& numerical, const Detection& looks, WorkMeter& meter,
              Plan& plan, Function& function, Records records);
  RegionMaker(const RegionMaker&) = delete;
  RegionMaker& operator=(const RegionMaker&) = delete;

  // The operations of a region whose arguments have views.
  void Run(const Region& region);

  // The numbers that count as non-finite: for a value that is infinite by intent, only NaN.
  enum class Seen : uint8_t { kNonFinite, kNan };
  void Look(const View& view, ValueId where, Seen seen = Seen::kNonFinite);
  void Stored(const View& state, Format format);  // the ranges of what was stored
  // From now on these additions are counted; they outlive the maker.
  void CountAdditions(const Additions* additions) { additions_ = additions; }
  StatementWriter& out() { return out_; }
  Values& values() { return values_; }
  FrameWriter& frames() { return frames_; }

  // ---- the adjoint (make_adjoint.cc) ----
  void SetRecords(Records records) { records_ = records; }
  // Reverses a region: its arguments behind `leading` are slots, its yields go to `to` at once.
  void Reverse(const Region& region, size_t leading, const std::vector<Slot>& args,
               const std::vector<Slot>& to);
  Slot SlotOfFields(int32_t cotangent, int32_t mask, const Shape& shape, const std::string& name);
  View Sent(int32_t number, Carrier carrier, const Shape& shape);
  Register Seed(Carrier carrier);
  // From now on these gradients are given as factors; they outlive the maker.
  void GiveFactorsOf(const OuterProducts* products) { products_ = products; }
  void Leaves(const Slot& slot);  // the cotangent of a state leaves the step
  // Makes the cotangent of `z[0]` the gradient of a state that was sent.
  void SetGradient(size_t input, const Slot& slot);
  Slot NewSlot(std::initializer_list<ValueId> types, const std::string& name);

 private:
  friend class OperationLowering;
  static size_t Index_(ValueId id) { return static_cast<size_t>(id); }
  // The masks where an operation is executed (none: everywhere) and where it reads an operand.
  struct Mask {
    View view;
    bool negated = false;
  };
  void LookUnder(const View& view, const std::vector<Mask>& masks, Seen seen);
  Seen SeenOf(ValueId id) const;
  // Emits the looks of Detection::reads: at numbers of the primal that `op` reads and may hide.
  void LookAtReads(const Op& op);

  // ---- operations (make_operations.cc, make_shapes.cc) ----
  void Operation(const Op& op);
  void Lower(const Op& op);
  void ByFamily(const Op& op);  // without a rule of its own
  void ChangeFormat(const Op& op);
  void AdjointOperation(const Op& op);
  void Elementwise(const Op& op);
  Register ExtremeOfTwo(const Op& op, std::vector<Register> operands);
  void Absorbed(const Op& op, const Addition& addition, std::vector<Register> operands,
                Register sum);
  void Cast(const Op& op);
  void Round(const Op& op, const View& x, Format from, const Value& to);
  void RoundStochastically(const Op& op, const View& x, Format from, const Value& to);
  std::string RoundingFunction(const Op& op, Carrier from, Format to) const;
  void Convert(const Op& op);
  void Merge(const Op& op);
  void Reduction(const Op& op);
  // The sum of the numbers of one line, of format `of` (none: integers): `line` has one axis.
  Register Sum(const Op& op, const View& line, std::optional<Format> of);
  View PermutationTable(const PermutationKey& key);  // of i64
  void Move(Index& index, const View& permutation, Register counter, int64_t stride);
  Register Pairwise(const std::string& add, View line);
  Register WithoutSignOfZero(Register x);
  Register Exact(const Op& op, const View& line);
  Register Extreme(const Op& op, const View& line);
  void Cumsum(const Op& op);
  void ExclusiveProd(const Op& op);

  // ---- loops (make_loops.cc) ----
  void While(const Op& op);
  void MappedWhile(const Op& op);
  void WhileRun(const Op& op, const std::vector<View>& carried, const std::vector<View>& mapped,
                const std::vector<View>& exports, const View& iterations, const LoopRadii& radii);
  Register Compared(const Op& op, const View& lhs, const View& why, const View& iterations,
                    const std::string& suffix);
  void For(const Op& op);
  Register IndexOfTurn(const Op& loop, Register trips, Register turn);

  // ---- the tape and the adjoint ----
  void Tape(const Op& op);
  void Accumulate(const Op& op);
  void GiveFactors(const Op& accumulate, const Op& matmul);
  struct Gradient {
    View sum, connected;
  };
  View GivenTo(size_t input, BufferKind kind, Carrier carrier, const Shape& shape);
  Gradient GradientOf(size_t input, const Shape& shape);
  void WhileVjp(const Op& op);
  void ForVjp(const Op& op);
  std::vector<Slot> ReverseWhile(const Op& op, const Op& loop, Register around, Register element,
                                 const std::vector<Slot>& given);
  Slot ReadSlot(std::span<const ValueId> list, size_t k);
  void InitSlot(const Slot& to, const Slot& from);
  void BindSlots(std::span<const ValueId> args, const std::vector<Slot>& slots);
  void YieldSlots(std::span<const ValueId> yields, const std::vector<Slot>& to);
  View Everywhere(Carrier carrier, int64_t number, const Shape& shape);

  const NumericalProgram& numerical_;
  const Program& program_;
  const Detection& looks_;
  WorkMeter& meter_;
  Records records_;
  StatementWriter out_;
  Values values_;
  ScaleWriter scales_;
  SiteWriter sites_;
  FrameWriter frames_;
  Radii radii_;
  const bool adjoint_draws_;                 // whether reversed loops need to know where they are
  const Additions* additions_ = nullptr;     // null: none is counted
  const OuterProducts* products_ = nullptr;  // null: no gradient is given as factors
  std::map<std::pair<size_t, BufferKind>, View> given_;  // to inputs
};

}  // namespace simgrad::sim::plan
