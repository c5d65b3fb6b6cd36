// Emission of what the adjoint reads from records, and of what it adds to gradients.
#include <algorithm>

#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/identity.h"
#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {

void Compiler::CompileTape(const Op& op) {
  const ValueId result = op.results[0];
  const size_t root = static_cast<size_t>(uses_.root[Index(op.attributes.primal)]);
  const auto& recomputed = uses_.recomputed[root];
  const int32_t read = recomputed ? Recompute(op.attributes.primal, *recomputed) : ReadRecord(root);
  const Slot from = SlotAt(read);
  Alias(result, read);
  if (!IsReal(result)) return;
  const Format to = *ValueAt(result).format;
  const Overflow overflow = OverflowInForce(program_->policy, op);
  const Format declared = *ValueAt(op.attributes.primal).format;
  const bool same =
      !precision::Narrows(declared, to) && SameCarrier(to, declared) && overflow == Overflow::kIeee;
  if (!same) {
    const int32_t rounded = Result(result, from.uniform, hoists_ && from.invariant);
    EmitCast(read, rounded, overflow);
    EmitRange(op, op.attributes.primal, read);
  }
  if (look_[Index(result)]) EmitLook(op, result);
}

// Returns the slot of a value of the primal in the frame that is being reversed.
int32_t Compiler::ReadRecord(size_t root) {
  const int32_t recorded = plan_->slot_of[root];
  const Slot from = SlotAt(recorded);
  if (from.invariant || region_of_[root] == nullptr) return recorded;
  RegionPlan& region = *region_of_[root];
  const auto [place, fresh] = taped_.try_emplace({&region, recorded}, region.taped.size());
  if (fresh) region.taped.push_back(recorded);
  TapePlan& plan = plan_->tapes.emplace_back();
  plan.region = region.id;
  plan.place = static_cast<int32_t>(place->second);
  plan.result = SlotLike(recorded, from.uniform, false);
  PlaceTemporary(plan.result);
  Instruction instruction;
  instruction.run = RunTape;
  instruction.plan = &plan;
  scope_->plan->code.push_back(instruction);
  return plan.result;
}

int32_t Compiler::Recompute(ValueId result, const Recomputed& from) {
  const int32_t a = ReadRecord(static_cast<size_t>(uses_.root[Index(from.a)]));
  const int32_t b = ReadRecord(static_cast<size_t>(uses_.root[Index(from.b)]));
  const int carrier = static_cast<int>(CarrierOfValue(ValueAt(from.a)));
  const Value& value = ValueAt(result);
  const int32_t to = NewSlot(CarrierOfValue(value), value.format.value_or(Format::kF64),
                             CountOf(result), SlotAt(a).uniform && SlotAt(b).uniform, false);
  PlaceTemporary(to);
  int kind = 0;
  if (SlotAt(a).uniform != SlotAt(b).uniform) {
    kind = static_cast<int>(SlotAt(b).uniform ? Operands2::kVU : Operands2::kUV);
  }
  const int comparison = static_cast<int>(from.code) - static_cast<int>(OpCode::kLt);
  const Kernel kernel = from.code == OpCode::kMin   ? kernels_.move2[kMin2][carrier][kind]
                        : from.code == OpCode::kMax ? kernels_.move2[kMax2][carrier][kind]
                                                    : kernels_.compare[comparison][carrier][kind];
  Emit(Make(kernel, to, a, b), to);
  return to;
}

// Whether one mask with an entry for each element says where the contribution is present.
bool Compiler::IsMaskedLikeValue(const Op& accumulate) const {
  const std::vector<ValueId>& operands = accumulate.operands;
  const ValueId mask = operands.size() > 1 ? operands[1] : ValueId::kNone;
  const ValueId where = accumulate.attributes.where;
  if (where != ValueId::kNone && where != mask) return false;
  return mask == ValueId::kNone || CountOf(mask) == CountOf(operands[0]);
}

// Whether a contribution can be computed while it is added: it is in the format of the sums.
bool Compiler::TakesDeferred(const Op& accumulate, ValueId value) const {
  return IsMaskedLikeValue(accumulate) &&
         *ValueAt(value).format == program_->policy[precision::Role::kGradient].format;
}

