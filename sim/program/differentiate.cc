#include "sim/program/differentiate.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sim/op/vjp_rule.h"
#include "sim/program/activity.h"
#include "sim/program/adjoint_writer.h"
#include "sim/program/loop_captures.h"
#include "sim/program/loop_vjp.h"
#include "sim/program/presence_plan.h"

namespace simgrad::sim {
namespace {

std::vector<Presence> PresenceIf(const std::vector<bool>& sent, size_t count) {
  std::vector<Presence> result(count, Presence::kNever);
  for (size_t i = 0; i < count && i < sent.size(); ++i) {
    if (sent[i]) result[i] = Presence::kAlways;
  }
  return result;
}

class Differentiator {
 public:
  Differentiator(Program& program, ValueId stage_cost, Region* terminal, const AdjointSpec& spec,
                 PassBudget& budget)
      : program_(program),
        stage_cost_(stage_cost),
        terminal_(terminal),
        spec_(spec),
        writer_(program, ActiveValues(program, terminal, spec, budget), budget),
        captures_(
            RegionsOf(program, terminal), [this](ValueId id) { return Takes(id); }, budget),
        plan_(program, writer_, captures_, budget),
        reversal_{writer_, captures_, plan_} {
    writer_.SetOrders(&plan_.orders());
    for (int32_t index : program.InputsOf(InputKind::kState)) {
      states_.push_back(program.inputs[static_cast<size_t>(index)].value);
    }
    for (const Export& exported : program.exports) exports_.push_back(exported.value);
  }

  Adjoint Run() {
    // Every region is read before the first kink is written into one.
    const PresencePlan::RegionShape& step = plan_.Read(program_.step, EnteringStep(), states_);
    const PresencePlan::RegionShape& initial =
        plan_.Read(program_.initial, program_.initial.yields, {});
    Adjoint adjoint;
    std::vector<Presence> entering, exported;
    adjoint.terminal = Terminal(entering, exported);
    const std::vector<Presence> none(exports_.size(), Presence::kNever);
    // What `last` yields starts the fixpoint of what `inner` takes and yields.
    std::vector<Presence> carried;
    const PresencePlan::ScopeId last = plan_.Once(step, SentToStep(entering, exported), &carried);
    const PresencePlan::ScopeId inner = plan_.Repeated(step, SentToStep(carried, none), carried);
    adjoint.inner = Step(carried, none, carried, inner);
    if (entering != carried || exported != none) {
      adjoint.last = Step(entering, exported, carried, last);
    }
    if (!program_.HasInitial()) return adjoint;
    // Without a step, what `terminal` yields comes to `initial` as it is.
    for (size_t i = 0; i < carried.size(); ++i) carried[i] = Join(carried[i], entering[i]);
    adjoint.initial = Initial(carried, plan_.Once(initial, carried, nullptr));
    return adjoint;
  }

 private:
  static std::vector<const Region*> RegionsOf(const Program& program, const Region* terminal) {
    std::vector<const Region*> regions = {&program.initial, &program.step};
    if (terminal != nullptr) regions.push_back(terminal);
    return regions;
  }

  bool Takes(ValueId id) const { return writer_.IsActive(id) && !writer_.IsInput(id); }

  // What cotangents are contributed to before the operations of `step` are reversed.
  std::vector<ValueId> EnteringStep() const {
    std::vector<ValueId> values = program_.step.yields;
    for (int twice = 0; twice < 2; ++twice) {
      values.insert(values.end(), exports_.begin(), exports_.end());
    }
    values.insert(values.end(), states_.begin(), states_.end());
    if (stage_cost_ != ValueId::kNone) values.push_back(stage_cost_);
    return values;
  }

  // Their presence, in the same order.
  std::vector<Presence> SentToStep(const std::vector<Presence>& next,
                                   const std::vector<Presence>& exported) const {
    std::vector<Presence> sent = next;
    sent.insert(sent.end(), exported.begin(), exported.end());
    for (const Presence each : PresenceIf(spec_.trajectory_export, exports_.size())) {
      sent.push_back(each);
    }
    for (const Presence each : PresenceIf(spec_.trajectory_state, states_.size())) {
      sent.push_back(each);
    }
    if (stage_cost_ != ValueId::kNone) sent.push_back(Presence::kAlways);
    return sent;
  }

