#include "sim/plan/make_plan.h"

#include <utility>

#include "precision/hash.h"
#include "sim/program/detect.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

class PlanMaker {
 public:
  PlanMaker(const NumericalProgram& numerical, Records records)
      : numerical_(numerical),
        program_(numerical.program),
        records_(records),
        states_(program_.InputsOf(InputKind::kState)),
        looks_(LooksOf(numerical, LooksIn::kForward)) {}

  Plan Make() && {
    AddFields();
    AddSites();
    MakeStart();
    MakeStep();
    MakeFinish();
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
      const RecordedSite recorded = {precision::Fnv1a64(site.name), site.elements,
                                     plan_.EventElements()};
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
          maker.FieldView(static_cast<int32_t>(k), program_[input.value].type.shape, input.name));
      maker.Bind(input.value, views.back());
    }
    return views;
  }

  std::vector<View> ExportViews(RegionMaker& maker) {
    std::vector<View> views;
    for (size_t k = 0; k < program_.exports.size(); ++k) {
      const Export& item = program_.exports[k];
      views.push_back(maker.FieldView(ExportField(k), program_[item.value].type.shape, item.name));
    }
    return views;
  }

  static std::vector<View> ViewsOf(RegionMaker& maker, const std::vector<ValueId>& ids) {
    std::vector<View> views;
    for (ValueId id : ids) views.push_back(maker.ViewOf(id));
    return views;
  }

  void LookAtAll(RegionMaker& maker, const std::vector<ValueId>& ids) {
    for (ValueId id : ids) {
      if (program_[id].type.element == ElementType::kReal) {
        maker.Look(maker.ViewOf(id), ValueId::kNone);
      }
    }
  }

  // The cost with a stage or terminal cost added; it is looked at.
  Register AddedCost(RegionMaker& maker, const View& cost, ValueId value) {
    const std::string_view format = precision::FormatName(CostFormat());
    Register before = maker.One(cost);
    Register added = maker.One(maker.ViewOf(value));
    Register sum;
    if (program_[value].format == CostFormat()) {
      sum = maker.Call(Cat("add_", format), CostCarrier(), {before, added}, "cost");
    } else {
      if (cost.carrier == Carrier::kF32) before = maker.Call("widen_f32", Carrier::kF64, {before});
      if (CarrierOf(program_[value]) == Carrier::kF32) {
        added = maker.Call("widen_f32", Carrier::kF64, {added});
      }
      sum = maker.Call(Cat("add_wide_", format), Carrier::kF64, {before, added}, "cost");
      if (CostCarrier() == Carrier::kF32) sum = maker.Call("narrow_f64", Carrier::kF32, {sum});
    }
    maker.Look({CostCarrier(), {}, sum, kNoBuffer, {}, {}}, ValueId::kNone);
    return sum;
  }

  void MakeStart() {
    plan_.start.name = "start";
    RegionMaker maker(numerical_, looks_, plan_, plan_.start,
                      {.decides = false, .looks = records_.looks, .ranges = false});
    const std::vector<View> states = BindStates(maker);
    if (!program_.HasInitial()) return;
    maker.Run(program_.initial);
    LookAtAll(maker, program_.initial.yields);
    maker.CopyAtOnce(states, ViewsOf(maker, program_.initial.yields));
  }

  void MakeStep() {
    plan_.step.name = "step";
    RegionMaker maker(numerical_, looks_, plan_, plan_.step, records_);
    const std::vector<View> states = BindStates(maker);
    const std::vector<View> exports = ExportViews(maker);
    maker.Run(program_.step);
    LookAtAll(maker, program_.step.yields);
    View cost;
    Register next_cost = kNoRegister;
    if (numerical_.stage_cost != ValueId::kNone) {
      cost = maker.FieldView(CostField(), {}, "cost");
      next_cost = AddedCost(maker, cost, numerical_.stage_cost);
    }
    maker.Commit([&] {
      // Exports first: they may be states of z[t].
      for (size_t k = 0; k < exports.size(); ++k) {
        maker.Copy(exports[k], maker.ViewOf(program_.exports[k].value));
      }
      maker.CopyAtOnce(states, ViewsOf(maker, program_.step.yields));
      if (next_cost != kNoRegister) maker.StoreOne(cost, next_cost);
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
    RegionMaker maker(numerical_, looks_, plan_, plan_.finish,
                      {.decides = false, .looks = records_.looks, .ranges = false});
    std::vector<View> args = BindStates(maker);
    for (const View& view : ExportViews(maker)) args.push_back(view);
    for (size_t k = 0; k < args.size(); ++k) maker.Bind(terminal->args[k], args[k]);
    maker.Run(*terminal);
    const View cost = maker.FieldView(CostField(), {}, "cost");
    const Register next = AddedCost(maker, cost, terminal->yields[0]);
    maker.Commit([&] { maker.StoreOne(cost, next); });
  }

  const NumericalProgram& numerical_;
  const Program& program_;
  const Records records_;
  const std::vector<int32_t> states_;
  const std::vector<bool> looks_;
  Plan plan_;
};

}  // namespace

Plan MakePlan(const NumericalProgram& numerical, Records records) {
  return PlanMaker(numerical, records).Make();
}

}  // namespace simgrad::sim::plan
