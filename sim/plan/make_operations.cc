// Operations whose elements are computed one by one.
#include <cmath>
#include <utility>

#include "precision/rounding.h"
#include "sim/op/op_info.h"
#include "sim/plan/operation_lowering.h"
#include "sim/program/axes.h"
#include "sim/text.h"

namespace simgrad::sim::plan {

using enum OpCode;

void RegionMaker::Operation(const Op& op) {
  LookAtReads(op);
  if (IsTest(op)) return sites_.Decide(op);
  if (op.code == kWhile) return While(op);
  if (op.code == kFor) return For(op);
  if (op.code == kAccumulate) return Accumulate(op);
  if (op.code == kMatmul && products_ != nullptr && products_->unread.contains(&op)) return;
  if (op.code == kWhileVjp) return WhileVjp(op);
  if (op.code == kForVjp) return ForVjp(op);
  if (InfoOf(op.code).lower != nullptr) {
    Lower(op);
  } else {
    ByFamily(op);
  }
  const size_t result = Index_(op.results[0]);
  if (looks_.look[result])
    Look(values_.ViewOf(op.results[0]), op.attributes.where, SeenOf(op.results[0]));
}

void RegionMaker::ByFamily(const Op& op) {
  switch (InfoOf(op.code).op_class) {
    case OpClass::kElementwise:
    case OpClass::kCompare:
    case OpClass::kPredicate:
    case OpClass::kLogic:
    case OpClass::kChoice:
      Elementwise(op);
      break;
    case OpClass::kConstant:
      if (op.code != kLiteral) HasNoRule(op.code, "plan");
      values_.Literal(op);
      break;
    case OpClass::kReduction:
      Reduction(op);
      break;
    case OpClass::kShape:
    case OpClass::kIndexing:
    case OpClass::kLinear:
      HasNoRule(op.code, "plan");
    case OpClass::kPrecision:
      ChangeFormat(op);
      break;
    case OpClass::kAdjoint:
    case OpClass::kControl:
      AdjointOperation(op);
      break;
  }
}

// By the rule of its entry.
void RegionMaker::Lower(const Op& op) {
  OperationLowering lowering(*this, op);
  InfoOf(op.code).lower(lowering);
  lowering.Finish();
}

void RegionMaker::ChangeFormat(const Op& op) {
  if (op.code == kCast) return Cast(op);
  if (op.code == kConvert) return Convert(op);
  if (op.code == kStopGradient) return values_.Bind(op.results[0], values_.ViewOf(op.operands[0]));
  HasNoRule(op.code, "plan");
}

void RegionMaker::AdjointOperation(const Op& op) {
  if (op.code == kMerge || op.code == kMerge2) return Merge(op);
  if (op.code == kTape) return Tape(op);
  HasNoRule(op.code, "plan");
}

void RegionMaker::Elementwise(const Op& op) {
  const Value& result = program_[op.results[0]];
  // A comparison is named by what it compares, every other function by what it gives.
  const OpClass op_class = InfoOf(op.code).op_class;
  const bool compares = op_class == OpClass::kCompare || op_class == OpClass::kPredicate;
  const std::string function =
      Cat(InfoOf(op.code).name, "_", SuffixOf(compares ? program_[op.operands[0]] : result));
  const bool takes_extreme =
      (op.code == kMax || op.code == kMin) && result.type.element == ElementType::kReal;
  const Addition* const addition = additions_ == nullptr ? nullptr : additions_->Of(op.results[0]);
  values_.Define(op, [&](const Read& read) {
    std::vector<Register> operands;
    for (size_t k = 0; k < op.operands.size(); ++k) operands.push_back(read(k));
    if (takes_extreme) return ExtremeOfTwo(op, std::move(operands));
    const Register given = out_.Call(function, CarrierOf(result), operands, result.name);
    if (addition != nullptr) Absorbed(op, *addition, std::move(operands), given);
    return given;
  });
  // A number that is the same for every element is added once and counted for each.
  if (addition != nullptr && values_.ViewOf(op.results[0]).all != kNoRegister) {
    out_.Last().number = ElementCount(result.type.shape);
  }
}

// The larger or the smaller of two reals. Beside a number of the program it takes one instruction or three
// in place of four or five, where the number is no NaN, nor the zero that would win over the other.
Register RegionMaker::ExtremeOfTwo(const Op& op, std::vector<Register> operands) {
  const Value& result = program_[op.results[0]];
  const bool largest = op.code == kMax;
  const auto call = [&](std::string_view function, std::vector<Register> of) {
    return out_.Call(Cat(function, "_", SuffixOf(result)), CarrierOf(result), std::move(of),
                     result.name);
  };
  if (out_.Known(operands[1]) == nullptr) std::swap(operands[0], operands[1]);
  const double* const bound = out_.Known(operands[1]);
  if (bound == nullptr || std::isnan(*bound)) {
    return call(InfoOf(op.code).name, std::move(operands));
  }
  const bool wins_over_zero = *bound == 0 && std::signbit(*bound) != largest;
  if (!wins_over_zero) return call(largest ? "at_least" : "at_most", std::move(operands));
  if (largest) return call("relu", {operands[0]});
  return call("min", std::move(operands));
}

void RegionMaker::Absorbed(const Op& op, const Addition& addition, std::vector<Register> operands,
                           Register sum) {
  const Value& result = program_[op.results[0]];
  const Carrier carrier = CarrierOf(result);
  const std::string_view suffix = SuffixOf(result);
  if (op.code == kSub) operands[1] = out_.Call(Cat("neg_", suffix), carrier, {operands[1]});
  if (op.code == kFma) {
    const Register product = out_.Call(Cat("mul_", suffix), carrier, {operands[0], operands[1]});
    operands = {product, operands[2]};
  }
  Carrier stored = carrier;
  for (const Op* cast : addition.casts) {
    const Value& to = program_[cast->results[0]];
    sum = out_.Call(RoundingFunction(*cast, stored, *to.format), CarrierOf(to), {sum});
    stored = CarrierOf(to);
  }
  operands.push_back(sum);
  if (stored != carrier) {
    for (Register& r : operands) r = out_.Wide(r);
  }
  out_.Emit({.code = Code::kAbsorbed,
             .operands = std::move(operands),
             .number = 1,
             .site = addition.site,
             .role = op.role});
}

// a where its mask holds, plus b where that one does.
void RegionMaker::Merge(const Op& op) {
  const Value& result = program_[op.results[0]];
  const Carrier carrier = CarrierOf(result);
  const std::string add = Cat("add_", SuffixOf(result));
  const std::string select = Cat("select_", SuffixOf(result));
  values_.Define(op, [&](const Read& read) {
    const bool one_mask = op.code == kMerge;  // a, b, mask of b; else a, its mask, b, its mask
    const Register a = read(0);
    const Register b = read(one_mask ? 1 : 2);
    const Register has_b = read(one_mask ? 2 : 3);
    const Register both = out_.Call(select, carrier, {has_b, out_.Call(add, carrier, {a, b}), a});
    if (one_mask) return both;
    const Register zero = out_.Constant(carrier, 0);
    const Register only_b = out_.Call(select, carrier, {has_b, b, zero});
    return out_.Call(select, carrier, {read(1), both, only_b});
  });
}

void RegionMaker::Cast(const Op& op) {
  const Value& from = program_[op.operands[0]];
  Round(op, values_.ViewOf(op.operands[0]), from.format.value_or(Format::kF64),
        program_[op.results[0]]);
}

// "round_f32_bf16_stochastic_saturate"
std::string RegionMaker::RoundingFunction(const Op& op, Carrier from, Format to) const {
  const CastRounding rounding = op.attributes.rounding.value_or(CastRounding::kNearestEven);
  const bool is_nearest = rounding == CastRounding::kNearestEven;
  const bool saturates = OverflowInForce(numerical_.policy, op) == Overflow::kSaturate;
  return Cat("round_", CarrierName(from), "_", precision::FormatName(to), is_nearest ? "" : "_",
             is_nearest ? "" : precision::CastRoundingName(rounding), saturates ? "_saturate" : "");
}

// As Round; every element draws, also those of one number spread over a shape.
void RegionMaker::RoundStochastically(const Op& op, const View& x, Format from, const Value& to) {
  const std::string function = RoundingFunction(op, x.carrier, *to.format);
  const bool counts = records_.ranges && precision::Narrows(from, *to.format);
  const ValueId where = op.attributes.where;
  const Register key = out_.One(values_.ViewOf(op.operands[1]));
  const Register step =
      out_.Call("convert_i32_i64", Carrier::kI64, {out_.One(values_.ViewOf(op.operands[2]))});
  const Register draw = out_.Constant(Carrier::kI64, op.attributes.draw);
  const Register iteration = out_.around().iteration != kNoRegister
                                 ? out_.around().iteration
                                 : out_.Constant(Carrier::kI64, 0);
  const View result = out_.Local(CarrierOf(to), to.type.shape, to.name);
  std::vector<View> views = {x, result};
  if (counts && where != ValueId::kNone) views.push_back(values_.MaskFor(x.shape, where));
  const int64_t count = ElementCount(to.type.shape);
  out_.EachElement(to.type.shape, views, [&](const Read& read, const Places& place) {
    const Register before = read(0);
    const Register element = out_.ElementNumber(place(1), count);
    const Register after =
        out_.Call(function, CarrierOf(to), {before, key, draw, step, iteration, element}, to.name);
    if (counts) {
      std::vector<Register> told = {before, after};
      if (views.size() > 2) told.push_back(read(2));
      out_.Emit({.code = Code::kRange,
                 .operands = std::move(told),
                 .number = 1,
                 .format = *to.format,
                 .role = op.role});
    }
    out_.Store(result, place(1), after);
  });
  values_.Bind(op.results[0],
               count == 1 ? View::Splat(result.carrier, result.shape, out_.One(result)) : result);
}

// The result of a cast or tape operation: `x` in the format of `to`; its ranges are counted.
void RegionMaker::Round(const Op& op, const View& x, Format from, const Value& to) {
  if (IsStochastic(op)) return RoundStochastically(op, x, from, to);
  const std::string function = RoundingFunction(op, x.carrier, *to.format);
  const bool counts = records_.ranges && precision::Narrows(from, *to.format);
  const ValueId where = op.attributes.where;
  std::vector<View> operands = {x};
  if (counts && where != ValueId::kNone) operands.push_back(values_.MaskFor(x.shape, where));
  const auto count = [&](const Read& read, Register before, Register after) {
    std::vector<Register> told = {before, after};
    if (operands.size() > 1) told.push_back(read(1));
    out_.Emit({.code = Code::kRange,
               .operands = std::move(told),
               .number = 1,
               .format = *to.format,
               .role = op.role});
  };
  values_.Define(op, operands, [&](const Read& read) {
    const Register before = read(0);
    const Register after = out_.Call(function, CarrierOf(to), {before}, to.name);
    if (counts) count(read, before, after);
    return after;
  });
  // A value that is equal for every element is rounded once and counted for each.
  if (counts && values_.ViewOf(op.results[0]).all != kNoRegister) {
    out_.Last().number = ElementCount(to.type.shape);
  }
}

// The primal value, rounded to the format of the result.
void RegionMaker::Tape(const Op& op) {
  const ValueId primal = op.attributes.primal;
  const Value& from = program_[primal];
  const Value& to = program_[op.results[0]];
  const View kept = frames_.Recall(primal);
  if (from.type.element != ElementType::kReal) return values_.Bind(op.results[0], kept);
  Round(op, kept, from.format.value_or(Format::kF64), to);
}

void RegionMaker::Convert(const Op& op) {
  const Value& to = program_[op.results[0]];
  const Carrier from = values_.ViewOf(op.operands[0]).carrier;
  const std::string function = Cat(
      "convert_", CarrierName(from), "_",
      from == Carrier::kF32 || from == Carrier::kF64 ? CarrierName(CarrierOf(to)) : SuffixOf(to));
  values_.Define(
      op, [&](const Read& read) { return out_.Call(function, CarrierOf(to), {read(0)}, to.name); });
}

}  // namespace simgrad::sim::plan
