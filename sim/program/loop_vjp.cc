#include "sim/program/loop_vjp.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/op/vjp_rule.h"
#include "sim/program/loop.h"

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

// What both kinds of loops share: slots of carried values and of captures.
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

  std::vector<Type> TypesOf(const std::vector<ValueId>& ids) const {
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

  // What is written has the presence that was planned; a difference is a mistake of this program.
  static void Expect(bool as_planned) {
    if (as_planned) return;
    throw PassBudget::Ended{absl::InternalError("the adjoint of a loop differs from its plan")};
  }

  std::vector<Slot> SlotsOf(const std::vector<ValueId>& ids) const {
    std::vector<Slot> slots;
    for (ValueId id : ids) slots.push_back(w_.SlotOf(id));
    return slots;
  }

  void SetSlots(const std::vector<ValueId>& ids, const std::vector<Slot>& slots, size_t first) {
    for (size_t i = 0; i < ids.size(); ++i) w_.SetSlot(ids[i], slots[first + i]);
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
    const auto results = op_.results.begin();
    const std::vector<ValueId> carried(results, results + static_cast<int64_t>(carried_));
    const std::vector<ValueId> exported(results + static_cast<int64_t>(carried_),
                                        results + static_cast<int64_t>(carried_ + exports_));
    const std::vector<Slot> carried_slots = SlotsOf(carried);
    const std::vector<Slot> export_slots = SlotsOf(exported);
    const bool comes = Any(carried_slots) || Any(export_slots);
    Expect(comes == (planned_ != PresencePlan::LoopId::kNone));
    if (!comes) return;
    captures_ = r_.captures.Of(op_);
    outside_ = PresenceOf(export_slots);
    presence_ = r_.plan.PresenceOf(planned_);
    std::vector<Slot> capture_slots = is_mapped_ ? std::vector<Slot>(mapped_) : SlotsOf(captures_);

    Op vjp;
    vjp.code = OpCode::kWhileVjp;
    vjp.attributes.site = op_.attributes.site;
    vjp.attributes.elements = op_.attributes.elements;
    vjp.attributes.cap_order = op_.attributes.cap_order;
    std::vector<Presence> joined = presence_;
    r_.order.Add(planned_, w_.Depth());
    w_.BeginReads();
    vjp.regions = WriteRegions(joined);
    w_.SortReads();
    Expect(joined == presence_);
    std::vector<Type> types = TypesOf(carried);
    for (const Type& type : OuterCaptureTypes()) types.push_back(type);
    AppendOperands(vjp, carried_slots, export_slots, capture_slots, types, TypesOf(exported));
    const std::vector<Slot> leaving = PushVjp(std::move(vjp), types, presence_);
    Deliver(leaving);
  }

 private:
  // Captures as the regions see them: values of enclosing regions, or the mapped arguments.
  std::vector<ValueId> MappedArgs(const Region& region, size_t first) const {
    const auto begin = region.args.begin() + static_cast<int64_t>(first);
    return {begin, begin + static_cast<int64_t>(mapped_)};
  }
  std::vector<ValueId> InTest() const {
    return is_mapped_ ? MappedArgs(test_, carried_) : captures_;
  }
  std::vector<ValueId> InBody() const {
    return is_mapped_ ? MappedArgs(body_, carried_ + exports_) : captures_;
  }
  std::vector<Type> OuterCaptureTypes() const {
    if (!is_mapped_) return TypesOf(captures_);
    return TypesOf({op_.operands.begin() + static_cast<int64_t>(carried_), op_.operands.end()});
  }

  std::vector<Type> InnerTypes() const {
    const std::vector<ValueId> args(body_.args.begin(),
                                    body_.args.begin() + static_cast<int64_t>(carried_));
    return Concatenated(TypesOf(args), TypesOf(InBody()));
  }

  std::vector<Type> ExportTypes() const {
    const auto begin = body_.args.begin() + static_cast<int64_t>(carried_);
    return TypesOf({begin, begin + static_cast<int64_t>(exports_)});
  }

  std::vector<Region> WriteRegions(std::vector<Presence>& joined) {
    std::vector<Region> regions(4);
    std::vector<Presence> from_body;
    regions[0] = WriteBody(from_body, joined);
    const std::vector<Presence> none(exports_, Presence::kNever);
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
    SetSlots(InBody(), args, carried_);
    for (size_t i = carried_; i-- > 0;) w_.Contribute(body_.yields[i], args[i]);
    ReverseRegion(r_, body_, r_.plan.Inside(planned_, PresencePlan::kBody));
    const auto begin = body_.args.begin();
    const std::vector<Slot> carried = SlotsOf({begin, begin + static_cast<int64_t>(carried_)});
    const std::vector<Slot> exports = SlotsOf({begin + static_cast<int64_t>(carried_),
                                               begin + static_cast<int64_t>(carried_ + exports_)});
    const std::vector<Slot> captures = SlotsOf(InBody());
    exported = PresenceOf(exports);
    JoinInto(joined, PresenceOf(carried));
    JoinInto(joined, PresenceOf(captures), carried_);
    const std::vector<Type> inner = InnerTypes();
    const auto split = inner.begin() + static_cast<int64_t>(carried_);
    std::vector<Presence> presence(joined.begin(), joined.begin() + static_cast<int64_t>(carried_));
    presence = Concatenated(presence, exported);
    presence.insert(presence.end(), joined.begin() + static_cast<int64_t>(carried_), joined.end());
    std::vector<Type> types = Concatenated(std::vector<Type>(inner.begin(), split), ExportTypes());
    types.insert(types.end(), split, inner.end());
    w_.Yield(region, Concatenated(Concatenated(carried, exports), captures), presence, types);
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
    const std::vector<SlotSpec> all = Specs(inner, joined);
    const auto split = all.begin() + static_cast<int64_t>(carried_);
    std::vector<SlotSpec> specs(all.begin(), split);
    for (const std::vector<Presence>& side : received) {
      specs = Concatenated(specs, Specs(ExportTypes(), side));
    }
    specs.insert(specs.end(), split, all.end());
    const std::vector<Slot> args = w_.MakeArgs(region, specs);
    const size_t first_capture = carried_ + exports_ * received.size();
    SetSlots(InTest(), args, first_capture);
    for (size_t i = 0; i < carried_; ++i) {
      if (args[i].presence() != Presence::kNever) w_.SetSlot(test_.args[i], args[i]);
    }
    for (size_t side = 0; side < received.size(); ++side) {
      for (size_t i = exports_; i-- > 0;) {
        w_.Contribute(test_.yields[tests_ + i], args[carried_ + side * exports_ + i]);
      }
    }
    ReverseRegion(r_, test_, r_.plan.Inside(planned_, which));
    const auto begin = test_.args.begin();
    std::vector<Slot> yields = SlotsOf({begin, begin + static_cast<int64_t>(carried_)});
    yields = Concatenated(yields, SlotsOf(InTest()));
    JoinInto(joined, PresenceOf(yields));
    w_.Yield(region, yields, joined, inner);
    w_.Close(region);
    return region;
  }

  void AppendOperands(Op& vjp, const std::vector<Slot>& carried, const std::vector<Slot>& exports,
                      const std::vector<Slot>& captures, const std::vector<Type>& types,
                      const std::vector<Type>& export_types) {
    const int64_t c = static_cast<int64_t>(carried_);
    std::vector<Presence> presence(presence_.begin(), presence_.begin() + c);
    presence = Concatenated(presence, outside_);
    presence.insert(presence.end(), presence_.begin() + c, presence_.end());
    std::vector<Type> all(types.begin(), types.begin() + c);
    all = Concatenated(all, export_types);
    all.insert(all.end(), types.begin() + c, types.end());
    w_.SetContext({role_, op_.label, {}});
    w_.Append(vjp.operands, Concatenated(Concatenated(carried, exports), captures), presence, all);
    w_.SetContext({});
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
    for (size_t i = carried_; i-- > 0;) w_.Contribute(op_.operands[i], leaving[i]);
  }

  Region& test_;
  Region& body_;
  size_t exports_ = 0;
  size_t mapped_ = 0;
  size_t tests_ = 2;
  bool is_mapped_ = false;
  std::vector<Presence> presence_;  // carried, captures
  std::vector<Presence> outside_;   // exports, from outside
};

