// Emission of the operations without control flow, and of events.
#include <algorithm>
#include <cmath>

#include "precision/hash.h"
#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/identity.h"
#include "sim/backend/cpu/machine.h"
#include "sim/op/op_info.h"

namespace simgrad::sim::cpu {
namespace {

using enum OpCode;

int FormatIndex(Format format) { return static_cast<int>(format); }
int CarrierIndex(Carrier carrier) { return static_cast<int>(carrier); }

template <class Kernel>
struct Row {
  OpCode code;
  Kernel kernel;
};

constexpr Row<Arithmetic2> kArithmetic2s[] = {{kAdd, kAdd2}, {kSub, kSub2}, {kMul, kMul2},
                                              {kDiv, kDiv2}, {kMod, kMod2}, {kAtan2, kAtan22},
                                              {kPow, kPow2}};
constexpr Row<Arithmetic1> kArithmetic1s[] = {
    {kSqrt, kSqrt1},       {kExp, kExp1},          {kLog, kLog1}, {kLog1p, kLog1p1},
    {kExpm1, kExpm11},     {kSin, kSin1},          {kCos, kCos1}, {kTanh, kTanh1},
    {kSigmoid, kSigmoid1}, {kSoftplus, kSoftplus1}};
constexpr Row<Move1> kMove1s[] = {
    {kNeg, kNeg1}, {kAbs, kAbs1}, {kSign, kSign1}, {kFloor, kFloor1}, {kRound, kRound1}};
constexpr Row<Integer2> kInteger2s[] = {{kAdd, kIntAdd}, {kSub, kIntSub}, {kMul, kIntMul},
                                        {kDiv, kIntDiv}, {kMod, kIntMod}, {kMin, kMin2},
                                        {kMax, kMax2}};

template <class Kernel, size_t kRows>
std::optional<Kernel> Find(const Row<Kernel> (&rows)[kRows], OpCode code) {
  for (const Row<Kernel>& row : rows) {
    if (row.code == code) return row.kernel;
  }
  return std::nullopt;
}

}  // namespace

void Compiler::CompileOp(const Op& op) {
  if (op.code == kWhile) return CompileWhile(op);
  if (op.code == kFor) return CompileFor(op);
  if (op.code == kEvent) return CompileEvent(op);
  if (op.code == kTape) return CompileTape(op);
  if (op.code == kAccumulate) return CompileAccumulate(op);
  if (op.code == kWhileVjp) return CompileWhileVjp(op);
  if (op.code == kForVjp) return CompileForVjp(op);
  if (IsIdentity(*program_, op)) {
    Alias(op.results[0], At(op.operands[0]));
  } else {
    CompilePlain(op);
  }
  const bool deferred = scope_->deferred.contains(static_cast<int32_t>(op.results[0]));
  if (look_[Index(op.results[0])] && !deferred) EmitLook(op, op.results[0]);
}

void Compiler::CompilePlain(const Op& op) {
  if (op.code == kLiteral) return CompileLiteral(op);
  if (op.code == kCast) return CompileCast(op);
  if (op.code == kConvert) return CompileConvert(op);
  if (op.code == kSelect) return CompileSelect(op);
  if (op.code == kMerge || op.code == kMerge2) return CompileMerge(op);
  const OpClass op_class = InfoOf(op.code).op_class;
  if (op_class == OpClass::kShape) return CompileRows(op);
  if (op_class == OpClass::kReduction) return CompileReduction(op);
  CompileElementwise(op);
}

void Compiler::CompilePair(const Op& op, const Kernel kernels[3]) {
  const int32_t a = At(op.operands[0]);
  const int32_t b = At(op.operands[1]);
  const bool uniform_a = SlotAt(a).uniform;
  const bool uniform_b = SlotAt(b).uniform;
  const bool invariant = hoists_ && SlotAt(a).invariant && SlotAt(b).invariant;
  const int32_t to = Result(op.results[0], uniform_a && uniform_b, invariant);
  int kind = 0;
  if (uniform_a != uniform_b) kind = static_cast<int>(uniform_b ? Operands2::kVU : Operands2::kUV);
  Emit(Make(kernels[kind], to, a, b), to);
}

void Compiler::CompileUnary(const Op& op, Kernel kernel) {
  const int32_t a = At(op.operands[0]);
  const Slot from = SlotAt(a);
  const int32_t to = Result(op.results[0], from.uniform, hoists_ && from.invariant);
  Emit(Make(kernel, to, a), to);
}

// A comparison without a reader: only an adjoint would read it, and it computes it again.
bool Compiler::IsUnread(const Op& op) const {
  return InfoOf(op.code).op_class == OpClass::kCompare && uses_.count[Index(op.results[0])] == 0;
}

// Its result is counted among the bytes of a record, and that is all.
void Compiler::NameUnread(const Op& op) {
  const Value& value = ValueAt(op.results[0]);
  bool uniform = true;
  bool invariant = hoists_;
  for (ValueId id : op.operands) {
    // An operand that is computed with its reader has no slot, and varies.
    const Slot operand = At(id) >= 0 ? SlotAt(At(id)) : Slot{};
    uniform = uniform && operand.uniform;
    invariant = invariant && operand.invariant;
  }
  const int32_t slot =
      NewSlot(CarrierOfValue(value), Format::kF64, CountOf(op.results[0]), uniform, invariant);
  Alias(op.results[0], slot);
  if (Stored(op.results[0]) && !invariant) Store(*scope_->plan, slot);
}

void Compiler::CompileElementwise(const Op& op) {
  const Carrier carrier = CarrierOfValue(ValueAt(op.operands[0]));
  const OpClass op_class = InfoOf(op.code).op_class;
  if (op_class == OpClass::kCompare) {
    if (IsUnread(op)) return NameUnread(op);
    if (CompileIsNegative(op)) return;
    const int comparison = static_cast<int>(op.code) - static_cast<int>(kLt);
    return CompilePair(op, kernels_.compare[comparison][CarrierIndex(carrier)]);
  }
  if (op.code == kAnd) return CompilePair(op, kernels_.logical_and);
  if (op.code == kOr) return CompilePair(op, kernels_.logical_or);
  if (op.code == kNot) return CompileUnary(op, kernels_.logical_not);
  if (op.code == kNeg && DeferNegation(op)) return;
  if (op.code == kMax && CompileRelu(op)) return;
  if (const auto move = Find(kMove1s, op.code)) {
    return CompileUnary(op, kernels_.move1[*move][CarrierIndex(carrier)]);
  }
  const bool real = carrier == Carrier::kF32 || carrier == Carrier::kF64;
  if (real && op.code != kMin && op.code != kMax) return CompileArithmetic(op);
  const auto pair = Find(kInteger2s, op.code);
  if (!pair) HasNoRule(op.code, "cpu");
  CompilePair(op, kernels_.move2[*pair][CarrierIndex(carrier)]);
}

void Compiler::CompileArithmetic(const Op& op) {
  const int format = FormatIndex(*ValueAt(op.results[0]).format);
  if (const auto function = Find(kArithmetic1s, op.code)) {
    return CompileUnary(op, kernels_.arithmetic1[*function][format]);
  }
  if (const auto pair = Find(kArithmetic2s, op.code)) {
    if (op.code == kMul) {
      const bool invariant =
          hoists_ && SlotAt(At(op.operands[0])).invariant && SlotAt(At(op.operands[1])).invariant;
      if (DeferProduct(op, invariant)) return;
    }
    if ((op.code == kAdd || op.code == kSub) && CompileMultiplyAdd(op)) return;
    return CompilePair(op, kernels_.arithmetic2[*pair][format]);
  }
  if (op.code != kFma) HasNoRule(op.code, "cpu");
  bool uniform = true;
  bool invariant = hoists_;
  for (ValueId id : op.operands) {
    uniform = uniform && SlotAt(At(id)).uniform;
    invariant = invariant && SlotAt(At(id)).invariant;
  }
  int32_t slot[3];
  for (size_t k = 0; k < 3; ++k) {
    slot[k] = uniform ? At(op.operands[k]) : Varying(At(op.operands[k]));
  }
  const int32_t to = Result(op.results[0], uniform, invariant);
  Emit(Make(kernels_.fma[format], to, slot[0], slot[1], slot[2]), to);
}

void Compiler::CompileSelect(const Op& op) {
  if (SkipSelect(op)) return;
  int32_t condition = At(op.operands[0]);
  int32_t b = At(op.operands[1]);
  int32_t c = At(op.operands[2]);
  const bool uniform = SlotAt(condition).uniform && SlotAt(b).uniform && SlotAt(c).uniform;
  const bool invariant =
      hoists_ && SlotAt(condition).invariant && SlotAt(b).invariant && SlotAt(c).invariant;
  int kind = 0;
  if (!uniform) {
    condition = Varying(condition);
    kind = (SlotAt(b).uniform ? 2 : 0) + (SlotAt(c).uniform ? 1 : 0);
  }
  const int32_t to = Result(op.results[0], uniform, invariant);
  // Operands3: VVV, VVU, VUV, VUU.
  Emit(Make(kernels_.select[SizeIndex(SlotAt(to).carrier)][kind], to, condition, b, c), to);
}

void Compiler::CompileMerge(const Op& op) {
  int32_t slot[4] = {-1, -1, -1, -1};
  const auto negated = scope_->deferred.find(static_cast<int32_t>(op.operands[1]));
  const bool negates = op.code == kMerge && negated != scope_->deferred.end();
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const bool skips = negates && k == 1;
    slot[k] = Varying(At(skips ? negated->second->operands[0] : op.operands[k]));
  }
  const auto test =
      op.code == kMerge ? TakeComparison(op.operands[2], SlotAt(slot[0]).carrier) : std::nullopt;
  if (negates) ReadNow(negated);
  const int32_t to = Result(op.results[0], false, false);
  const int format = FormatIndex(*ValueAt(op.results[0]).format);
  const int sign = negates ? 1 : 0;
  if (test) {
    const Kernel kernel = kernels_.merge_where[test->greater ? 1 : 0][format][sign];
    return Emit(Make(kernel, to, slot[0], slot[1], test->x, test->bound), to);
  }
  const Kernel kernel = op.code == kMerge ? kernels_.merge[format][sign] : kernels_.merge2[format];
  Emit(Make(kernel, to, slot[0], slot[1], slot[2], slot[3]), to);
}

