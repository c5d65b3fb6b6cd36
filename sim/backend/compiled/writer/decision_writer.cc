#include "sim/backend/compiled/writer/decision_writer.h"

#include <llvm/Analysis/VectorUtils.h>

#include <cstddef>
#include <limits>
#include <utility>

#include "sim/backend/compiled/group/group_args.h"
#include "sim/backend/compiled/scalars/widen.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/text.h"

namespace simgrad::sim::compiled {

using llvm::Value;
using plan::Carrier;
using plan::Code;
using plan::Statement;

DecisionWriter::DecisionWriter(const LaneBuilder& lanes, const plan::Plan& plan,
                               const plan::Function& function)
    : MarginWriter(lanes),
      plan_(plan),
      written_(function),
      events_(plan.events, options_.shape.lanes()),
      last_(plan.terminations.size()) {}

// ---- around steps ----

void DecisionWriter::Begin() {
  BeginMargins();
  signatures_ = Variables(b_.getInt64Ty());
  const Vectors before = LoadLanes(kSignatures, b_.getInt64Ty());
  for (size_t part = 0; part < parts(); ++part) b_.CreateStore(before[part], signatures_[part]);
  FindTests(written_.statements);
}

void DecisionWriter::BeginStep(Value* column, Value* time) {
  column_ = column;
  time_ = time;
}

void DecisionWriter::End() { StoreLanes(kSignatures, signatures_, b_.getInt64Ty()); }

// Finds the types that the last test of each site is remembered in.
void DecisionWriter::FindTests(const std::vector<Statement>& statements) {
  const auto& carriers = written_.registers;
  for (const Statement& s : statements) {
    FindTests(s.body);
    if (s.code != Code::kTest) continue;
    LastTest& last = last_[static_cast<size_t>(s.site)];
    last.carrier = carriers[static_cast<size_t>(s.operands[0])];
    last.format = s.format;
    ++last.tests;
    const bool is_wide = last.carrier == Carrier::kF64;
    auto* const type = is_wide ? b_.getDoubleTy() : b_.getFloatTy();
    if (last.rhs.empty()) last.rhs = Variables(type);
    if (s.extra == plan::kNoRegister) continue;
    const bool is_f64 = carriers[static_cast<size_t>(s.extra)] == Carrier::kF64;
    if (!last.has_extra || is_f64) {
      last.extra_carrier = is_f64 ? Carrier::kF64 : Carrier::kF32;
      last.extra = Variables(is_f64 ? b_.getDoubleTy() : b_.getFloatTy());
    }
    last.has_extra = true;
  }
}

Value* DecisionWriter::Row(Member member, int32_t site, size_t sites, uint64_t bytes) {
  return Memory(member, column_, sites * bytes, static_cast<uint64_t>(site) * bytes);
}

Compared DecisionWriter::ComparedBy(const Statement& s, Carrier of, Carrier of_extra,
                                    const Told& told) {
  Compared compared;
  compared.carrier = of;
  compared.lhs = told.operands[0];
  compared.rhs = told.operands[1];
  compared.kind.extremes = options_.extremes;
  if (IsReal(of)) {
    compared.kind.format = s.format;
    compared.extra = told.extra;
    // A magnitude in f32 of sides in f64.
    if (of == Carrier::kF64) {
      for (Value*& x : compared.extra) x = b_.CreateFPExt(x, VectorOf(b_.getDoubleTy()));
    }
    compared.kind.extra_is_f64 = of == Carrier::kF64 || of_extra == Carrier::kF64;
    return compared;
  }
  compared.kind.is_integer = true;
  compared.carrier = Carrier::kI64;
  auto* const i64 = VectorOf(b_.getInt64Ty());
  const bool is_signed = !IsUnsigned(of);
  for (Value*& x : compared.lhs) x = b_.CreateIntCast(x, i64, is_signed);
  for (Value*& x : compared.rhs) x = b_.CreateIntCast(x, i64, is_signed);
  return compared;
}

// ---- tests and runs ----

void DecisionWriter::Test(const Statement& s, Carrier of, Carrier of_extra, const Told& told) {
  LastTest& last = last_[static_cast<size_t>(s.site)];
  const size_t sites = plan_.terminations.size();
  const Vectors mask = told.where.empty() ? told.mask : Both(told.mask, told.where);
  Compared compared = ComparedBy(s, of, of_extra, told);
  if (told.operands.size() > 3) compared.tests = told.operands[3];
  Margins(compared, false, Row(kTerminations, s.site, sites, sizeof(TerminationColumn)),
          Row(kTerminationWatches, s.site, sites, sizeof(MarginWatch)), mask, told.operands[2]);
  for (size_t part = 0; part < parts(); ++part) {
    const auto remember = [&](const Vectors& variables, Value* x) {
      auto* const type = llvm::cast<llvm::AllocaInst>(variables[part])->getAllocatedType();
      Value* const before = b_.CreateLoad(type, variables[part]);
      b_.CreateStore(b_.CreateSelect(mask[part], b_.CreateFPCast(x, type), before),
                     variables[part]);
    };
    // An operand that is equal for all lanes is equal in every turn.
    if (last.tests == 1 && llvm::getSplatValue(compared.rhs[part]) != nullptr) {
      b_.CreateStore(compared.rhs[part], last.rhs[part]);
    } else {
      remember(last.rhs, compared.rhs[part]);
    }
    if (!last.has_extra) continue;
    Value* const none = llvm::Constant::getNullValue(compared.lhs[part]->getType());
    remember(last.extra, compared.extra.empty() ? none : compared.extra[part]);
  }
  if (options_.instances) TellTested(s, mask, told);
}

// The entry test and the first test have one value.
void DecisionWriter::TellTested(const Statement& s, const Vectors& mask, const Told& told) {
  const Vectors told_now = told.where.empty() ? mask : Both(mask, told.operands[2]);
  Vectors wide;
  for (Value* lhs : told.operands[0]) {
    wide.push_back(b_.CreateFPExt(lhs, VectorOf(b_.getDoubleTy())));
  }
  const Lists lists(*this);
  Value* const values = Listed(wide, b_.getDoubleTy());
  EachLaneOf(told_now, [&](Value* lane) {
    Value* const value =
        b_.CreateLoad(b_.getDoubleTy(), b_.CreateGEP(b_.getDoubleTy(), values, lane));
    CallBack(kTellTested,
             {Arguments(), column_, b_.getInt64(static_cast<uint64_t>(s.site)), lane, value});
  });
}

void DecisionWriter::Run(const Statement& s, const Told& told) {
  const size_t site = static_cast<size_t>(s.site);
  const size_t sites = plan_.terminations.size();
  Value* const column = Row(kTerminations, s.site, sites, sizeof(TerminationColumn));
  Value* const watch = Row(kTerminationWatches, s.site, sites, sizeof(MarginWatch));
  Outcomes(site, told, column);
  LastMargins(last_[site], told, column);
  if (options_.extremes) TestedExtremes(told.operands[2], told.mask, column, watch);
  if (!options_.instances) return;
  auto* const i32 = b_.getInt32Ty();
  const Lists lists(*this);
  Value* const iterations = Listed(told.operands[0], i32);
  Value* const reasons = Listed(told.operands[1], i32);
  EachLaneOf(told.mask, [&](Value* lane) {
    CallBack(kTellRun, {Arguments(), column_, b_.getInt64(site), lane,
                        b_.CreateLoad(i32, b_.CreateGEP(i32, iterations, lane)),
                        b_.CreateLoad(i32, b_.CreateGEP(i32, reasons, lane))});
  });
}

// Lanes that ran as often for the same reason are counted together.
void DecisionWriter::Outcomes(size_t site, const Told& told, Value* column) {
  auto* const i32 = b_.getInt32Ty();
  const plan::RecordedSite& recorded = plan_.terminations[site];
  Value* const shared = SharedPrefix(recorded.hash, told);
  const Vectors prefixes = shared == nullptr ? Prefixes(recorded.hash, told) : Vectors();
  const Lists lists(*this);
  Value* const iterations = Listed(told.operands[0], i32);
  Value* const reasons = Listed(told.operands[1], i32);
  Value *ran = nullptr, *reason = nullptr;
  const auto same = [&](Value* lane) {
    ran = b_.CreateLoad(i32, b_.CreateGEP(i32, iterations, lane));
    reason = b_.CreateLoad(i32, b_.CreateGEP(i32, reasons, lane));
    Vectors equal;
    for (size_t part = 0; part < parts(); ++part) {
      equal.push_back(b_.CreateAnd(b_.CreateICmpEQ(told.operands[0][part], Splat(ran)),
                                   b_.CreateICmpEQ(told.operands[1][part], Splat(reason))));
    }
    return equal;
  };
  EachKindOf(told.mask, same, [&](Value*, const Vectors& lanes, Value* count) {
    CountOutcome(recorded, ran, reason, count, column);
    Value* const outcome = WidenedCall(b_, *module_.getFunction("loop_outcome"), {ran, reason}, 1);
    Vectors hashes;
    if (shared != nullptr) {
      Value* const hash =
          WidenedCall(b_, *module_.getFunction("decision_of_outcome"), {shared, outcome}, 1);
      for (size_t part = 0; part < parts(); ++part) hashes.push_back(Splat(hash));
    } else {
      for (Value* prefix : prefixes) {
        hashes.push_back(Call("decision_of_outcome", {prefix, Splat(outcome)}));
      }
    }
    Sign(lanes, hashes);
  });
}

// `count` runs of `ran` iterations.
void DecisionWriter::CountOutcome(const plan::RecordedSite& site, Value* ran, Value* reason,
                                  Value* count, Value* column) {
  using C = TerminationColumn;
  const auto is = [&](StopReason r) {
    return b_.CreateICmpEQ(reason, b_.getInt32(static_cast<uint32_t>(r)));
  };
  Value* const wide = b_.CreateZExt(ran, b_.getInt64Ty());
  // A loop that looks at its cap first makes no test where it was capped.
  Value* tests = b_.CreateAdd(wide, b_.getInt64(1));
  if (site.cap_first) {
    Value* const capped = b_.CreateOr(is(StopReason::kMaxIter), is(StopReason::kNonFinite));
    tests = b_.CreateSelect(capped, wide, tests);
  }
  if (site.has_entry) {
    // The entry test comes before the first test, and is the only one of a run that it refuses.
    Value* const made = b_.CreateICmpNE(tests, b_.getInt64(0));
    tests = b_.CreateAdd(tests, b_.CreateZExt(made, b_.getInt64Ty()));
    tests = b_.CreateSelect(is(StopReason::kNotEntered), b_.getInt64(1), tests);
  }
  AddTo(Offset(column, offsetof(C, runs)), count);
  AddTo(Offset(column, offsetof(C, checks)), b_.CreateMul(count, tests));
  AddTo(Offset(column, offsetof(C, iterations_sum)), b_.CreateMul(count, wide));
  Value* const reasons = Offset(column, offsetof(C, reasons));
  AddTo(b_.CreateGEP(b_.getInt64Ty(), reasons, b_.CreateZExt(reason, b_.getInt64Ty())), count);
  auto* const i32 = b_.getInt32Ty();
  Value* const bucket = WidenedCall(b_, *module_.getFunction("iteration_bucket"), {ran}, 1);
  Value* const histogram = Offset(column, offsetof(C, iterations));
  AddTo(b_.CreateGEP(i32, histogram, b_.CreateZExt(bucket, b_.getInt64Ty())),
        b_.CreateTrunc(count, i32));
  const auto extreme = [&](uint64_t offset, llvm::Intrinsic::ID id) {
    Value* const at = Offset(column, offset);
    b_.CreateStore(b_.CreateBinaryIntrinsic(id, b_.CreateLoad(i32, at), ran), at);
  };
  extreme(offsetof(C, iterations_min), llvm::Intrinsic::umin);
  extreme(offsetof(C, iterations_max), llvm::Intrinsic::umax);
}

// The margin of a run's last test goes to the histogram. A run without a test has no value.
void DecisionWriter::LastMargins(const LastTest& last, const Told& told, Value* column) {
  Compared compared;
  compared.kind.format = last.format;
  compared.lhs = told.operands[2];
  const auto remembered = [&](const Vectors& variables, size_t part) -> Value* {
    auto* const type = llvm::cast<llvm::AllocaInst>(variables[part])->getAllocatedType();
    return b_.CreateLoad(type, variables[part]);
  };
  for (size_t part = 0; part < parts(); ++part) {
    compared.rhs.push_back(remembered(last.rhs, part));
    if (last.has_extra) compared.extra.push_back(remembered(last.extra, part));
  }
  CountMargins(last, compared, told.mask, column, offsetof(TerminationColumn, histogram));
}

// ---- signatures ----

Value* DecisionWriter::SharedPrefix(uint64_t site, const Told& told) {
  if (!told.iteration.empty()) return nullptr;
  Value* const element = told.element == nullptr ? b_.getInt64(0) : told.element;
  Value* const step =
      WidenedCall(b_, *module_.getFunction("decision_of_step"), {b_.getInt64(site), time_}, 1);
  return WidenedCall(b_, *module_.getFunction("decision_of_element"),
                     {step, b_.getInt64(0), element}, 1);
}

Vectors DecisionWriter::Prefixes(uint64_t site, const Told& told) {
  Value* const step =
      WidenedCall(b_, *module_.getFunction("decision_of_step"), {b_.getInt64(site), time_}, 1);
  Value* const element = told.element == nullptr ? b_.getInt64(0) : told.element;
  Vectors prefixes;
  for (Value* iteration : told.iteration) {
    prefixes.push_back(Call("decision_of_element", {Splat(step), iteration, Splat(element)}));
  }
  return prefixes;
}

void DecisionWriter::Sign(const Vectors& mask, const Vectors& hashes) {
  for (size_t part = 0; part < parts(); ++part) {
    Value* const before = Get(signatures_, part, b_.getInt64Ty());
    Value* const added = b_.CreateSelect(mask[part], hashes[part], Splat64(0));
    b_.CreateStore(b_.CreateAdd(before, added), signatures_[part]);
  }
}

// ---- events ----

// Only in steps that are sampled.
void DecisionWriter::EventMargins(const Statement& s, const Compared& compared,
                                  const Vectors& mask) {
  Value* const columns = arguments_[kEventMargins];
  const uint64_t offset = static_cast<uint64_t>(s.site) * sizeof(MarginColumn);
  IfRarely(b_.CreateIsNotNull(columns), [&] {
    if (compared.kind.is_integer) {
      Vectors buckets;
      for (size_t part = 0; part < parts(); ++part) {
        Value* const distance = Call("distance_integer", {compared.lhs[part], compared.rhs[part]});
        buckets.push_back(Call("margin_bucket", {distance}));
      }
      return CountInHistogram(columns, offset, buckets, mask);
    }
    MarginCarriers kind;
    kind.format = s.format;
    kind.carrier = compared.carrier;
    kind.extra_carrier = compared.kind.extra_is_f64 ? Carrier::kF64 : Carrier::kF32;
    kind.has_extra = !compared.extra.empty();
    CountMargins(kind, compared, mask, columns, offset);
  });
}

// Returns the address of what was last kept of the element that is told.
Value* DecisionWriter::LastEvent(const Statement& s, const Told& told) {
  Value* const element = told.element == nullptr ? b_.getInt64(0) : told.element;
  const EventLayout::Place& place = events_.PlaceOf(s.site);
  return Memory(kLastEvents, element, static_cast<uint64_t>(place.element_bytes),
                static_cast<uint64_t>(place.offset));
}

// Keeps what an event is now, and returns the lanes in which it was something else. One word holds
// all lanes.
Vectors DecisionWriter::ChangedEvents(const Statement& s, const Told& told, const Vectors& values) {
  const int64_t bytes = events_.PlaceOf(s.site).element_bytes;
  auto* const word = b_.getIntNTy(8 * static_cast<unsigned>(bytes));
  Value* const at = LastEvent(s, told);
  Value* const before = b_.CreateAlignedLoad(word, at, llvm::Align(1));
  Value* const now = b_.CreateZExt(BitsOf(values), word);
  Value* const mask = b_.CreateZExt(BitsOf(told.mask), word);
  Value* const changed = b_.CreateAnd(b_.CreateXor(before, now), mask);
  b_.CreateAlignedStore(b_.CreateXor(before, changed), at, llvm::Align(1));
  return LanesOf(changed);
}

Vectors DecisionWriter::ChangedChoices(const Statement& s, const Told& told) {
  auto* const stored = VectorOf(b_.getInt32Ty());
  Value* const first = LastEvent(s, told);
  Vectors changed;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const at = Offset(first, 4 * width() * part);
    Value* const before = b_.CreateAlignedLoad(stored, at, llvm::Align(4));
    Value* const now = told.operands[2][part];
    changed.push_back(b_.CreateAnd(told.mask[part], b_.CreateICmpNE(before, now)));
    b_.CreateAlignedStore(b_.CreateSelect(told.mask[part], now, before), at, llvm::Align(4));
  }
  return changed;
}

