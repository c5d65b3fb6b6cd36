#include "sim/program/loop_vjp.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/op/vjp_rule.h"
#include "sim/program/field_error.h"
#include "sim/program/implicit_solve.h"
#include "sim/program/loop.h"
#include "sim/program/loop_choice.h"
#include "sim/program/own_vjp.h"

namespace simgrad::sim {
namespace {

bool Any(const std::vector<Slot>& slots) {
  return std::any_of(slots.begin(), slots.end(),
                     [](const Slot& slot) { return slot.presence() != Presence::kNever; });
}

std::vector<Presence> PresenceOf(const std::vector<Slot>& slots) {
  std::vector<Presence> presence;
  for (const Slot& slot : slots) presence.push_back(slot.presence());
  return presence;
}

template <typename T>
std::vector<T> Concatenated(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> both = a;
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

// The part that both kinds of loops share: slots of carried values and of captures.
class LoopVjp {
 public:
  // `planned`: this loop in the scope that is being written.
  LoopVjp(const Reversal& reversal, Op& op, PresencePlan::LoopId planned)
      : r_(reversal), w_(reversal.writer), op_(op), planned_(planned) {
    carried_ = static_cast<size_t>(op.attributes.carried);
    role_ = op.role == Role::kObjective ? Role::kObjective : Role::kAdjoint;
  }

 protected:
  Type TypeOf(ValueId id) const { return w_.program()[id].type; }

  std::vector<Type> TypesOf(std::span<const ValueId> ids) const {
    std::vector<Type> types;
    for (ValueId id : ids) types.push_back(TypeOf(id));
    return types;
  }

  std::vector<SlotSpec> Specs(const std::vector<Type>& types,
                              const std::vector<Presence>& presence) const {
    std::vector<SlotSpec> specs;
    for (size_t i = 0; i < types.size(); ++i) specs.push_back({types[i], presence[i]});
    return specs;
  }

  // The written slots must have the planned presence; a difference is a bug in the plan.
  static void Expect(bool as_planned) {
    if (as_planned) return;
    throw PassBudget::Ended{absl::InternalError("the adjoint of a loop differs from its plan")};
  }

  std::vector<Slot> SlotsOf(std::span<const ValueId> ids) const {
    std::vector<Slot> slots;
    for (ValueId id : ids) slots.push_back(w_.SlotOf(id));
    return slots;
  }

  void SetSlots(std::span<const ValueId> ids, const std::vector<Slot>& slots, size_t first) {
    for (size_t i = 0; i < ids.size(); ++i) w_.SetSlot(ids[i], slots[first + i]);
  }

  // The regions of the reverse loop; what they read of the regions around is read in front of it.
  template <typename Write>
  void WriteRegions(Op& vjp, const Write& write) {
    std::vector<Presence> joined = presence_;
    r_.order.Add(planned_, w_.Depth());
    w_.BeginReads();
    vjp.regions = write(joined);
    w_.SortReads();
    Expect(joined == presence_);
  }

  void AppendOperands(Op& vjp, const std::vector<Slot>& slots,
                      const std::vector<Presence>& presence, const std::vector<Type>& types) {
    w_.SetContext({role_, op_.label, {}});
    w_.Append(vjp.operands, slots, presence, types);
    w_.SetContext({});
  }

  // The reverse loop itself, behind its operands; gives the slots that leave it.
  std::vector<Slot> PushVjp(Op vjp, const std::vector<Type>& types,
                            const std::vector<Presence>& presence) {
    vjp.role = role_;
    vjp.label = op_.label;
    vjp.attributes.primal = op_.results[0];
    vjp.attributes.carried = op_.attributes.carried;
    vjp.attributes.max_iter = op_.attributes.max_iter;
    std::vector<Slot> slots(types.size());
    for (size_t i = 0; i < types.size(); ++i) {
      slots[i].mask.presence = presence[i];
      if (presence[i] != Presence::kNever) slots[i].cotangent = w_.AddValue(types[i]);
      vjp.results.push_back(slots[i].cotangent);
    }
    for (size_t i = 0; i < types.size(); ++i) {
      if (presence[i] == Presence::kMasked) {
        slots[i].mask.value = w_.AddValue({ElementType::kBool, types[i].shape});
      }
      vjp.results.push_back(slots[i].mask.value);
    }
    w_.Push(std::move(vjp));
    return slots;
  }

  const Reversal& r_;
  AdjointWriter& w_;
  Op& op_;
  PresencePlan::LoopId planned_;
  Role role_;
  size_t carried_ = 0;
  std::vector<ValueId> captures_;
  std::vector<Presence> presence_;  // carried, captures
};

class WhileVjp : LoopVjp {
 public:
  WhileVjp(const Reversal& reversal, Op& op, PresencePlan::LoopId planned)
      : LoopVjp(reversal, op, planned), test_(op.regions[0]), body_(op.regions[1]) {
    const WhileCounts counts = CountsOf(op);
    exports_ = static_cast<size_t>(counts.exports);
    mapped_ = static_cast<size_t>(counts.mapped);
    tests_ = FirstExport(op);
    is_mapped_ = op.attributes.elements > 0;
  }

  void Write() {
    const std::span<const ValueId> results(op_.results);
    const std::span<const ValueId> exported = results.subspan(carried_, exports_);
    const std::vector<Slot> carried_slots = SlotsOf(results.first(carried_));
    const std::vector<Slot> export_slots = SlotsOf(exported);
    const bool comes = Any(carried_slots) || Any(export_slots);
    Expect(comes == (planned_ != PresencePlan::LoopId::kNone));
    if (!comes) return;
    captures_ = r_.captures.Of(op_);
    outside_ = PresenceOf(export_slots);
    presence_ = r_.plan.PresenceOf(planned_);
    const std::vector<Slot> capture_slots =
        is_mapped_ ? std::vector<Slot>(mapped_) : SlotsOf(captures_);
    choice_ = ChoiceOf(op_, r_.choices);
    if (choice_ != nullptr && choice_->how == LoopChoice::How::kImplicit) {
      return WriteImplicit(carried_slots, export_slots, capture_slots);
    }
    const int64_t last = choice_ == nullptr ? 0 : choice_->last;
    Deliver(Reversed(carried_slots, export_slots, capture_slots, last));
  }

 private:
  // The reverse loop, of its last iterations or (0) of all; gives the slots that leave it.
  std::vector<Slot> Reversed(const std::vector<Slot>& carried, const std::vector<Slot>& exports,
                             const std::vector<Slot>& captures, int64_t last) {
    Op vjp{.code = OpCode::kWhileVjp};
    vjp.attributes.site = op_.attributes.site;
    vjp.attributes.elements = op_.attributes.elements;
    vjp.attributes.cap_order = op_.attributes.cap_order;
    vjp.attributes.kept_from = op_.attributes.kept_from;
    vjp.attributes.last = last;
    WriteRegions(vjp, [&](std::vector<Presence>& joined) { return Regions(joined); });
    const std::span<const ValueId> results(op_.results);
    const std::span<const ValueId> outer =
        is_mapped_ ? std::span<const ValueId>(op_.operands).subspan(carried_) : captures_;
    const std::vector<Type> types = Concatenated(TypesOf(results.first(carried_)), TypesOf(outer));
    AppendOperands(vjp, Around(exports, Concatenated(carried, captures)),
                   Around(outside_, presence_),
                   Around(TypesOf(results.subspan(carried_, exports_)), types));
    return PushVjp(std::move(vjp), types, presence_);
  }

  // ---- as a fixed point (loop_choice.h) ----

  // The carried values that can have a cotangent.
  std::vector<size_t> Solved() const {
    std::vector<size_t> solved;
    for (size_t k = 0; k < carried_; ++k) {
      if (presence_[k] != Presence::kNever) solved.push_back(k);
    }
    return solved;
  }

  // The cotangents of those, with +0 where they are absent.
  std::vector<ValueId> Filled(const std::vector<Slot>& slots) {
    std::vector<ValueId> filled;
    for (size_t k : Solved()) {
      const Type type = w_.program()[op_.results[k]].type;
      w_.SetContext({role_, op_.label, {}});
      const Slot& slot = slots[k];
      if (slot.presence() == Presence::kAlways) {
        filled.push_back(slot.cotangent);
        continue;
      }
      const ValueId zero = w_.Number(0.0, type);
      filled.push_back(
          slot.presence() == Presence::kNever
              ? zero
              : w_.Emit(OpCode::kSelect, {slot.mask.value, slot.cotangent, zero}, type));
    }
    return filled;
  }

  // Whether a run of the loop has a cotangent at all: a bool of each run, or none where every run has.
  ValueId IsUsed(const std::vector<Slot>& carried, const Shape& runs) {
    ValueId used = ValueId::kNone;
    for (const Slot& slot : carried) {
      if (slot.presence() == Presence::kAlways) return ValueId::kNone;
    }
    w_.SetContext({Role::kAdjoint, op_.label, {}});
    for (const Slot& slot : carried) {
      if (slot.presence() == Presence::kNever) continue;
      ValueId any = slot.mask.value;
      const size_t axes = w_.program()[any].type.shape.size();
      if (axes > runs.size()) {
        Op op{.code = OpCode::kAny, .operands = {any}};
        for (size_t axis = runs.size(); axis < axes; ++axis) {
          op.attributes.axes.push_back(static_cast<int64_t>(axis));
        }
        any = w_.Emit(std::move(op), {ElementType::kBool, runs});
      }
      used = used == ValueId::kNone ? any
                                    : w_.Emit(OpCode::kOr, {used, any}, {ElementType::kBool, runs});
    }
    return used;
  }

  // Cotangents of the carried values that Solved gives, present where the run is used.
  std::vector<Slot> Carried(const std::vector<ValueId>& cotangents, ValueId used) {
    std::vector<Slot> carried(carried_);
    const std::vector<size_t> solved = Solved();
    w_.SetContext({Role::kAdjoint, op_.label, {}});
    for (size_t i = 0; i < solved.size(); ++i) {
      const Shape shape = w_.program()[cotangents[i]].type.shape;
      const Mask mask = used == ValueId::kNone ? Mask::Always() : Mask::At(WideTo(used, shape));
      carried[solved[i]] = {cotangents[i], mask};
    }
    return carried;
  }

  // One iteration, the last that ran, reversed from the cotangents of the carried values.
  std::vector<Slot> LastReversed(const std::vector<Slot>& carried,
                                 const std::vector<Slot>& captures) {
    return Reversed(carried, std::vector<Slot>(exports_), captures, 1);
  }

  // J' v of a run with no iteration, or that nothing uses, is 0, so that there is nothing to solve.
  std::vector<ValueId> WhereRan(ValueId ran, std::vector<ValueId> moved) {
    w_.SetContext({role_, op_.label, {}});
    for (ValueId& id : moved) {
      const Type type = w_.program()[id].type;
      const ValueId zero = w_.Number(0.0, type);
      id = w_.Emit(OpCode::kSelect, {WideTo(ran, type.shape), id, zero}, type);
    }
    return moved;
  }

  // Returns a bool of each run of the loop for all elements that the run carries.
  ValueId WideTo(ValueId own, const Shape& shape) {
    const Shape runs = w_.program()[own].type.shape;
    if (runs == shape) return own;
    Op wide{.code = OpCode::kBroadcast, .operands = {own}};
    wide.attributes.shape = shape;
    for (size_t axis = 0; axis < runs.size(); ++axis) {
      wide.attributes.dims.push_back(static_cast<int64_t>(axis));
    }
    return w_.Emit(std::move(wide), {ElementType::kBool, shape});
  }

  void WriteImplicit(const std::vector<Slot>& carried, const std::vector<Slot>& exports,
                     const std::vector<Slot>& captures) {
    if (Any(exports)) {
      throw PassBudget::Ended{FieldError(
          absl::StrCat("loops[", op_.attributes.last - 1, "]"),
          absl::StrCat("loop '", op_.attributes.site,
                       "' is taken for a fixed point, and what its test exports has a cotangent"))};
    }
    const std::vector<ValueId> g = Filled(carried);
    const ValueId iterations = w_.Tape(op_.results.back());
    const Type counts = w_.program()[iterations].type;
    const ValueId used = IsUsed(carried, counts.shape);
    w_.SetContext({role_, op_.label, {}});
    ValueId ran = w_.Emit(OpCode::kGt, {iterations, w_.Number(0.0, counts)},
                          {ElementType::kBool, counts.shape});
    // A run that nothing uses has no linear system: its J may be infinite.
    if (used != ValueId::kNone) {
      ran = w_.Emit(OpCode::kAnd, {ran, used}, {ElementType::kBool, counts.shape});
    }
    const auto transposed = [&](const std::vector<ValueId>& v) {
      // Values that the iteration reads are read in front of the solver's loop.
      r_.order.Add(planned_, w_.Depth() - 1);
      w_.BeginReads(1);
      const bool was_quiet = w_.is_quiet();
      w_.SetQuiet(true);
      const std::vector<Slot> moved =
          LastReversed(Carried(v, used), std::vector<Slot>(captures.size()));
      w_.SetQuiet(was_quiet);
      w_.SortReads(1);
      return WhereRan(ran, Filled(moved));
    };
    w_.SetContext({role_, op_.label, {}});
    const std::vector<ValueId> w = SolveImplicit(w_, *choice_, std::string(op_.attributes.site), g,
                                                 ran, r_.policy, transposed);
    std::vector<Slot> leaving = LastReversed(Carried(w, used), captures);
    const std::vector<Slot> start = Carried(g, used);
    std::copy(start.begin(), start.end(), leaving.begin());
    Deliver(leaving);
  }

  // If the loop ran at most as many iterations as are reversed, its start value gets a cotangent.
  // The type by value: adding operations moves the table of values.
  Slot OfStart(const Slot& slot, Type type) {
    if (choice_ == nullptr || slot.presence() == Presence::kNever) return slot;
    const bool is_truncated = choice_->how == LoopChoice::How::kTruncated;
    const ValueId iterations = w_.Tape(op_.results.back());
    const Shape own = w_.program()[iterations].type.shape;
    w_.SetContext({Role::kAdjoint, op_.label, {}});
    const ValueId most =
        w_.Number(static_cast<double>(is_truncated ? choice_->last : 0), {ElementType::kI32, own});
    const ValueId few =
        WideTo(w_.Emit(OpCode::kLe, {iterations, most}, {ElementType::kBool, own}), type.shape);
    const Slot masked = {slot.cotangent, w_.And(slot.mask, few)};
    w_.SetContext({});
    return masked;
  }

  // The slots of exports stand between those of carried values and of captures.
  template <typename T>
  std::vector<T> Around(const std::vector<T>& exports, std::vector<T> others) const {
    others.insert(others.begin() + static_cast<int64_t>(carried_), exports.begin(), exports.end());
    return others;
  }

  // Captures as the regions see them: values of enclosing regions, or the mapped arguments.
  std::span<const ValueId> CapturesIn(const Region& region) const {
    return is_mapped_ ? std::span<const ValueId>(region.args).last(mapped_) : captures_;
  }

  std::vector<Type> InnerTypes() const {
    const auto carried = std::span<const ValueId>(body_.args).first(carried_);
    return Concatenated(TypesOf(carried), TypesOf(CapturesIn(body_)));
  }

  std::vector<Type> ExportTypes() const {
    return TypesOf(std::span<const ValueId>(body_.args).subspan(carried_, exports_));
  }

  std::vector<Region> Regions(std::vector<Presence>& joined) {
    std::vector<Region> regions(4);
    std::vector<Presence> from_body;
    regions[0] = WriteBody(from_body, joined);
    regions[1] = WriteTest(PresencePlan::kTestInner, {from_body}, joined);
    regions[2] = WriteTest(PresencePlan::kTestLast, {outside_}, joined);
    if (op_.attributes.cap_order == CapOrder::kCapFirst) {
      regions[3] = WriteTest(PresencePlan::kTestBoth, {outside_, from_body}, joined);
    }
    return regions;
  }

  Region WriteBody(std::vector<Presence>& exported, std::vector<Presence>& joined) {
    Region region;
    w_.Open(region);
    w_.DefinesPrimal(body_);
    const std::vector<Slot> args = w_.MakeArgs(region, Specs(InnerTypes(), presence_));
    SetSlots(CapturesIn(body_), args, carried_);
    for (size_t i = carried_; i-- > 0;) w_.Contribute(body_.yields[i], args[i]);
    ReverseRegion(r_, body_, r_.plan.Inside(planned_, PresencePlan::kBody));
    const std::span<const ValueId> own(body_.args);
    const std::vector<Slot> exports = SlotsOf(own.subspan(carried_, exports_));
    const std::vector<Slot> others =
        Concatenated(SlotsOf(own.first(carried_)), SlotsOf(CapturesIn(body_)));
    exported = PresenceOf(exports);
    JoinInto(joined, PresenceOf(others));
    w_.Yield(region, Around(exports, others), Around(exported, joined),
             Around(ExportTypes(), InnerTypes()));
    w_.Close(region);
    return region;
  }

  // `received`: presence of the exports' cotangents from each side, outside first.
  Region WriteTest(PresencePlan::Which which, const std::vector<std::vector<Presence>>& received,
                   std::vector<Presence>& joined) {
    Region region;
    w_.Open(region);
    w_.DefinesPrimal(test_);
    const std::vector<Type> inner = InnerTypes();
    std::vector<SlotSpec> from_exports;
    for (const std::vector<Presence>& side : received) {
      from_exports = Concatenated(from_exports, Specs(ExportTypes(), side));
    }
    const std::vector<Slot> args = w_.MakeArgs(region, Around(from_exports, Specs(inner, joined)));
    SetSlots(CapturesIn(test_), args, carried_ + from_exports.size());
    for (size_t i = 0; i < carried_; ++i) {
      if (args[i].presence() != Presence::kNever) w_.SetSlot(test_.args[i], args[i]);
    }
    for (size_t side = 0; side < received.size(); ++side) {
      for (size_t i = exports_; i-- > 0;) {
        w_.Contribute(test_.yields[tests_ + i], args[carried_ + side * exports_ + i]);
      }
    }
    ReverseRegion(r_, test_, r_.plan.Inside(planned_, which));
    const auto carried = std::span<const ValueId>(test_.args).first(carried_);
    const std::vector<Slot> yields = Concatenated(SlotsOf(carried), SlotsOf(CapturesIn(test_)));
    JoinInto(joined, PresenceOf(yields));
    w_.Yield(region, yields, joined, inner);
    w_.Close(region);
    return region;
  }

  // Captures were threaded through: what leaves replaces what entered. The rest is contributed.
  void Deliver(const std::vector<Slot>& leaving) {
    if (is_mapped_) {
      for (size_t i = mapped_; i-- > 0;) {
        w_.Contribute(op_.operands[carried_ + i], leaving[carried_ + i]);
      }
    } else {
      SetSlots(captures_, leaving, carried_);
    }
    for (size_t i = carried_; i-- > 0;) {
      w_.Contribute(op_.operands[i], OfStart(leaving[i], w_.program()[op_.operands[i]].type));
    }
  }

  Region& test_;
  Region& body_;
  size_t exports_ = 0;
  size_t mapped_ = 0;
  size_t tests_ = 2;
  bool is_mapped_ = false;
  std::vector<Presence> outside_;  // exports, from outside
  const LoopChoice* choice_ = nullptr;
};

class ForVjp : LoopVjp {
 public:
  ForVjp(const Reversal& reversal, Op& op, PresencePlan::LoopId planned)
      : LoopVjp(reversal, op, planned),
        body_(op.regions[0]),
        given_(op.results.size()),
        scanned_(static_cast<size_t>(op.attributes.scanned)) {}

  void Write() {
    const std::vector<Slot> results = SlotsOf(op_.results);
    if (!Any(results)) return;
    if (op_.attributes.max_iter == 0) {
      for (size_t i = carried_; i-- > 0;) w_.Contribute(op_.operands[i], results[i]);
      return;
    }
    Expect(planned_ != PresencePlan::LoopId::kNone);
    captures_ = r_.captures.Of(op_);
    std::vector<Slot> entering = Concatenated(results, SlotsOf(captures_));
    entering.resize(entering.size() + scanned_);
    presence_ = r_.plan.PresenceOf(planned_);
    Op vjp{.code = OpCode::kForVjp};
    WriteRegions(
        vjp, [&](std::vector<Presence>& joined) { return std::vector<Region>{WriteBody(joined)}; });
    const std::vector<Type> types = TypesOf(SlotIds(op_.results, Scanned(op_.operands)));
    AppendOperands(vjp, entering, presence_, types);
    const std::vector<Slot> leaving = PushVjp(std::move(vjp), types, presence_);
    SetSlots(captures_, leaving, given_);
    for (size_t i = scanned_; i-- > 0;) {
      w_.Contribute(Scanned(op_.operands)[i], leaving[leaving.size() - scanned_ + i]);
    }
    for (size_t i = carried_; i-- > 0;) w_.Contribute(op_.operands[i], leaving[i]);
  }

 private:
  std::span<const ValueId> Scanned(const std::vector<ValueId>& ids) const {
    return std::span<const ValueId>(ids).last(scanned_);
  }
  // Carried and stacked values, captures, scanned values.
  std::vector<ValueId> SlotIds(const std::vector<ValueId>& given,
                               std::span<const ValueId> scanned) const {
    std::vector<ValueId> ids = Concatenated(given, captures_);
    ids.insert(ids.end(), scanned.begin(), scanned.end());
    return ids;
  }

  Region WriteBody(std::vector<Presence>& joined) {
    Region region;
    w_.Open(region);
    w_.DefinesPrimal(body_);
    region.args.push_back(w_.AddValue({ElementType::kI32, {}}, "index"));
    const auto carried = std::span<const ValueId>(body_.args).subspan(1, carried_);
    const std::span<const ValueId> scanned = Scanned(body_.args);
    const std::vector<Type> types = TypesOf(SlotIds(body_.yields, scanned));
    const std::vector<Slot> args = w_.MakeArgs(region, Specs(types, presence_));
    SetSlots(captures_, args, given_);
    SetSlots(scanned, args, args.size() - scanned_);
    for (size_t i = given_; i-- > 0;) w_.Contribute(body_.yields[i], args[i]);
    ReverseRegion(r_, body_, r_.plan.Inside(planned_, PresencePlan::kBody));
    std::vector<Slot> yields = SlotsOf(carried);
    yields.resize(given_);
    yields = Concatenated(Concatenated(yields, SlotsOf(captures_)), SlotsOf(scanned));
    JoinInto(joined, PresenceOf(yields));
    w_.Yield(region, yields, joined, types);
    w_.Close(region);
    return region;
  }

  Region& body_;
  size_t given_;    // carried and stacked values
  size_t scanned_;  // operands
};

}  // namespace

void ReverseRegion(const Reversal& reversal, Region& primal, PresencePlan::ScopeId scope) {
  int32_t loops = 0;
  size_t operations = 0;
  for (size_t i = primal.ops.size(); i-- > 0;) {
    Op& op = primal.ops[i];
    reversal.writer.budget().Visit(1 + static_cast<int64_t>(op.operands.size()));
    if (op.code == OpCode::kWhile) {
      WhileVjp(reversal, op, reversal.plan.LoopOf(scope, loops++)).Write();
    } else if (op.code == OpCode::kFor) {
      ForVjp(reversal, op, reversal.plan.LoopOf(scope, loops++)).Write();
    } else {
      // Operations that differentiation added have no place in the plan, and no cotangent.
      const int32_t reader = reversal.plan.ReaderOf(scope, op, operations);
      if (reader < 0) continue;
      reversal.writer.SetReader(reader);
      if (op.code == OpCode::kOwnVjp) {
        WriteOwnVjp(reversal.writer, op);
      } else {
        WriteVjp(reversal.writer, op);
      }
    }
  }
  reversal.writer.InsertKinks(primal);
}

}  // namespace simgrad::sim