void Compiler::CompileLiteral(const Op& op) {
  const int32_t to = Result(op.results[0], true, true);
  plan_->literals.push_back({to, op.attributes.literal});
}

void Compiler::EmitCast(int32_t from, int32_t to, Overflow overflow) {
  const int source = SlotAt(from).carrier == Carrier::kF64 ? 1 : 0;
  const int format = FormatIndex(SlotAt(to).format);
  const int saturates = overflow == Overflow::kSaturate ? 1 : 0;
  Emit(Make(kernels_.cast[source][format][saturates], to, from), to);
}

void Compiler::CompileCast(const Op& op) {
  const int32_t from = At(op.operands[0]);
  const Slot source = SlotAt(from);
  const int32_t to = Result(op.results[0], source.uniform, hoists_ && source.invariant);
  EmitCast(from, to, OverflowInForce(program_->policy, op));
  if (options_.diagnostics || of_adjoint_) EmitRange(op, op.operands[0], from);
}

void Compiler::CompileConvert(const Op& op) {
  const Carrier from = CarrierOfValue(ValueAt(op.operands[0]));
  const Carrier to = CarrierOfValue(ValueAt(op.results[0]));
  const bool from_real = from == Carrier::kF32 || from == Carrier::kF64;
  const bool to_real = to == Carrier::kF32 || to == Carrier::kF64;
  const int first_integer = CarrierIndex(Carrier::kI32);
  if (to_real) {
    const int format = FormatIndex(*ValueAt(op.results[0]).format);
    return CompileUnary(op, kernels_.int_to_real[CarrierIndex(from) - first_integer][format]);
  }
  const int target = CarrierIndex(to) - first_integer;
  if (from_real) return CompileUnary(op, kernels_.real_to_int[from == Carrier::kF64][target]);
  CompileUnary(op, kernels_.int_to_int[CarrierIndex(from) - first_integer][target]);
}

