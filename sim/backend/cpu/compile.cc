#include "sim/backend/cpu/compile.h"

#include <algorithm>
#include <functional>

#include "precision/hash.h"
#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/identity.h"
#include "sim/backend/cpu/machine.h"
#include "sim/program/compared_sum.h"
#include "sim/program/detect.h"
#include "sim/program/step_work.h"

namespace simgrad::sim::cpu {
namespace {

using ValueVisitor = std::function<void(ValueId)>;

// Every value that an operation reads, those of its regions included.
void ForEachUse(const Op& op, const ValueVisitor& visit) {
  for (ValueId id : op.operands) {
    if (id != ValueId::kNone) visit(id);
  }
  if (op.attributes.where != ValueId::kNone) visit(op.attributes.where);
  for (const Region& region : op.regions) {
    for (const Op& nested : region.ops) ForEachUse(nested, visit);
    for (ValueId id : region.yields) {
      if (id != ValueId::kNone) visit(id);
    }
  }
}

}  // namespace

Carrier CarrierOfValue(const Value& value) {
  switch (value.type.element) {
    case ElementType::kReal:
      return *value.format == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
    case ElementType::kI32:
      return Carrier::kI32;
    case ElementType::kI64:
      return Carrier::kI64;
    case ElementType::kBool:
      break;
  }
  return Carrier::kBool;
}

Compiler::Compiler(std::shared_ptr<const NumericalProgram> program,
                   const std::vector<InputForm>& inputs, const KernelTable& kernels,
                   const PlanOptions& options, WorkMeter meter)
    : program_(std::move(program)),
      kernels_(kernels),
      options_(options),
      plan_(std::make_unique<Plan>()),
      meter_(std::move(meter)),
      uses_(AnalyzeUses(*program_, options, meter_)) {
  plan_->program = program_;
  plan_->kernels = &kernels;
  const Program& p = program_->program;
  plan_->slot_of.assign(p.values.size(), -1);
  producer_.assign(p.values.size(), nullptr);
  zero_literal_.resize(p.values.size());
  region_of_.assign(p.values.size(), nullptr);
  for (const Site& site : program_->sites) site_numbers_[site.name] = site.number;
  look_.assign(p.values.size(), false);
  if (options.looks) {
    PassBudget visits([this] {
      meter_.Add(PassBudget::kBetweenPolls);
      return false;
    });
    look_ = LooksOf(*program_, options.adjoint ? LooksIn::kAll : LooksIn::kForward, &visits);
  }
  CompileInputs(inputs);
}

std::unique_ptr<Plan> Compiler::Run() {
  CompileForward();
  if (options_.adjoint) CompileAdjoint();
  plan_->varying_bytes = pool_.size();
  return std::move(plan_);
}

void Compiler::CompileInputs(const std::vector<InputForm>& inputs) {
  const Program& p = program_->program;
  plan_->inputs.resize(p.inputs.size());
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const Input& input = p.inputs[i];
    const Value& value = ValueAt(input.value);
    InputPlan& plan = plan_->inputs[i];
    const bool state = input.kind == InputKind::kState;
    const bool changes = input.kind == InputKind::kStep || inputs[i].per_step;
    plan.per_step = changes;
    if (!state && uses_.count[Index(input.value)] == 0) continue;
    const bool uniform = !state && !inputs[i].per_instance;
    plan.used = uses_.count[Index(input.value)] > 0;
    const bool real = value.type.element == ElementType::kReal;
    plan_->checks_step_inputs |= plan.used && changes && real;
    plan.slot = NewSlot(CarrierOfValue(value), value.format.value_or(Format::kF64),
                        CountOf(input.value), uniform, !state && !changes);
    PlaceForever(plan.slot);
    Alias(input.value, plan.slot);
    if (state) plan_->states.push_back({plan.slot, -1, Stored(input.value)});
  }
}

RegionPlan& Compiler::BeginRecord(RegionPlan& plan) {
  plan.id = plan_->regions++;
  return plan;
}

void Compiler::CompileForward() {
  const Program& p = program_->program;
  if (p.HasInitial()) {
    Scope scope;
    OpenScope(scope, p.initial, BeginRecord(plan_->initial));
    CompileOps(scope);
    std::set<int32_t> taken;
    for (ValueId id : p.initial.yields) {
      plan_->initial_yields.push_back(OwnedYield(scope, id, taken, false));
    }
    CloseScope(scope);
  }
  {
    hoists_ = true;
    of_step_ = true;
    Scope scope;
    OpenScope(scope, p.step, BeginRecord(plan_->step));
    // The other inputs stand where they are read from, in the adjoint too.
    for (int32_t k : p.InputsOf(InputKind::kState)) {
      region_of_[Index(p.inputs[static_cast<size_t>(k)].value)] = &plan_->step;
    }
    CompileOps(scope);
    CompileStateYields(scope);
    for (const Export& exported : p.exports) {
      if (!options_.adjoint) plan_->exports.push_back(At(exported.value));
    }
    if (program_->stage_cost != ValueId::kNone) {
      plan_->stage_cost = Varying(At(program_->stage_cost));
    }
    CloseScope(scope);
    hoists_ = false;
    of_step_ = false;
  }
  if (const Region* terminal = TerminalOf(*program_)) {
    Scope scope;
    OpenScope(scope, *terminal, BeginRecord(plan_->terminal));
    for (ValueId id : terminal->args) {
      const Value& value = ValueAt(id);
      const int32_t slot = NewSlot(CarrierOfValue(value), value.format.value_or(Format::kF64),
                                   CountOf(id), false, false);
      PlaceForever(slot);
      Alias(id, slot);
      plan_->terminal_args.push_back(slot);
    }
    CompileOps(scope);
    plan_->terminal_yield = Varying(At(terminal->yields[0]));
    CloseScope(scope);
  }
}

