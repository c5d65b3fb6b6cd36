#include "sim/plan/make_plan.h"

#include <algorithm>
#include <utility>

#include "precision/hash.h"
#include "sim/plan/fuse.h"
#include "sim/plan/invariants.h"
#include "sim/plan/outer_products.h"
#include "sim/plan/place.h"
#include "sim/plan/region_maker.h"
#include "sim/program/detect.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

class PlanMaker {
 public:
  PlanMaker(const NumericalProgram& numerical, Records records, WorkMeter& meter,
            WeightGradients weights)
      : numerical_(numerical),
        program_(numerical.program),
        records_(records),
        meter_(meter),
        states_(program_.InputsOf(InputKind::kState)),
        looks_(LooksOf(numerical, numerical.adjoint ? LooksIn::kAll : LooksIn::kForward)),
        tape_(numerical) {
    if (weights == WeightGradients::kFactors) products_ = OuterProductsOf(numerical);
    plan_.outer_products = products_.of_steps;
  }

  Plan Make() && {
    AddFields();
    AddSites();
    MakeStart();
    MakeStep();
    MakeFinish();
    if (numerical_.adjoint) MakeAdjoint();
    return std::move(plan_);
  }

 private:
  bool HasCost() const { return !numerical_.objective.empty(); }
  int32_t ExportField(size_t k) const { return static_cast<int32_t>(states_.size() + k); }
  int32_t CostField() const { return ExportField(program_.exports.size()); }
  const Value& StateValue(size_t k) const {
    return program_[program_.inputs[static_cast<size_t>(states_[k])].value];
  }

  void AddField(FieldKind kind, size_t index, Carrier carrier, int64_t count) {
    plan_.fields.push_back({kind, static_cast<int32_t>(index), carrier, count});
  }

  void AddSites() {
    for (const Site& site : numerical_.sites) {
      const RecordedSite recorded = {
          .hash = HashOfSite(site.name), .elements = site.elements, .chooses = site.chooses};
      (site.kind == SiteKind::kEvent ? plan_.events : plan_.terminations).push_back(recorded);
    }
  }

  void AddFields() {
    for (size_t k = 0; k < states_.size(); ++k) {
      const Value& value = StateValue(k);
      AddField(FieldKind::kState, k, CarrierOf(value), ElementCount(value.type.shape));
    }
    for (size_t k = 0; k < program_.exports.size(); ++k) {
      const Value& value = program_[program_.exports[k].value];
      AddField(FieldKind::kExport, k, CarrierOf(value), ElementCount(value.type.shape));
    }
    if (HasCost()) AddField(FieldKind::kCost, 0, CostCarrier(), 1);
  }

  Format CostFormat() const { return numerical_.policy[Role::kObjective].format; }
  Carrier CostCarrier() const {
    return CostFormat() == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
  }

  std::vector<View> BindStates(RegionMaker& maker) {
    std::vector<View> views;
    for (size_t k = 0; k < states_.size(); ++k) {
      const Input& input = program_.inputs[static_cast<size_t>(states_[k])];
      views.push_back(
          maker.out().Field(static_cast<int32_t>(k), program_[input.value].type.shape, input.name));
      maker.values().Bind(input.value, views.back());
    }
    return views;
  }

  std::vector<View> ExportViews(RegionMaker& maker) {
    std::vector<View> views;
    for (size_t k = 0; k < program_.exports.size(); ++k) {
      const Export& item = program_.exports[k];
      views.push_back(
          maker.out().Field(ExportField(k), program_[item.value].type.shape, item.name));
    }
    return views;
  }

  void LookAtAll(RegionMaker& maker, const std::vector<ValueId>& ids) {
    for (ValueId id : ids) {
      if (program_[id].type.element == ElementType::kReal) {
        maker.Look(maker.values().ViewOf(id), ValueId::kNone);
      }
    }
  }

