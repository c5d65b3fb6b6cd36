#include "sim/program/differentiate.h"

#include <numeric>
#include <utility>
#include <vector>

#include "sim/program/activity.h"
#include "sim/program/adjoint_writer.h"
#include "sim/program/loop.h"
#include "sim/program/loop_captures.h"
#include "sim/program/loop_vjp.h"
#include "sim/program/presence_plan.h"
#include "sim/program/read_order.h"
#include "sim/program/told.h"

namespace simgrad::sim {
namespace {

// A cotangent that a region of the adjoint takes: what it is contributed to, and where it is
// present.
struct Entry {
  ValueId to;
  Presence presence;
};
using Entries = std::vector<Entry>;

// The values that entries contribute to; behind them the cost, if there is one, for its seed.
std::vector<ValueId> TargetsOf(const Entries& entries, ValueId cost) {
  std::vector<ValueId> targets;
  for (const Entry& entry : entries) targets.push_back(entry.to);
  if (cost != ValueId::kNone) targets.push_back(cost);
  return targets;
}

std::vector<Presence> PresenceOf(const Entries& entries, ValueId cost) {
  std::vector<Presence> presence;
  for (const Entry& entry : entries) presence.push_back(entry.presence);
  if (cost != ValueId::kNone) presence.push_back(Presence::kAlways);
  return presence;
}

// The presence of each slot that a region yields.
std::vector<Presence> PresenceOf(const SlotList& yields) {
  std::vector<Presence> presence;
  for (size_t k = 0; k < yields.size(); ++k) {
    presence.push_back(yields.cotangents[k] == ValueId::kNone ? Presence::kNever
                       : yields.masks[k] == ValueId::kNone    ? Presence::kAlways
                                                              : Presence::kMasked);
  }
  return presence;
}

std::vector<Presence> Sent(const std::vector<bool>& sent, size_t count) {
  std::vector<Presence> presence(count, Presence::kNever);
  for (size_t i = 0; i < count && i < sent.size(); ++i) {
    if (sent[i]) presence[i] = Presence::kAlways;
  }
  return presence;
}

// Places of a list, in the order in which what stands there is contributed.
std::vector<size_t> Range(size_t first, size_t count) {
  std::vector<size_t> range(count);
  std::iota(range.begin(), range.end(), first);
  return range;
}

class Differentiator {
 public:
  Differentiator(NumericalProgram numerical, const AdjointSpec& spec, PassBudget& budget)
      : numerical_(std::move(numerical)),
        spec_(spec),
        terminal_(TerminalIn(program_)),
        writer_(program_, ActiveValues(program_, terminal_, spec, budget), budget),
        takes_(Taken()),
        captures_({&program_.initial, &program_.step, terminal_}, takes_, budget),
        shapes_(program_, takes_, captures_, budget),
        plan_(budget),
        order_(plan_, budget),
        reversal_{writer_, captures_, plan_, order_, spec.loops, numerical_.policy} {
    writer_.SetOrder(&order_);
    writer_.SetTells(Tells(numerical_.policy));
    for (int32_t index : program_.InputsOf(InputKind::kState)) {
      states_.push_back(program_.inputs[static_cast<size_t>(index)].value);
    }
    for (const Export& exported : program_.exports) exports_.push_back(exported.value);
  }