void Compiler::AddExtra(ValueId id, TestedPair& pair) {
  const std::vector<ValueId> operands = MarginOperands(*scope_, id);
  if (operands.empty()) return;
  if (operands.size() == 3) {
    pair.extras.push_back({At(operands[0]), At(operands[1])});
    pair.extras.push_back({At(operands[2]), -1});
  } else {
    for (ValueId operand : operands) pair.extras.push_back({At(operand), -1});
  }
}

TestedPair Compiler::MakeTest(ValueId a, ValueId b) {
  TestedPair pair;
  pair.a = At(a);
  pair.b = At(b);
  pair.real = IsReal(a);
  if (!pair.real) return pair;
  pair.format = *ValueAt(a).format;
  AddExtra(a, pair);
  AddExtra(b, pair);
  for (const TestedPair::Extra& extra : pair.extras) {
    const bool same = SlotAt(extra.slot).carrier == SlotAt(pair.a).carrier && extra.factor < 0;
    pair.plain_extras = pair.plain_extras && same;
  }
  return pair;
}

void Compiler::CompileEvent(const Op& op) {
  const ValueId a = op.operands[0];
  const ValueId b = op.operands[1];
  const int comparison = static_cast<int>(op.attributes.comparison);
  int32_t left = At(a);
  const int32_t right = At(b);
  // The decision belongs to the instance, so its result varies.
  if (SlotAt(left).uniform && SlotAt(right).uniform) left = Varying(left);
  int kind = 0;
  if (SlotAt(left).uniform != SlotAt(right).uniform) {
    kind = static_cast<int>(SlotAt(right).uniform ? Operands2::kVU : Operands2::kUV);
  }
  const Kernel kernel = kernels_.compare[comparison][CarrierIndex(SlotAt(left).carrier)][kind];
  const int32_t to = Result(op.results[0], false, false);
  const bool guarded = op.operands.size() > 2;
  int32_t guard = -1;
  if (guarded) {
    guard = Varying(At(op.operands[2]));
    const int32_t unguarded = Scratch(Carrier::kBool, Format::kF64, SlotAt(to).count, false, false);
    Emit(Make(kernel, unguarded, left, right), unguarded);
    Emit(Make(kernels_.logical_and[0], to, unguarded, guard), to);
  } else {
    Emit(Make(kernel, to, left, right), to);
  }
  if (!options_.diagnostics || !of_step_) return;
  EventPlan& plan = plan_->events.emplace_back();
  plan.site = op.attributes.site;
  plan.site_hash = precision::Fnv1a64(op.attributes.site);
  plan.site_index = site_numbers_[op.attributes.site];
  plan.elements = SlotAt(to).count;
  plan.tested = MakeTest(a, b);
  plan.guard = guard;
  plan.result = to;
  Instruction instruction;
  instruction.run = RunEvent;
  instruction.plan = &plan;
  scope_->plan->code.push_back(instruction);
}

}  // namespace simgrad::sim::cpu