  // The cost with a stage or terminal cost added; it is looked at.
  Register AddedCost(RegionMaker& maker, const View& cost, ValueId value) {
    const std::string_view format = precision::FormatName(CostFormat());
    Register before = maker.out().One(cost);
    Register added = maker.out().One(maker.values().ViewOf(value));
    Register sum;
    if (program_[value].format == CostFormat()) {
      sum = maker.out().Call(Cat("add_", format), CostCarrier(), {before, added}, "cost");
    } else {
      if (cost.carrier == Carrier::kF32)
        before = maker.out().Call("widen_f32", Carrier::kF64, {before});
      if (CarrierOf(program_[value]) == Carrier::kF32) {
        added = maker.out().Call("widen_f32", Carrier::kF64, {added});
      }
      sum = maker.out().Call(Cat("add_wide_", format), Carrier::kF64, {before, added}, "cost");
      if (CostCarrier() == Carrier::kF32)
        sum = maker.out().Call("narrow_f64", Carrier::kF32, {sum});
    }
    maker.Look(View::Splat(CostCarrier(), {}, sum), ValueId::kNone);
    return sum;
  }

  void MakeStart() {
    plan_.start.name = "start";
    RegionMaker maker(numerical_, looks_, meter_, plan_, plan_.start,
                      {.decides = false, .looks = records_.looks, .ranges = false});
    const std::vector<View> states = BindStates(maker);
    if (!program_.HasInitial()) return;
    maker.Run(program_.initial);
    LookAtAll(maker, program_.initial.yields);
    maker.out().CopyAtOnce(states, maker.values().ViewsOf(program_.initial.yields));
  }

  void MakeStep() {
    plan_.step.name = "step";
    RegionMaker maker(numerical_, looks_, meter_, plan_, plan_.step, records_);
    const Additions additions = records_.ranges ? AdditionsOf(numerical_) : Additions();
    for (const AdditionSite& site : additions.sites) plan_.additions.push_back(site.role);
    plan_.event_margins = records_.decides && program_.level != TestLevel::kDeclared;
    maker.CountAdditions(&additions);
    // The bytes that a replay of the step would put on a tape are counted.
    if (numerical_.adjoint) maker.frames().Use(&tape_, false);
    maker.frames().Push(program_.step);
    const std::vector<View> states = BindStates(maker);
    const std::vector<View> exports = ExportViews(maker);
    maker.Run(program_.step);
    LookAtAll(maker, program_.step.yields);
    View cost;
    Register next_cost = kNoRegister;
    if (numerical_.stage_cost != ValueId::kNone) {
      cost = maker.out().Field(CostField(), {}, "cost");
      next_cost = AddedCost(maker, cost, numerical_.stage_cost);
    }
    const auto copy_exports = [&](bool of_every_step) {
      for (size_t k = 0; k < exports.size(); ++k) {
        if (program_.exports[k].of_every_step != of_every_step) continue;
        maker.out().Copy(exports[k], maker.values().ViewOf(program_.exports[k].value));
      }
    };
    if (std::any_of(program_.exports.begin(), program_.exports.end(),
                    [](const Export& item) { return item.of_every_step; })) {
      maker.out().Commit([&] { copy_exports(true); }, StatementWriter::Committed::kAlways);
    }
    maker.out().Commit([&] {
      copy_exports(false);  // before the states: they may be states of z[t]
      maker.out().CopyAtOnce(states, maker.values().ViewsOf(program_.step.yields));
      if (next_cost != kNoRegister) maker.out().StoreOne(cost, next_cost);
      for (size_t k = 0; k < states.size(); ++k) {
        const Value& value = StateValue(k);
        if (value.type.element == ElementType::kReal) maker.Stored(states[k], *value.format);
      }
    });
  }