  NumericalProgram Run() {
    const size_t n = states_.size();
    const ValueId cost = numerical_.stage_cost;
    const std::vector<Presence> none(exports_.size(), Presence::kNever);
    // Every region is read before the first kink is written into one.
    const Entries any = StepEntries(std::vector<Presence>(n, Presence::kNever), none);
    const presence::RegionShape step = shapes_.Read(program_.step, TargetsOf(any, cost), states_);
    const presence::RegionShape initial =
        shapes_.Read(program_.initial, program_.initial.yields, {});
    const presence::RegionShape terminal =
        terminal_ == nullptr
            ? presence::RegionShape()
            : shapes_.Read(*terminal_, TargetsOf(SentEntries(terminal_->args), TerminalCost()), {});
    Adjoint& adjoint = numerical_.adjoint.emplace();
    adjoint.terminal = terminal_ == nullptr ? Passed() : Terminal(terminal);
    const std::vector<Presence> left = PresenceOf(SlotList::Of(adjoint.terminal.yields));
    const std::vector<Presence> entering(left.begin(), left.begin() + static_cast<int64_t>(n));
    const std::vector<Presence> exported(left.begin() + static_cast<int64_t>(n), left.end());
    // The yields of `last` start the fixpoint of what `inner` takes and yields.
    std::vector<Presence> carried;
    const Entries of_last = StepEntries(entering, exported);
    const auto last = plan_.Once(step, PresenceOf(of_last, cost), &carried);
    const auto inner = plan_.Repeated(step, PresenceOf(StepEntries(carried, none), cost), carried);
    adjoint.inner = Step(StepEntries(carried, none), carried, inner);
    if (entering != carried || exported != none) adjoint.last = Step(of_last, carried, last);
    if (program_.HasInitial()) {
      // Without a step, what `terminal` yields comes to `initial` as it is.
      JoinInto(carried, entering);
      adjoint.initial = Initial(carried, plan_.Once(initial, carried, nullptr));
    }
    adjoint.told = writer_.TakeTold();
    numerical_.adjoint_spec = spec_;
    return std::move(numerical_);
  }

 private:
  static Region* TerminalIn(Program& program) {
    const bool has = !program.objectives.empty() && program.objectives.front().HasTerminal();
    return has ? &program.objectives.front().terminal : nullptr;
  }

  // By value, whether its cotangents are summed; those of inputs other than states are accumulated.
  std::vector<bool> Taken() const {
    std::vector<bool> takes(program_.values.size());
    for (size_t i = 0; i < takes.size(); ++i) {
      const ValueId id = static_cast<ValueId>(i);
      takes[i] = writer_.IsActive(id) && !writer_.IsInput(id);
    }
    return takes;
  }

  // A value that is not real has no cotangent.
  void Add(Entries& entries, const std::vector<ValueId>& values,
           const std::vector<Presence>& presence) const {
    for (size_t i = 0; i < presence.size(); ++i) {
      entries.push_back({values[i], program_.IsReal(values[i]) ? presence[i] : Presence::kNever});
    }
  }

  // In the order of the arguments (numerical_program.h).
  Entries StepEntries(const std::vector<Presence>& next,
                      const std::vector<Presence>& exported) const {
    Entries entries;
    Add(entries, program_.step.yields, next);
    Add(entries, exports_, exported);
    Add(entries, exports_, Sent(spec_.trajectory_export, exports_.size()));
    Add(entries, states_, Sent(spec_.trajectory_state, states_.size()));
    return entries;
  }

  // The cotangents that the caller sent for z[T], of both kinds.
  Entries SentEntries(const std::vector<ValueId>& states) const {
    Entries entries;
    Add(entries, states, Sent(spec_.final_state, states_.size()));
    Add(entries, states, Sent(spec_.trajectory_state, states_.size()));
    return entries;
  }

  ValueId TerminalCost() const { return terminal_->yields[0]; }

  std::vector<Type> TypesOf(const std::vector<ValueId>& values) const {
    std::vector<Type> types;
    for (ValueId id : values) types.push_back(program_[id].type);
    return types;
  }

  std::vector<Slot> MakeArgs(Region& region, const Entries& entries) {
    std::vector<SlotSpec> specs;
    for (const Entry& entry : entries) specs.push_back({program_[entry.to].type, entry.presence});
    return writer_.MakeArgs(region, specs);
  }

  // Without a terminal cost.
  Region Passed() {
    Region region;
    writer_.Open(region);
    const std::vector<Slot> sent = MakeArgs(region, SentEntries(states_));
    std::vector<ValueId> left = states_;
    left.insert(left.end(), exports_.begin(), exports_.end());
    std::vector<Slot> yields(left.size());
    for (size_t i = 0; i < states_.size(); ++i) {
      yields[i] = writer_.Merged(sent[i], sent[states_.size() + i], Role::kAdjoint);
    }
    Yield(region, yields, nullptr, left);
    return region;
  }

