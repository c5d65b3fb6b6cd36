// Emission of while and for: how slots pass from iteration to iteration.
#include <algorithm>
#include <set>

#include "precision/hash.h"
#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/slot_references.h"

namespace simgrad::sim::cpu {
namespace {

int64_t OperationsOf(const Region& region) {
  int64_t operations = static_cast<int64_t>(region.ops.size());
  for (const Op& op : region.ops) {
    for (const Region& nested : op.regions) operations += OperationsOf(nested);
  }
  return operations;
}

}  // namespace

int32_t Compiler::LoopResult(ValueId id) {
  if (id == ValueId::kNone || uses_.count[Index(id)] == 0) return -1;
  return Result(id, false, false);
}

int32_t Compiler::StoredCopy(Scope& scope, int32_t slot) {
  const int32_t copy = CopyOf(slot);
  Store(*scope.plan, copy);
  if (options_.adjoint) GiveUpPlace(scope, copy);
  return copy;
}

CarriedPlan Compiler::MakeCarried(ValueId operand, ValueId result, int64_t elements, bool stored) {
  CarriedPlan carried;
  const int32_t slot = At(operand);
  const bool fleeting = SlotAt(slot).uniform && !SlotAt(slot).invariant;
  carried.operand = stored && fleeting ? StoredCopy(*scope_, slot) : Varying(slot);
  carried.stored = stored;
  const Slot like = SlotAt(carried.operand);
  carried.count = like.count / std::max<int64_t>(elements, 1);
  carried.lane_bytes = like.lane_bytes();
  carried.argument = NewSlot(like.carrier, like.format, carried.count, false, false);
  carried.result = LoopResult(result);
  return carried;
}

// The slots of varying values from around the loop that its regions read.
std::vector<CapturePlan> Compiler::CapturesOf(const std::vector<const RegionPlan*>& regions,
                                              int32_t first_inside) {
  std::set<int32_t> read;
  for (const RegionPlan* region : regions) CollectReads(*region, read);
  std::vector<CapturePlan> captures;
  for (int32_t slot : read) {
    const Slot from = SlotAt(slot);
    if (from.uniform || (slot >= first_inside && !from.invariant)) continue;
    CapturePlan capture;
    capture.slot = slot;
    capture.narrow = LoopBuffer(from.carrier, from.format, from.count);
    capture.count = from.count;
    capture.lane_bytes = from.lane_bytes();
    captures.push_back(capture);
  }
  return captures;
}

void Compiler::CompileWhile(const Op& op) {
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  const size_t e = static_cast<size_t>(counts.exports);
  const Region& test = op.regions[0];
  const Region& body = op.regions[1];
  WhilePlan& plan = plan_->whiles.emplace_back();
  plan.site = op.attributes.site;
  plan.site_hash = precision::Fnv1a64(plan.site);
  plan.site_index = of_step_ ? site_numbers_[plan.site] : -1;
  plan.max_iter = op.attributes.max_iter;
  plan.operations = OperationsOf(test) + OperationsOf(body);
  plan.cap_first = op.attributes.cap_order == CapOrder::kCapFirst;
  plan.has_entry = op.attributes.has_entry;
  plan.elements = op.attributes.elements;
  plan.record = scope_->plan->loops++;
  loop_of_[static_cast<int32_t>(op.results[0])] = {&plan, nullptr, scope_->plan->id, plan.record};
  for (size_t k = 0; k < c; ++k) {
    const bool stored = Stored(test.args[k]) || Stored(body.args[k]) || Stored(body.yields[k]);
    plan.carried.push_back(MakeCarried(op.operands[k], op.results[k], plan.elements, stored));
    Alias(test.args[k], plan.carried[k].argument);
    Alias(body.args[k], plan.carried[k].argument);
  }
  for (size_t k = c; k < op.operands.size(); ++k) {
    const int32_t operand = At(op.operands[k]);
    const Slot like = SlotAt(operand);
    CapturePlan mapped;
    mapped.mapped_operand = operand;
    mapped.uniform = like.uniform;
    mapped.count = like.count / plan.elements;
    mapped.lane_bytes = like.lane_bytes();
    mapped.slot = NewSlot(like.carrier, like.format, mapped.count, like.uniform, false);
    Alias(test.args[k], mapped.slot);
    Alias(body.args[k + e], mapped.slot);
    plan.captures.push_back(mapped);
  }
  for (size_t k = 0; k < e; ++k) {
    WhilePlan::ExportPlan exported;
    exported.result = LoopResult(op.results[c + k]);
    plan.exports.push_back(exported);
  }
  plan.iterations = LoopResult(op.results[c + e]);
  CompileWhileRegions(op, plan);
  Instruction instruction;
  instruction.run = RunWhile;
  instruction.plan = &plan;
  scope_->plan->code.push_back(instruction);
}

WhilePlan::Decision Compiler::MakeDecision(Comparison comparison, ValueId a, ValueId b) {
  WhilePlan::Decision decision;
  decision.comparison = comparison;
  decision.a = At(a);
  decision.b = At(b);
  if (SlotAt(decision.a).uniform && SlotAt(decision.b).uniform) decision.a = Varying(decision.a);
  const Slot left = SlotAt(decision.a);
  const Slot right = SlotAt(decision.b);
  if (IsReal(a) && !left.uniform && right.uniform) return decision;
  int kind = 0;
  if (left.uniform != right.uniform) {
    kind = static_cast<int>(right.uniform ? Operands2::kVU : Operands2::kUV);
  }
  decision.mask = NewSlot(Carrier::kBool, Format::kF64, 1, false, false);
  PlaceTemporary(decision.mask);
  const Kernel kernel =
      kernels_.compare[static_cast<int>(comparison)][static_cast<int>(left.carrier)][kind];
  Emit(Make(kernel, decision.mask, decision.a, decision.b), decision.mask);
  return decision;
}

void Compiler::CompileWhileRegions(const Op& op, WhilePlan& plan) {
  const Region& test = op.regions[0];
  const Region& body = op.regions[1];
  const int32_t first_inside = static_cast<int32_t>(plan_->slots.size());
  Scope* const around = scope_;
  const size_t first_export = FirstExport(op);
  std::set<int32_t> taken;

  Scope test_scope;
  test_scope.is_test = true;
  OpenScope(test_scope, test, BeginRecord(plan.test));
  CompileOps(test_scope);
  for (size_t k = 0; k < plan.exports.size(); ++k) {
    const ValueId id = test.yields[first_export + k];
    const ValueId argument = body.args[plan.carried.size() + k];
    WhilePlan::ExportPlan& exported = plan.exports[k];
    exported.value = OwnedYield(test_scope, id, taken, Stored(argument));
    exported.count = SlotAt(exported.value).count;
    exported.lane_bytes = SlotAt(exported.value).lane_bytes();
    Alias(argument, exported.value);
  }
  plan.stop = MakeDecision(op.attributes.comparison, test.yields[0], test.yields[1]);
  if (plan.has_entry) {
    plan.entry = MakeDecision(Comparison::kGe, test.yields[0], test.yields[2]);
    plan.entry_tested = MakeTest(test.yields[0], test.yields[2]);
  }
  plan.tested = MakeTest(test.yields[0], test.yields[1]);
  const bool same = plan.stop.a == plan.tested.a && plan.stop.b == plan.tested.b;
  plan.watched = same && plan.stop.mask < 0 && !plan.has_entry && plan.tested.extras.empty() &&
                 SlotAt(plan.stop.a).carrier == Carrier::kF32;
  if (plan.watched) {
    // Normal; and no difference from it is subnormal as a float.
    constexpr int kLeastExponent = -100;
    const int normal = precision::Traits(plan.tested.format).min_exponent;
    plan.least_watched = precision::DoublePowerOfTwo(std::max(normal, kLeastExponent));
  }

  Scope body_scope;
  OpenScope(body_scope, body, BeginRecord(plan.body));
  CompileOps(body_scope);
  taken.clear();
  for (size_t k = 0; k < plan.carried.size(); ++k) {
    CarriedPlan& carried = plan.carried[k];
    carried.yield = OwnedYield(body_scope, body.yields[k], taken, carried.stored);
    MakeExclusive(carried.yield);
  }
  // Buffers that live as long as the loop runs.
  scope_ = around;
  for (CarriedPlan& carried : plan.carried) {
    const Slot like = SlotAt(carried.yield);
    const bool recorded = carried.stored && options_.adjoint;
    if (!recorded) carried.spare = LoopBuffer(like.carrier, like.format, like.count);
  }
  for (CapturePlan& mapped : plan.captures) {
    const Slot like = SlotAt(mapped.slot);
    if (!mapped.uniform) {
      mapped.narrow = LoopBuffer(like.carrier, like.format, like.count);
    }
  }
  std::vector<CapturePlan> captures = CapturesOf({&plan.test, &plan.body}, first_inside);
  for (const CapturePlan& capture : captures) {
    const auto is_argument = [&](const auto& other) { return capture.slot == other; };
    bool argument = false;
    for (const CarriedPlan& carried : plan.carried) argument |= is_argument(carried.argument);
    for (const CapturePlan& mapped : plan.captures) argument |= is_argument(mapped.slot);
    if (!argument) plan.captures.push_back(capture);
  }
  scope_ = &body_scope;
  CloseScope(body_scope);
  CloseScope(test_scope);
}

void Compiler::CompileFor(const Op& op) {
  const Region& body = op.regions[0];
  ForPlan& plan = plan_->fors.emplace_back();
  plan.trips = op.attributes.max_iter;
  plan.record = scope_->plan->loops++;
  if (!op.results.empty()) {
    loop_of_[static_cast<int32_t>(op.results[0])] = {nullptr, &plan, scope_->plan->id, plan.record};
  }
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const bool stored = Stored(body.args[k + 1]) || Stored(body.yields[k]);
    plan.carried.push_back(MakeCarried(op.operands[k], op.results[k], 0, stored));
    Alias(body.args[k + 1], plan.carried[k].argument);
  }
  plan.index = NewSlot(Carrier::kI32, Format::kF64, 1, true, false);
  PlaceForever(plan.index);
  Alias(body.args[0], plan.index);
  Scope* const around = scope_;
  Scope scope;
  OpenScope(scope, body, BeginRecord(plan.body));
  CompileOps(scope);
  std::set<int32_t> taken;
  for (size_t k = 0; k < plan.carried.size(); ++k) {
    CarriedPlan& carried = plan.carried[k];
    carried.yield = OwnedYield(scope, body.yields[k], taken, carried.stored);
    MakeExclusive(carried.yield);
  }
  scope_ = around;
  for (CarriedPlan& carried : plan.carried) {
    const Slot like = SlotAt(carried.yield);
    const bool recorded = carried.stored && options_.adjoint;
    if (!recorded) carried.spare = LoopBuffer(like.carrier, like.format, like.count);
  }
  scope_ = &scope;
  CloseScope(scope);
  Instruction instruction;
  instruction.run = RunFor;
  instruction.plan = &plan;
  scope_->plan->code.push_back(instruction);
}

}  // namespace simgrad::sim::cpu