  void MakeFinish() {
    plan_.finish.name = "finish";
    const Region* const terminal = TerminalOf(numerical_);
    if (terminal == nullptr) return;
    RegionMaker maker(numerical_, looks_, meter_, plan_, plan_.finish,
                      {.decides = false, .looks = records_.looks, .ranges = false});
    std::vector<View> args = BindStates(maker);
    for (const View& view : ExportViews(maker)) args.push_back(view);
    for (size_t k = 0; k < args.size(); ++k) maker.values().Bind(terminal->args[k], args[k]);
    maker.Run(*terminal);
    const View cost = maker.out().Field(CostField(), {}, "cost");
    const Register next = AddedCost(maker, cost, terminal->yields[0]);
    maker.out().Commit([&] { maker.out().StoreOne(cost, next); });
  }

  // ---- the adjoint ----

  const Adjoint& adjoint() const { return *numerical_.adjoint; }

  // The first that is a value, or none.
  static ValueId FirstOf(std::initializer_list<ValueId> ids) {
    for (ValueId id : ids) {
      if (id != ValueId::kNone) return id;
    }
    return ValueId::kNone;
  }
  static ValueId At(const std::vector<ValueId>& ids, size_t k) {
    return k < ids.size() ? ids[k] : ValueId::kNone;
  }

  // Fields of the cotangents that travel: of states, then of the exports of the last step.
  void AddCotangents() {
    const size_t n = states_.size();
    const size_t lead = numerical_.stage_cost == ValueId::kNone ? 0 : 1;
    const auto add = [&](FieldKind kind, FieldKind mask, size_t k, ValueId id) {
      travels_.push_back(-1);
      if (id == ValueId::kNone) return;
      travels_.back() = static_cast<int32_t>(plan_.fields.size());
      const Value& value = program_[id];
      const int64_t count = ElementCount(value.type.shape);
      AddField(kind, k, CarrierOf(value), count);
      AddField(mask, k, Carrier::kBool, count);
    };
    for (size_t k = 0; k < n; ++k) {
      add(FieldKind::kCotangent, FieldKind::kCotangentMask, k,
          FirstOf({At(adjoint().inner.yields, k), At(adjoint().inner.args, lead + k),
                   At(adjoint().Last().args, lead + k), At(adjoint().terminal.yields, k)}));
    }
    for (size_t k = 0; k < program_.exports.size(); ++k) {
      add(FieldKind::kExportCotangent, FieldKind::kExportCotangentMask, k,
          FirstOf({At(adjoint().Last().args, lead + n + k), At(adjoint().terminal.yields, n + k)}));
    }
  }

  std::vector<Slot> TravellingSlots(RegionMaker& maker) {
    std::vector<Slot> slots;
    for (size_t k = 0; k < travels_.size(); ++k) {
      if (travels_[k] < 0) {
        slots.push_back({});
        continue;
      }
      const bool is_state = k < states_.size();
      const Value& value =
          is_state ? StateValue(k) : program_[program_.exports[k - states_.size()].value];
      slots.push_back(maker.SlotOfFields(travels_[k], travels_[k] + 1, value.type.shape,
                                         is_state ? "cotangent" : "export_cotangent"));
    }
    return slots;
  }

  // A cotangent that the caller sent; absent where none was, or where no region reads it.
  Slot SentSlot(RegionMaker& maker, SentKind kind, size_t index, bool is_sent, ValueId arg) {
    if (!is_sent || arg == ValueId::kNone) return {};
    int32_t number = 0;
    while (number < static_cast<int32_t>(plan_.sent.size()) &&
           (plan_.sent[static_cast<size_t>(number)].kind != kind ||
            plan_.sent[static_cast<size_t>(number)].index != static_cast<int32_t>(index))) {
      ++number;
    }
    if (number == static_cast<int32_t>(plan_.sent.size())) {
      plan_.sent.push_back({kind, static_cast<int32_t>(index)});
    }
    const Value& value = program_[arg];
    return {maker.Sent(number, CarrierOf(value), value.type.shape), {}};
  }