  // Of the regions that `terminal` yields to: states twice, as both cotangents may be sent.
  PresencePlan::ScopeId PlanTerminal() {
    std::vector<ValueId> entered;
    for (int twice = 0; twice < 2; ++twice) {
      const auto args = terminal_->args.begin();
      entered.insert(entered.end(), args, args + static_cast<int64_t>(states_.size()));
    }
    entered.push_back(terminal_->yields[0]);
    std::vector<Presence> sent = PresenceIf(spec_.final_state, states_.size());
    for (const Presence each : PresenceIf(spec_.trajectory_state, states_.size())) {
      sent.push_back(each);
    }
    sent.push_back(Presence::kAlways);
    return plan_.Once(plan_.Read(*terminal_, entered, {}), sent, nullptr);
  }

  std::vector<Type> TypesOf(const std::vector<ValueId>& values) const {
    std::vector<Type> types;
    for (ValueId id : values) types.push_back(program_[id].type);
    return types;
  }

  Region Terminal(std::vector<Presence>& states, std::vector<Presence>& exported) {
    Region region;
    writer_.Open(region);
    if (terminal_ != nullptr) writer_.DefinesPrimal(*terminal_);
    ValueId seed = ValueId::kNone;
    if (terminal_ != nullptr) {
      seed = writer_.AddValue({ElementType::kReal, {}}, "seed");
      region.args.push_back(seed);
    }
    std::vector<SlotSpec> specs;
    AddSpecs(specs, states_, PresenceIf(spec_.final_state, states_.size()));
    AddSpecs(specs, states_, PresenceIf(spec_.trajectory_state, states_.size()));
    const std::vector<Slot> sent = writer_.MakeArgs(region, specs);
    const size_t n = states_.size();
    std::vector<Slot> yields(n + exports_.size());
    if (terminal_ == nullptr) {
      for (size_t i = 0; i < n; ++i)
        yields[i] = writer_.Merged(sent[i], sent[n + i], Role::kAdjoint);
    } else {
      for (size_t i = 0; i < n; ++i) writer_.Contribute(terminal_->args[i], sent[i]);
      for (size_t i = 0; i < n; ++i) writer_.Contribute(terminal_->args[i], sent[n + i]);
      writer_.Contribute(terminal_->yields[0], {seed, Mask::Always()});
      ReverseRegion(reversal_, *terminal_, PlanTerminal());
      for (size_t i = 0; i < yields.size(); ++i) yields[i] = writer_.SlotOf(terminal_->args[i]);
    }
    std::vector<Presence> presence;
    for (const Slot& slot : yields) presence.push_back(slot.presence());
    writer_.Yield(region, yields, presence, YieldTypes());
    states.assign(presence.begin(), presence.begin() + static_cast<int64_t>(n));
    exported.assign(presence.begin() + static_cast<int64_t>(n), presence.end());
    writer_.Close(region);
    return region;
  }

  std::vector<Type> YieldTypes() const {
    std::vector<Type> types = TypesOf(states_);
    for (const Type& type : TypesOf(exports_)) types.push_back(type);
    return types;
  }

  void AddSpecs(std::vector<SlotSpec>& specs, const std::vector<ValueId>& values,
                const std::vector<Presence>& presence) const {
    for (size_t i = 0; i < values.size(); ++i) {
      const bool real = program_[values[i]].type.element == ElementType::kReal;
      specs.push_back({program_[values[i]].type, real ? presence[i] : Presence::kNever});
    }
  }