class ForVjp : LoopVjp {
 public:
  ForVjp(const Reversal& reversal, Op& op, PresencePlan::LoopId planned)
      : LoopVjp(reversal, op, planned), body_(op.regions[0]) {}

  void Write() {
    const std::vector<Slot> results = SlotsOf(op_.results);
    if (!Any(results)) return;
    if (op_.attributes.max_iter == 0) {
      for (size_t i = carried_; i-- > 0;) w_.Contribute(op_.operands[i], results[i]);
      return;
    }
    Expect(planned_ != PresencePlan::LoopId::kNone);
    captures_ = r_.captures.Of(op_);
    const std::vector<Slot> entering = Concatenated(results, SlotsOf(captures_));
    presence_ = r_.plan.PresenceOf(planned_);
    Op vjp;
    vjp.code = OpCode::kForVjp;
    std::vector<Presence> joined = presence_;
    r_.order.Add(planned_, w_.Depth());
    w_.BeginReads();
    vjp.regions.push_back(WriteBody(joined));
    w_.SortReads();
    Expect(joined == presence_);
    const std::vector<Type> types = Concatenated(TypesOf(op_.results), TypesOf(captures_));
    w_.SetContext({role_, op_.label, {}});
    w_.Append(vjp.operands, entering, presence_, types);
    w_.SetContext({});
    const std::vector<Slot> leaving = PushVjp(std::move(vjp), types, presence_);
    SetSlots(captures_, leaving, carried_);
    for (size_t i = carried_; i-- > 0;) w_.Contribute(op_.operands[i], leaving[i]);
  }

 private:
  Region WriteBody(std::vector<Presence>& joined) {
    Region region;
    w_.Open(region);
    w_.DefinesPrimal(body_);
    region.args.push_back(w_.AddValue({ElementType::kI32, {}}, "index"));
    const std::vector<ValueId> carried(body_.args.begin() + 1, body_.args.end());
    const std::vector<Type> types = Concatenated(TypesOf(carried), TypesOf(captures_));
    const std::vector<Slot> args = w_.MakeArgs(region, Specs(types, presence_));
    SetSlots(captures_, args, carried_);
    for (size_t i = carried_; i-- > 0;) w_.Contribute(body_.yields[i], args[i]);
    ReverseRegion(r_, body_, r_.plan.Inside(planned_, PresencePlan::kBody));
    const std::vector<Slot> yields = Concatenated(SlotsOf(carried), SlotsOf(captures_));
    JoinInto(joined, PresenceOf(yields));
    w_.Yield(region, yields, joined, types);
    w_.Close(region);
    return region;
  }

  Region& body_;
  std::vector<Presence> presence_;
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
      WriteVjp(reversal.writer, op);
    }
  }
  reversal.writer.InsertKinks(primal);
}

}  // namespace simgrad::sim