  void BindSeed(RegionMaker& maker, const Region& region, size_t leading) {
    if (leading == 0 || region.args[0] == ValueId::kNone) return;
    const Carrier carrier = CarrierOf(program_[region.args[0]]);
    maker.values().Bind(region.args[0], View::Splat(carrier, {}, maker.Seed(carrier)));
  }

  void MakeAdjoint() {
    AddCotangents();
    MakeReplay();
    MakeReverseTerminal();
    if (adjoint().last) MakeReverse(plan_.reverse_last, "reverse_last", *adjoint().last, true);
    MakeReverse(plan_.reverse, "reverse", adjoint().inner, !adjoint().last);
    MakeReverseInitial();
  }

  void MakeReplay() {
    plan_.replay.name = "replay";
    RegionMaker maker(numerical_, looks_, meter_, plan_, plan_.replay, {});
    maker.frames().Use(&tape_, true);
    maker.frames().Push(program_.step);
    const std::vector<View> states = BindStates(maker);
    for (int32_t input : states_) {
      maker.frames().Keep(program_.inputs[static_cast<size_t>(input)].value, program_.step);
    }
    maker.Run(program_.step);
    maker.out().CopyAtOnce(states, maker.values().ViewsOf(program_.step.yields));
    plan_.replay.frame = maker.frames().Of(program_.step);
  }

  // `takes_exports`: where the exports of the last step have cotangents from the terminal cost.
  void MakeReverse(Function& function, const char* name, const Region& region, bool takes_exports) {
    function.name = name;
    RegionMaker maker(numerical_, looks_, meter_, plan_, function,
                      {.decides = false, .looks = records_.looks, .ranges = records_.ranges});
    maker.frames().Use(&tape_, false);
    maker.frames().SetPrimal(&program_.step);
    maker.GiveFactorsOf(&products_);
    function.frame = function.AddRegister(Carrier::kI64);
    maker.frames().Set(program_.step, function.frame);
    const size_t n = states_.size();
    const size_t e = program_.exports.size();
    const size_t lead = numerical_.stage_cost == ValueId::kNone ? 0 : 1;
    const std::vector<Slot> travelling = TravellingSlots(maker);
    const std::vector<Slot> cotangents(travelling.begin(),
                                       travelling.begin() + static_cast<std::ptrdiff_t>(n));
    std::vector<Slot> args = cotangents;
    for (size_t k = 0; k < e; ++k) args.push_back(takes_exports ? travelling[n + k] : Slot{});
    const AdjointSpec& spec = *numerical_.adjoint_spec;
    for (size_t k = 0; k < e; ++k) {
      args.push_back(SentSlot(maker, SentKind::kTrajectoryExport, k,
                              k < spec.trajectory_export.size() && spec.trajectory_export[k],
                              At(region.args, lead + n + e + k)));
    }
    for (size_t k = 0; k < n; ++k) {
      args.push_back(SentSlot(maker, SentKind::kTrajectoryState, k,
                              k < spec.trajectory_state.size() && spec.trajectory_state[k],
                              At(region.args, lead + n + 2 * e + k)));
    }
    BindSeed(maker, region, lead);
    maker.Reverse(region, lead, args, cotangents);
    for (const Slot& slot : cotangents) maker.Leaves(slot);
  }