void Compiler::CompileStateYields(Scope& scope) {
  std::set<int32_t> taken;
  for (size_t k = 0; k < plan_->states.size(); ++k) {
    StatePlan& state = plan_->states[k];
    state.yield = OwnedYield(scope, scope.region->yields[k], taken, state.stored);
    // State and yield exchange their buffers after every step: no other value may come to own one.
    if (SlotAt(state.yield).offset >= 0) {
      scope.kept.erase(state.yield);
      MakeExclusive(state.yield);
    }
  }
}

void Compiler::OpenScope(Scope& scope, const Region& region, RegionPlan& plan) {
  scope.region = &region;
  scope.plan = &plan;
  plan.work = OwnWork(program_->program, region);
  scope.outer = scope_;
  scope_ = &scope;
  for (ValueId id : region.args) {
    if (id != ValueId::kNone) region_of_[Index(id)] = &plan;
  }
  for (size_t i = 0; i < region.ops.size(); ++i) {
    const Op& op = region.ops[i];
    meter_.Add(kPassWork);
    for (ValueId id : op.results) {
      if (id == ValueId::kNone) continue;
      producer_[Index(id)] = &op;
      region_of_[Index(id)] = &plan;
    }
    for (ValueId id : op.operands) scope.readers.push_back({id, i});
  }
  std::sort(scope.readers.begin(), scope.readers.end());
  const auto twice = std::unique(scope.readers.begin(), scope.readers.end());
  scope.readers.erase(twice, scope.readers.end());
  scope.last_used.resize(region.ops.size());
  if (!options_.diagnostics) return;
  // What a margin reads counts as a use, so that it is computed by itself.
  const auto use = [&](ValueId id) {
    for (ValueId operand : MarginOperands(scope, id)) ++uses_.count[Index(operand)];
  };
  for (const Op& op : region.ops) {
    if (op.code != OpCode::kEvent) continue;
    use(op.operands[0]);
    use(op.operands[1]);
  }
  // Both sides of the test, and the entry threshold where there is one; an export more costs
  // little.
  if (scope.is_test) {
    for (ValueId id : region.yields) use(id);
  }
}

// The operands of the addition in this region that made a compared value.
std::vector<ValueId> Compiler::MarginOperands(const Scope& scope, ValueId id) const {
  if (!options_.diagnostics || !of_step_) return {};
  const Op* sum = ComparedSum(program_->program, id, [&](ValueId value) {
    return region_of_[Index(value)] == scope.plan ? producer_[Index(value)] : nullptr;
  });
  return sum != nullptr ? sum->operands : std::vector<ValueId>{};
}

void Compiler::CountLastUses(Scope& scope, const std::vector<int32_t>& pinned) {
  // By root value of this region: the last operation that reads it; pinned ones are never freed.
  std::unordered_map<int32_t, size_t> last;
  const Region& region = *scope.region;
  for (size_t i = 0; i < region.ops.size(); ++i) {
    const Op& op = region.ops[i];
    meter_.Add(kPassWork);
    const auto use = [&](ValueId id) {
      const int32_t root = uses_.root[Index(id)];
      if (region_of_[static_cast<size_t>(root)] == scope.plan) last[root] = i;
    };
    for (ValueId id : op.results) {
      if (id != ValueId::kNone) use(id);
    }
    ForEachUse(op, use);
    if (op.code == OpCode::kEvent && options_.diagnostics) {
      for (size_t k = 0; k < 2; ++k) {
        for (ValueId id : MarginOperands(scope, op.operands[k])) use(id);
      }
    }
  }
  for (int32_t root : pinned) last.erase(root);
  for (const auto& [root, at] : last) scope.last_used[at].push_back(root);
  scope.last_at = std::move(last);
}