void DecisionWriter::Decide(const Statement& s, Carrier of, Carrier of_extra, const Told& told) {
  const plan::RecordedSite& recorded = plan_.events[static_cast<size_t>(s.site)];
  const size_t sites = plan_.events.size();
  Value* const column = Row(kEvents, s.site, sites, sizeof(EventColumn));
  const Vectors asked = told.where.empty() ? told.mask : Both(told.mask, told.where);
  Vectors values;  // where they are not 0
  for (size_t part = 0; part < parts(); ++part) {
    Value* const value = told.operands[2][part];
    Value* const holds = recorded.chooses ? b_.CreateICmpNE(value, Splat32(0)) : value;
    values.push_back(b_.CreateAnd(told.mask[part], holds));
  }
  const Compared compared = ComparedBy(s, of, of_extra, told);
  Margins(compared, true, column, Row(kEventWatches, s.site, sites, sizeof(MarginWatch)), asked,
          {});
  if (plan_.event_margins) EventMargins(s, compared, asked);
  const Vectors changed =
      recorded.chooses ? ChangedChoices(s, told) : ChangedEvents(s, told, values);
  const auto count = [&](uint64_t offset, const Vectors& mask) {
    AddTo(Offset(column, offset), Population(BitsOf(mask)));
  };
  count(offsetof(EventColumn, checks), asked);
  count(offsetof(EventColumn, count), values);
  If(Any(changed), [&] {
    count(offsetof(EventColumn, changes), changed);
    Vectors hashes;
    Value* const shared = SharedPrefix(recorded.hash, told);
    const Vectors prefixes = shared == nullptr ? Prefixes(recorded.hash, told) : Vectors();
    for (size_t part = 0; part < parts(); ++part) {
      Value* const value = recorded.chooses ? told.operands[2][part] : values[part];
      Value* const outcome = b_.CreateZExt(value, VectorOf(b_.getInt64Ty()));
      Value* const prefix = shared != nullptr ? Splat(shared) : prefixes[part];
      hashes.push_back(Call("decision_of_outcome", {prefix, outcome}));
      // An event begins with a change.
      auto* const steps = VectorOf(b_.getInt64Ty());
      Value* const at = b_.CreateGEP(steps, arguments_[kFirstEvents],
                                     b_.getInt64(static_cast<uint64_t>(s.site) * parts() + part));
      Value* const first = b_.CreateAlignedLoad(steps, at, llvm::Align(4));
      Value* const is_first = b_.CreateAnd(values[part], b_.CreateICmpSLT(first, Splat64(0)));
      b_.CreateAlignedStore(b_.CreateSelect(is_first, Splat(time_), first), at, llvm::Align(4));
    }
    Sign(changed, hashes);
  });
}

}  // namespace simgrad::sim::compiled