  void MakeReverseTerminal() {
    plan_.reverse_terminal.name = "reverse_terminal";
    const Region* terminal = TerminalOf(numerical_);
    const Region& primal = terminal != nullptr ? *terminal : tape_.no_terminal();
    RegionMaker maker(numerical_, looks_, meter_, plan_, plan_.reverse_terminal, {});
    maker.frames().Use(&tape_, true);
    maker.frames().Push(primal);
    std::vector<View> args = BindStates(maker);
    for (const View& view : ExportViews(maker)) args.push_back(view);
    for (int32_t input : states_) {
      maker.frames().Keep(program_.inputs[static_cast<size_t>(input)].value, primal);
    }
    if (terminal != nullptr) {
      for (size_t k = 0; k < args.size(); ++k) maker.values().Bind(terminal->args[k], args[k]);
      maker.frames().KeepArgs(*terminal);
      maker.Run(*terminal);
    }
    maker.frames().Use(&tape_, false);
    maker.SetRecords({.decides = false, .looks = records_.looks, .ranges = records_.ranges});
    maker.frames().SetPrimal(&primal);
    const Region& region = adjoint().terminal;
    const size_t n = states_.size();
    const size_t lead = terminal == nullptr ? 0 : 1;
    const AdjointSpec& spec = *numerical_.adjoint_spec;
    std::vector<Slot> sent;
    for (size_t k = 0; k < n; ++k) {
      sent.push_back(SentSlot(maker, SentKind::kFinalState, k,
                              k < spec.final_state.size() && spec.final_state[k],
                              At(region.args, lead + k)));
    }
    for (size_t k = 0; k < n; ++k) {
      sent.push_back(SentSlot(maker, SentKind::kTrajectoryState, k,
                              k < spec.trajectory_state.size() && spec.trajectory_state[k],
                              At(region.args, lead + n + k)));
    }
    BindSeed(maker, region, lead);
    maker.Reverse(region, lead, sent, TravellingSlots(maker));
  }

  // The cotangents of z[0] become the gradients of the states sent.
  void MakeReverseInitial() {
    plan_.reverse_initial.name = "reverse_initial";
    RegionMaker maker(numerical_, looks_, meter_, plan_, plan_.reverse_initial, {});
    std::vector<Slot> cotangents = TravellingSlots(maker);
    cotangents.resize(states_.size());
    if (program_.HasInitial()) {
      maker.frames().Use(&tape_, true);
      maker.frames().Push(program_.initial);
      BindStates(maker);
      for (int32_t input : states_) {
        maker.frames().Keep(program_.inputs[static_cast<size_t>(input)].value, program_.initial);
      }
      maker.Run(program_.initial);
      maker.frames().Use(&tape_, false);
      maker.SetRecords({.decides = false, .looks = records_.looks, .ranges = false});
      maker.frames().SetPrimal(&program_.initial);
      const Region& region = adjoint().initial;
      std::vector<Slot> yields;
      for (size_t k = 0; k < states_.size(); ++k) {
        yields.push_back(maker.NewSlot({At(region.yields, k)}, "sent_cotangent"));
      }
      maker.Reverse(region, 0, cotangents, yields);
      cotangents = std::move(yields);
    }
    maker.SetRecords({.decides = false, .looks = records_.looks, .ranges = false});
    for (size_t k = 0; k < states_.size(); ++k) {
      const size_t input = static_cast<size_t>(states_[k]);
      if (numerical_.adjoint_spec->wanted[input] && cotangents[k].cotangent.set()) {
        maker.SetGradient(input, cotangents[k]);
      }
    }
  }

  const NumericalProgram& numerical_;
  const Program& program_;
  const Records records_;
  WorkMeter& meter_;
  const std::vector<int32_t> states_;
  const Detection looks_;
  const TapePlan tape_;
  OuterProducts products_;        // none: every weight has cells
  std::vector<int32_t> travels_;  // field of the cotangent by state, then export; -1: none
  Plan plan_;
};

}  // namespace

Plan MakePlan(const NumericalProgram& numerical, Records records, WorkMeter& meter,
              WeightGradients weights) {
  return PlanMaker(numerical, records, meter, weights).Make();
}

Plan PlacedPlan(const NumericalProgram& numerical, Records records,
                const std::vector<bool>& has_steps, const WorkMeter::StopCallback& stop,
                WeightGradients weights) {
  WorkMeter meter(stop);
  Plan made = MarkInvariants(MakePlan(numerical, records, meter, weights), numerical.program,
                             has_steps, meter);
  return Place(Fuse(std::move(made), meter), meter);
}

}  // namespace simgrad::sim::plan