  // `carried`: what it yields.
  Region Step(const std::vector<Presence>& next, const std::vector<Presence>& exported,
              const std::vector<Presence>& carried, PresencePlan::ScopeId scope) {
    Region region;
    writer_.Open(region);
    writer_.DefinesPrimal(program_.step);
    ValueId seed = ValueId::kNone;
    if (stage_cost_ != ValueId::kNone) {
      seed = writer_.AddValue({ElementType::kReal, {}}, "seed");
      region.args.push_back(seed);
    }
    std::vector<SlotSpec> specs;
    AddSpecs(specs, states_, next);
    AddSpecs(specs, exports_, exported);
    AddSpecs(specs, exports_, PresenceIf(spec_.trajectory_export, exports_.size()));
    AddSpecs(specs, states_, PresenceIf(spec_.trajectory_state, states_.size()));
    const std::vector<Slot> args = writer_.MakeArgs(region, specs);
    const size_t n = states_.size();
    const size_t e = exports_.size();
    for (size_t i = 0; i < n; ++i) writer_.Contribute(states_[i], args[n + 2 * e + i]);
    for (size_t i = 0; i < e; ++i) writer_.Contribute(exports_[i], args[n + e + i]);
    for (size_t i = 0; i < e; ++i) writer_.Contribute(exports_[i], args[n + i]);
    for (size_t i = n; i-- > 0;) writer_.Contribute(program_.step.yields[i], args[i]);
    if (seed != ValueId::kNone) writer_.Contribute(stage_cost_, {seed, Mask::Always()});
    ReverseRegion(reversal_, program_.step, scope);
    std::vector<Slot> yields;
    for (size_t i = 0; i < n; ++i) {
      yields.push_back(writer_.SlotOf(states_[i]));
      if (Join(carried[i], yields.back().presence()) != carried[i]) {
        throw PassBudget::Ended{absl::InternalError("the adjoint of a step differs from its plan")};
      }
    }
    writer_.Yield(region, yields, carried, TypesOf(states_));
    writer_.Close(region);
    return region;
  }

  Region Initial(const std::vector<Presence>& carried, PresencePlan::ScopeId scope) {
    Region region;
    writer_.Open(region);
    writer_.DefinesPrimal(program_.initial);
    std::vector<SlotSpec> specs;
    AddSpecs(specs, states_, carried);
    const std::vector<Slot> args = writer_.MakeArgs(region, specs);
    for (size_t i = states_.size(); i-- > 0;) {
      writer_.Contribute(program_.initial.yields[i], args[i]);
    }
    ReverseRegion(reversal_, program_.initial, scope);
    std::vector<Slot> yields;
    std::vector<Presence> presence;
    for (ValueId state : states_) {
      yields.push_back(writer_.SlotOf(state));
      presence.push_back(yields.back().presence());
    }
    writer_.Yield(region, yields, presence, TypesOf(states_));
    writer_.Close(region);
    return region;
  }

  Program& program_;
  ValueId stage_cost_;
  Region* terminal_;
  const AdjointSpec& spec_;
  AdjointWriter writer_;
  LoopCaptures captures_;
  PresencePlan plan_;
  Reversal reversal_;
  std::vector<ValueId> states_;
  std::vector<ValueId> exports_;
};

}  // namespace

void BringIntoObjective(Program& program, Region& region, PassBudget& budget) {
  std::unordered_set<size_t> keep;  // inputs other than states, literals, objective results
  for (const Input& input : program.inputs) {
    if (input.kind != InputKind::kState) keep.insert(Index(input.value));
  }
  for (const Op& op : region.ops) {
    budget.Visit();
    if (op.role != Role::kObjective && op.code != OpCode::kLiteral) continue;
    for (ValueId id : op.results) keep.insert(Index(id));
  }
  std::vector<Op> ops;
  std::unordered_map<size_t, ValueId> casts;
  for (Op& op : region.ops) {
    for (ValueId& id : op.operands) {
      budget.Visit();
      const bool real = program[id].type.element == ElementType::kReal;
      const bool is_cast = op.code == OpCode::kCast;
      if (op.role != Role::kObjective || !real || is_cast || keep.count(Index(id)) != 0) continue;
      ValueId& brought = casts.try_emplace(Index(id), ValueId::kNone).first->second;
      if (brought == ValueId::kNone) {
        Op cast;
        cast.code = OpCode::kCast;
        cast.role = Role::kObjective;
        cast.label = op.label;
        cast.operands = {id};
        const Value source = program[id];
        brought = program.AddValue(source.type, source.name);
        cast.results = {brought};
        budget.WroteValue(source);
        budget.WroteOp(cast);
        ops.push_back(std::move(cast));
      }
      id = brought;
    }
    ops.push_back(std::move(op));
  }
  region.ops = std::move(ops);
}

Adjoint Differentiate(Program& program, ValueId stage_cost, Region* terminal,
                      const AdjointSpec& spec, PassBudget& budget) {
  return Differentiator(program, stage_cost, terminal, spec, budget).Run();
}

}  // namespace simgrad::sim