// select(mask, x, 0) is replaced by x if its only reader adds it to a gradient under the same mask.
bool Compiler::SkipSelect(const Op& op) {
  if (!of_adjoint_ || !IsReal(op.results[0]) || !IsZeroLiteral(op.operands[2])) return false;
  const Op* reader = OnlyRealReader(op.results[0]);
  if (reader != nullptr && reader->code == OpCode::kNeg)
    reader = OnlyRealReader(reader->results[0]);
  if (reader == nullptr || reader->code != OpCode::kAccumulate || reader->operands.size() < 2) {
    return false;
  }
  const ValueId mask = reader->operands[1];
  if (mask == ValueId::kNone || !IsMaskedLikeValue(*reader)) return false;
  if (uses_.root[Index(mask)] != uses_.root[Index(op.operands[0])]) return false;
  const int32_t x = At(op.operands[1]);
  if (x < 0 || SlotAt(x).uniform) return false;
  KeepOperands(op, *reader);
  Alias(op.results[0], x);
  return true;
}

// Fuses two contributions of one row, each times a number.
bool Compiler::JoinAccumulate(const AccumulatePlan& plan) {
  std::vector<Instruction>& code = scope_->plan->code;
  if (code.empty() || code.back().run != RunAccumulate) return false;
  AccumulatePlan& before = plan_->accumulates[plan_->accumulates.size() - 2];
  if (code.back().plan != &before || before.second_input >= 0) return false;
  if (before.factor < 0 || plan.factor < 0 || before.input == plan.input) return false;
  if (before.by >= 0) return false;
  if (!SlotAt(before.factor).uniform || !SlotAt(plan.factor).uniform) return false;
  if (before.value != plan.value || before.mask != plan.mask) return false;
  if (before.where >= 0 || plan.where >= 0) return false;
  if (plan.mask >= 0 && SlotAt(plan.mask).count != SlotAt(plan.value).count) return false;
  before.second_input = plan.input;
  before.second_factor = plan.factor;
  return true;
}

// Fuses the accumulation just written with the product of rows that it adds, if nothing else reads
// that product.
void Compiler::FoldProduct(int32_t value) {
  std::vector<Instruction>& code = scope_->plan->code;
  if (code.size() < 2 || code.back().run != RunAccumulate) return;
  AccumulatePlan& plan = plan_->accumulates.back();
  const Instruction& product = code[code.size() - 2];
  const size_t format = static_cast<size_t>(program_->policy[precision::Role::kGradient].format);
  if (product.to != plan.value || product.run != kernels_.arithmetic2[kMul2][format][0]) return;
  const int32_t readers = plan.second_input < 0 ? 1 : 2;
  if (plan.factor < 0 || !SlotAt(plan.factor).uniform) return;
  if (uses_.readers[static_cast<size_t>(value)] != readers) return;
  plan.value = product.a;
  plan.by = product.b;
  plan.magnitudes_known = product.magnitudes_known;
  // An accumulation leaves no magnitudes.
  scope_->magnitudes_known.erase(product.to);
  if (!product.magnitudes_known) scope_->magnitudes_known.erase(product.a);
  code.erase(code.end() - 2);
}

void Compiler::CompileAccumulate(const Op& op) {
  AccumulatePlan& plan = plan_->accumulates.emplace_back();
  plan.input = op.attributes.input;
  const auto deferred = scope_->deferred.find(uses_.root[Index(op.operands[0])]);
  int32_t value = uses_.root[Index(op.operands[0])];
  if (deferred == scope_->deferred.end()) {
    plan.value = Varying(At(op.operands[0]));
  } else {
    const Op& made = *deferred->second;
    plan.negated = made.code == OpCode::kNeg;
    const bool turned = !plan.negated && SlotAt(At(made.operands[0])).uniform;
    value = uses_.root[Index(made.operands[turned ? 1 : 0])];
    plan.value = At(made.operands[turned ? 1 : 0]);
    if (!plan.negated) plan.factor = At(made.operands[turned ? 0 : 1]);
    ReadNow(deferred);
  }
  if (op.operands.size() > 1 && op.operands[1] != ValueId::kNone) {
    plan.mask = Varying(At(op.operands[1]));
  }
  const bool same = op.operands.size() > 1 && op.operands[1] == op.attributes.where;
  if (op.attributes.where != ValueId::kNone && !same) {
    plan.where = Varying(At(op.attributes.where));
  }
  plan.magnitudes_known = scope_->magnitudes_known.contains(plan.value);
  plan.format = program_->policy[precision::Role::kGradient].format;
  plan.carrier = SlotAt(plan.value).carrier;
  plan.rows = SlotAt(plan.value).count;
  plan.uniform_factor = plan.factor >= 0 && SlotAt(plan.factor).uniform;
  if (JoinAccumulate(plan)) {
    plan_->accumulates.pop_back();
  } else {
    Instruction instruction;
    instruction.run = RunAccumulate;
    instruction.plan = &plan;
    scope_->plan->code.push_back(instruction);
  }
  FoldProduct(value);
}

}  // namespace simgrad::sim::cpu