void Compiler::CompileOps(Scope& scope) {
  const Region& region = *scope.region;
  std::vector<int32_t> pinned;
  const auto pin = [&](ValueId id) {
    if (id == ValueId::kNone) return;
    pinned.push_back(uses_.root[Index(id)]);
    if (!scope.is_test) return;
    for (ValueId operand : MarginOperands(scope, id)) {
      pinned.push_back(uses_.root[Index(operand)]);
    }
  };
  for (ValueId id : region.yields) pin(id);
  if (&region == &program_->program.step) {
    for (const Export& exported : program_->program.exports) pin(exported.value);
    pin(program_->stage_cost);
  }
  CountLastUses(scope, pinned);
  for (scope.at = 0; scope.at < region.ops.size(); ++scope.at) {
    meter_.Add(4 * kPassWork);
    CompileOp(region.ops[scope.at]);
    for (int32_t slot : scope.scratch) {
      pool_.Return(SlotAt(slot).offset, SlotAt(slot).bytes_per_lane());
    }
    scope.scratch.clear();
    for (int32_t root : scope.last_used[scope.at]) {
      const int32_t slot = plan_->slot_of[static_cast<size_t>(root)];
      if (slot < 0 || scope.kept.erase(slot) == 0) continue;
      pool_.Return(SlotAt(slot).offset, SlotAt(slot).bytes_per_lane());
    }
  }
}

// Copies and looks are in the code alone.
void Compiler::CountCode(RegionPlan& plan) {
  int64_t rows = 0;
  for (const Instruction& i : plan.code) rows += i.count;
  plan.work = std::max(plan.work, rows);
}

void Compiler::CloseScope(Scope& scope) {
  CountCode(*scope.plan);
  for (int32_t slot : scope.kept) {
    if (SlotAt(slot).uniform || SlotAt(slot).invariant || SlotAt(slot).offset < 0) continue;
    pool_.Return(SlotAt(slot).offset, SlotAt(slot).bytes_per_lane());
  }
  for (int32_t slot : scope.scratch) {
    pool_.Return(SlotAt(slot).offset, SlotAt(slot).bytes_per_lane());
  }
  scope_ = scope.outer;
}

Instruction Compiler::Make(Kernel kernel, int32_t to, int32_t a, int32_t b, int32_t c, int32_t d) {
  Instruction made;
  made.run = kernel;
  made.to = to;
  made.a = a;
  made.b = b;
  made.c = c;
  made.d = d;
  made.count = static_cast<int32_t>(SlotAt(to).count);
  made.uniform = SlotAt(to).uniform ? 1 : 0;
  return made;
}

void Compiler::Emit(Instruction instruction, int32_t result) {
  const Slot& slot = SlotAt(result);
  if (slot.invariant) {
    (slot.uniform ? plan_->per_run : plan_->per_block).push_back(instruction);
  } else {
    NoteProduct(instruction);
    scope_->plan->code.push_back(instruction);
  }
}

// Products near zero leave behind what they saw of a row (Lanes::magnitudes). Between them nothing
// of this region writes to it, because a slot is written by one operation.
void Compiler::NoteProduct(Instruction& instruction) {
  for (const auto& kernels : kernels_.arithmetic2[kMul2]) {
    for (size_t kind = 0; kind < 3; ++kind) {
      if (instruction.run != kernels[kind] || instruction.count != 1) continue;
      const bool turned = static_cast<Operands2>(kind) == Operands2::kUV;
      const int32_t x = turned ? instruction.b : instruction.a;
      instruction.magnitudes_known = !scope_->magnitudes_known.insert(x).second;
      scope_->magnitudes_known.insert(instruction.to);
      return;
    }
  }
}

void Compiler::EmitLook(const Op& op, ValueId id) {
  const int32_t slot = At(id);
  Instruction look;
  look.run = RunLook;
  look.a = slot;
  look.count = static_cast<int32_t>(SlotAt(slot).count);
  look.uniform = SlotAt(slot).uniform ? 1 : 0;
  if (op.attributes.where != ValueId::kNone) look.b = At(op.attributes.where);
  scope_->plan->code.push_back(look);
}

void Compiler::EmitRange(const Op& op, ValueId source, int32_t source_slot) {
  const Format to = *ValueAt(op.results[0]).format;
  if (!precision::Narrows(*ValueAt(source).format, to)) return;
  RangePlan& plan = plan_->ranges.emplace_back();
  plan.source = source_slot;
  plan.result = At(op.results[0]);
  plan.to = to;
  plan.role = op.role;
  if (SlotAt(plan.result).invariant) plan.invariant = plan_->invariant_ranges++;
  if (op.attributes.where != ValueId::kNone) plan.where = At(op.attributes.where);
  Instruction instruction;
  instruction.run = RunRange;
  instruction.plan = &plan;
  scope_->plan->code.push_back(instruction);
}

std::unique_ptr<Plan> CompilePlan(std::shared_ptr<const NumericalProgram> program,
                                  const std::vector<InputForm>& inputs, const KernelTable& kernels,
                                  const PlanOptions& options, WorkMeter meter) {
  return Compiler(std::move(program), inputs, kernels, options, std::move(meter)).Run();
}

}  // namespace simgrad::sim::cpu