  Region Terminal(const presence::RegionShape& shape) {
    const Entries entries = SentEntries(terminal_->args);
    const auto scope = plan_.Once(shape, PresenceOf(entries, TerminalCost()), nullptr);
    return Reversed(*terminal_, TerminalCost(), entries, Range(0, entries.size()), scope,
                    terminal_->args, nullptr);
  }

  // `carried`: what it yields.
  Region Step(const Entries& entries, const std::vector<Presence>& carried,
              PresencePlan::ScopeId scope) {
    const size_t n = states_.size();
    const size_t e = exports_.size();
    std::vector<size_t> order = Range(n + 2 * e, n);
    for (const size_t first : {n + e, n}) {
      for (size_t i : Range(first, e)) order.push_back(i);
    }
    for (size_t i = n; i-- > 0;) order.push_back(i);
    return Reversed(program_.step, numerical_.stage_cost, entries, order, scope, states_, &carried);
  }

  Region Initial(const std::vector<Presence>& carried, PresencePlan::ScopeId scope) {
    Entries entries;
    Add(entries, program_.initial.yields, carried);
    std::vector<size_t> order = Range(0, states_.size());
    return Reversed(program_.initial, ValueId::kNone, entries, {order.rbegin(), order.rend()},
                    scope, states_, nullptr);
  }

  // The adjoint of `primal`, entered as `entries` say and, where there is a cost, with its seed.
  // `order`: that in which the entries are contributed. `left`: whose cotangents are yielded, and
  // `declared` the presence they are brought to, else their own.
  Region Reversed(Region& primal, ValueId cost, const Entries& entries,
                  const std::vector<size_t>& order, PresencePlan::ScopeId scope,
                  const std::vector<ValueId>& left, const std::vector<Presence>* declared) {
    Region region;
    writer_.Open(region);
    writer_.DefinesPrimal(primal);
    if (cost != ValueId::kNone) {
      region.args.push_back(writer_.AddValue({ElementType::kReal, {}}, "seed"));
    }
    const std::vector<Slot> args = MakeArgs(region, entries);
    for (size_t i : order) writer_.Contribute(entries[i].to, args[i]);
    if (cost != ValueId::kNone) writer_.Contribute(cost, {region.args[0], Mask::Always()});
    ReverseRegion(reversal_, primal, scope);
    std::vector<Slot> yields;
    for (ValueId id : left) yields.push_back(writer_.SlotOf(id));
    Yield(region, yields, declared, left);
    return region;
  }

  void Yield(Region& region, const std::vector<Slot>& slots, const std::vector<Presence>* declared,
             const std::vector<ValueId>& left) {
    std::vector<Presence> presence;
    for (const Slot& slot : slots) presence.push_back(slot.presence());
    for (size_t i = 0; declared != nullptr && i < presence.size(); ++i) {
      if (Join((*declared)[i], presence[i]) != (*declared)[i]) {
        throw PassBudget::Ended{absl::InternalError("the adjoint of a step differs from its plan")};
      }
    }
    writer_.Yield(region, slots, declared != nullptr ? *declared : presence, TypesOf(left));
    writer_.Close(region);
  }

  NumericalProgram numerical_;
  Program& program_ = numerical_.program;
  const AdjointSpec& spec_;
  Region* terminal_;  // null: there is no terminal cost
  AdjointWriter writer_;
  std::vector<bool> takes_;
  LoopCaptures captures_;
  presence::ShapeReader shapes_;
  PresencePlan plan_;
  ReadOrder order_;
  Reversal reversal_;
  std::vector<ValueId> states_;
  std::vector<ValueId> exports_;
};

}  // namespace

NumericalProgram Differentiate(NumericalProgram numerical, const AdjointSpec& spec,
                               PassBudget& budget) {
  return Differentiator(std::move(numerical), spec, budget).Run();
}

}  // namespace simgrad::sim
