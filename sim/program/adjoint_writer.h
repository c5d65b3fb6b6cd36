// Writes adjoint regions: cotangent slots, their masks, fan-in, and reads of the primal.
//
// A scope is an adjoint region being written; scope d of the stack belongs to a primal region at
// nesting depth d. Used by sim/op/vjp_rule.h (one operation) and loop_vjp.h (loops).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/presence.h"
#include "sim/program/program.h"
#include "sim/program/read_order.h"

namespace simgrad::sim {

struct Mask {
  Presence presence = Presence::kNever;
  ValueId value = ValueId::kNone;  // kMasked: bool, of the cotangent's shape
  static Mask Always() { return {Presence::kAlways, ValueId::kNone}; }
  static Mask At(ValueId value) { return {Presence::kMasked, value}; }
};

struct Slot {
  ValueId cotangent = ValueId::kNone;
  Mask mask;
  Presence presence() const { return mask.presence; }
};

struct SlotSpec {
  Type type;
  Presence presence = Presence::kNever;
};

class AdjointWriter {
 public:
  // The program and the budget outlive the writer; the budget counts every write.
  AdjointWriter(Program& program, std::vector<bool> active, PassBudget& budget);

  Program& program() { return program_; }
  PassBudget& budget() { return budget_; }
  ValueId AddValue(Type type, std::string name = "");
  bool IsActive(ValueId id) const { return Index(id) < active_.size() && active_[Index(id)]; }
  bool IsInput(ValueId id) const { return input_of_.count(Index(id)) != 0; }  // not a state
  bool IsLiteral(ValueId id) const { return LiteralOf(id) != nullptr; }

  // Scopes.
  void Open(Region& region);
  void Close(Region& region);
  // The innermost scope reverses `primal`: it reads the values that `primal` defines.
  void DefinesPrimal(const Region& primal);

  // Slots as arguments and yields of a region: all cotangents, then all masks.
  std::vector<Slot> MakeArgs(Region& region, const std::vector<SlotSpec>& specs);
  void Yield(Region& region, const std::vector<Slot>& slots, const std::vector<Presence>& presence,
             const std::vector<Type>& types);
  // Appends `slots`, brought to the declared presence, to a list of operands.
  void Append(std::vector<ValueId>& list, const std::vector<Slot>& slots,
              const std::vector<Presence>& presence, const std::vector<Type>& types);

  // Fan-in.
  Slot SlotOf(ValueId primal) const;
  void SetSlot(ValueId primal, const Slot& slot);
  void Contribute(ValueId primal, const Slot& slot);
  Slot Merged(const Slot& first, const Slot& second, Role role);

  // Operations; role, label and mask (attributes.where) are those of the context.
  struct Context {
    Role role = Role::kAdjoint;
    std::string label;
    Mask mask;
  };
  void SetContext(Context context) { context_ = std::move(context); }
  const Context& context() const { return context_; }
  ValueId Emit(OpCode code, std::vector<ValueId> operands, const Type& type);
  ValueId Emit(Op op, const Type& type);
  ValueId Number(double value, const Type& type);
  ValueId Truth(bool value, const Shape& shape);
  // Returns the primal value rounded to role tape; an input or a literal unrounded. A result of a
  // call with a vjp of its own is the value that its body gave.
  ValueId Tape(ValueId primal);
  Mask And(const Mask& a, ValueId condition);

  // Values of the regions around a loop are read in those regions, in front of its vjp, and
  // sorted by `order` once the loop is written. A reader is the operation that is being reversed.
  void SetOrder(const ReadOrder* order) { order_ = order; }
  void SetReader(int32_t reader) { reader_ = reader; }
  size_t Depth() const { return scopes_.size() - 1; }
  // `below`: of which scope, from the innermost outwards.
  void BeginReads(size_t below = 0);
  void SortReads(size_t below = 0);
  // While it is quiet, nothing is accumulated.
  void SetQuiet(bool quiet) { is_quiet_ = quiet; }
  bool is_quiet() const { return is_quiet_; }

  // Whether solves of implicit derivatives are told of; else Tell is not called.
  void SetTells(bool tells) { tells_ = tells; }
  bool tells() const { return tells_; }
  // Accumulates what a solve at `site` tells (told.h).
  void Tell(const std::string& site, ValueId counted, ValueId largest);
  // Hands over the sites told of.
  std::vector<std::string> TakeTold() { return std::move(told_); }

  // A primal operation added behind the one that gives `anchor`, once.
  ValueId Kink(ValueId anchor, Op op, const Type& type);
  void InsertKinks(Region& primal);
  void SetRole(const Op& op);  // remembers which role computes the results
  const Op* LiteralOf(ValueId id) const;
  ValueId Given(ValueId id) const;  // by a body, where it is a result of `own_vjp`
  void Push(Op op) { Append(*scopes_.back().region, std::move(op)); }

 private:
  struct Read {
    std::pair<int32_t, int64_t> first;  // place of the first reader, and which of its reads
    std::string label;
    size_t at;  // operation, from Scope::first_read
  };
  struct Scope {
    Region* region;
    std::unordered_map<size_t, Slot> slots;
    std::unordered_map<size_t, ValueId> tapes;
    // The values that the loop being written reads here for the first time, by primal value.
    std::unordered_map<size_t, Read> reads;
    size_t first_read = 0;  // operation
  };
  // Returns what `make` makes, unless the scope has read the primal value before.
  template <class Make>
  ValueId ReadOnce(Scope& scope, ValueId primal, const std::string& label, const Make& make);
  void Append(Region& region, Op op);
  // Reads in a region around the one being written are noted, known or not.
  void NoteRead(Scope& scope, ValueId primal, const std::string& label);
  Role FanInRole(ValueId primal) const;
  void Accumulate(int32_t input, const Slot& slot);

  Program& program_;
  PassBudget& budget_;
  std::vector<bool> active_;
  std::unordered_map<size_t, int32_t> input_of_;
  std::vector<Scope> scopes_;
  std::unordered_map<size_t, size_t> depth_of_;  // primal value -> scope depth
  std::unordered_map<size_t, Role> role_of_;
  std::unordered_map<size_t, Op> literals_;
  std::unordered_map<size_t, ValueId> given_;
  std::unordered_map<size_t, std::pair<Op, bool>> kinks_;  // by anchor; inserted already
  int64_t kinks_to_insert_ = 0;
  const ReadOrder* order_ = nullptr;
  int32_t reader_ = 0;
  int64_t reads_ = 0;
  Context context_;
  bool is_quiet_ = false;
  bool tells_ = false;
  std::vector<std::string> told_;
};

}  // namespace simgrad::sim
