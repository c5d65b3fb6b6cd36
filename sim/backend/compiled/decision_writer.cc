#include "sim/backend/compiled/decision_writer.h"

#include <llvm/Analysis/VectorUtils.h>

#include <cstddef>
#include <limits>
#include <utility>

#include "sim/backend/compiled/group_args.h"
#include "sim/backend/compiled/widen.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/text.h"

namespace simgrad::sim::compiled {

using llvm::Value;
using plan::Carrier;
using plan::Code;
using plan::Statement;

DecisionWriter::DecisionWriter(const LaneBuilder& lanes, const plan::Plan& plan,
                               const plan::Function& function)
    : LaneBuilder(lanes), plan_(plan), written_(function), last_(plan.terminations.size()) {}

// ---- around steps ----

void DecisionWriter::Begin() {
  ranks_ = LoadLanes(kRanks, b_.getInt32Ty());
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

// ---- margins ----

DecisionWriter::Compared DecisionWriter::ComparedBy(const Statement& s, Carrier of,
                                                    Carrier of_extra, const Told& told) {
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

Value* DecisionWriter::FromWatch(Value* watch, uint64_t offset, llvm::Type* type) {
  return Splat(b_.CreateLoad(type, Offset(watch, offset)));
}

Value* DecisionWriter::BitsIn(Value* x) {
  const unsigned bits = x->getType()->getScalarSizeInBits();
  return b_.CreateBitCast(x, VectorOf(b_.getIntNTy(bits)));
}

// 2^e of the largest magnitude, in the carrier of the sides; 0 for a subnormal one, infinite where
// one is infinite or NaN.
Value* DecisionWriter::PowerOf(const Compared& compared, size_t part) {
  auto* const scalar = compared.lhs[part]->getType()->getScalarType();
  const auto power = [&](Value* x) {
    Value* const bits = BitsIn(x);
    const bool is_f64 = x->getType()->getScalarType()->isDoubleTy();
    Value* const exponents = llvm::ConstantInt::get(
        bits->getType(), is_f64 ? precision::kDoubleInfinityBits : precision::kFloatInfinityBits);
    Value* const result = b_.CreateBitCast(b_.CreateAnd(bits, exponents), x->getType());
    return b_.CreateFPCast(result, VectorOf(scalar));
  };
  const auto larger = [&](Value* a, Value* b) {
    return b_.CreateSelect(b_.CreateFCmpOGT(a, b), a, b);
  };
  Value* const largest = larger(power(compared.lhs[part]), power(compared.rhs[part]));
  return compared.extra.empty() ? largest : larger(largest, power(compared.extra[part]));
}

// Lanes that lie within a limit of the watch and do not show what it knows.
Value* DecisionWriter::MayMatter(const Compared& compared, Value* watch, size_t part) {
  const auto equals = [&](Value* x, uint64_t offset) {
    Value* const bits = BitsIn(x);
    return b_.CreateICmpEQ(bits, FromWatch(watch, offset, bits->getType()->getScalarType()));
  };
  auto* const i32 = b_.getInt32Ty();
  Value* first = b_.CreateLoad(i32, Offset(watch, offsetof(MarginWatch, rank)));
  Value* known = equals(compared.lhs[part], offsetof(MarginWatch, lhs));
  if (Value* const rhs = llvm::getSplatValue(compared.rhs[part])) {
    auto* const type = b_.getIntNTy(rhs->getType()->getScalarSizeInBits());
    Value* const same =
        b_.CreateICmpEQ(b_.CreateBitCast(rhs, type),
                        b_.CreateLoad(type, Offset(watch, offsetof(MarginWatch, rhs))));
    first = b_.CreateSelect(same, first, b_.getInt32(std::numeric_limits<int32_t>::max()));
  } else {
    known = b_.CreateAnd(known, equals(compared.rhs[part], offsetof(MarginWatch, rhs)));
  }
  // If tests are told, one instance may show the same margin by two tests.
  known =
      b_.CreateAnd(known, compared.tests.empty() ? b_.CreateICmpSGE(ranks_[part], Splat(first))
                                                 : b_.CreateICmpSGT(ranks_[part], Splat(first)));
  const bool is_f64 = compared.carrier != Carrier::kF32;
  auto* const real = is_f64 ? b_.getDoubleTy() : b_.getFloatTy();
  Value* reach = FromWatch(
      watch, is_f64 ? offsetof(MarginWatch, reach_f64) : offsetof(MarginWatch, reach_f32), real);
  Value* const absolute = FromWatch(
      watch, is_f64 ? offsetof(MarginWatch, absolute_f64) : offsetof(MarginWatch, absolute_f32),
      real);
  Value* distance;
  if (compared.kind.is_integer) {
    distance = Call("distance_integer", {compared.lhs[part], compared.rhs[part]});
  } else {
    Value* const power = PowerOf(compared, part);
    known = b_.CreateAnd(known, equals(power, offsetof(MarginWatch, power)));
    reach = b_.CreateFMul(power, reach);
    distance = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs,
                                       b_.CreateFSub(compared.lhs[part], compared.rhs[part]));
  }
  Value* const limit = b_.CreateSelect(b_.CreateFCmpOGT(reach, absolute), reach, absolute);
  return b_.CreateAnd(b_.CreateFCmpULE(distance, limit), b_.CreateNot(known));
}

// Lanes with a margin of 0 where an earlier lane had it too, or this one in a site that tells no
// tests. A number against itself (is it NaN?) and a predicate without levels have no other margin.
// A margin of -0 wins a tie against 0, so it is not among them.
Value* DecisionWriter::IsKnownZero(const Compared& compared, Value* watch, size_t part) {
  Value* const lhs = compared.lhs[part];
  Value* const rhs = compared.rhs[part];
  Value* is_zero;
  if (compared.kind.is_integer) {
    is_zero = b_.CreateICmpEQ(lhs, rhs);
  } else {
    Value* const bits = BitsIn(b_.CreateFSub(lhs, rhs));
    is_zero = b_.CreateICmpEQ(bits, llvm::Constant::getNullValue(bits->getType()));
  }
  if (!compared.extra.empty()) {
    // The magnitude of a sum may be NaN or infinite where its sides are neither.
    Value* const extra = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, compared.extra[part]);
    auto* const infinity = llvm::ConstantFP::getInfinity(extra->getType());
    is_zero = b_.CreateAnd(is_zero, b_.CreateFCmpOLT(extra, infinity));
  }
  Value* const first = FromWatch(watch, offsetof(MarginWatch, zero_rank), b_.getInt32Ty());
  Value* const loses = compared.tests.empty() ? b_.CreateICmpSGE(ranks_[part], first)
                                              : b_.CreateICmpSGT(ranks_[part], first);
  return b_.CreateAnd(is_zero, loses);
}

void DecisionWriter::Margins(const Compared& compared, bool is_event, Value* column, Value* watch,
                             const Vectors& mask, const Vectors& stopped) {
  Vectors candidates;
  for (size_t part = 0; part < parts(); ++part) {
    candidates.push_back(b_.CreateAnd(mask[part], MayMatter(compared, watch, part)));
  }
  IfRarely(Any(candidates), [&] {
    Vectors zeros;
    for (size_t part = 0; part < parts(); ++part) {
      zeros.push_back(b_.CreateAnd(candidates[part], IsKnownZero(compared, watch, part)));
    }
    if (!is_event) {  // 0 is near
      const auto count = [&](uint64_t offset, const Vectors& lanes) {
        AddTo(Offset(column, offset), Population(BitsOf(lanes)));
      };
      count(offsetof(TerminationColumn, near_stopped), Both(zeros, stopped));
      count(offsetof(TerminationColumn, near_continued), ButNot(zeros, stopped));
    }
    const Vectors open = ButNot(candidates, zeros);
    IfRarely(Any(open), [&] { NoteMargins(compared, is_event, column, watch, open, stopped); });
  });
}

void DecisionWriter::NoteMargins(const Compared& compared, bool is_event, Value* column,
                                 Value* watch, const Vectors& lanes, const Vectors& stopped) {
  auto* const scalar = compared.lhs[0]->getType()->getScalarType();
  Value* const null = llvm::ConstantPointerNull::get(llvm::PointerType::get(context_, 0));
  Value* const tests = compared.tests.empty() ? null : Listed(compared.tests, b_.getInt32Ty());
  Value* extra = null;
  if (!compared.extra.empty()) {
    extra = Listed(compared.extra, compared.extra[0]->getType()->getScalarType());
  }
  MarginKind kind = compared.kind;
  kind.is_event = is_event;
  Value* const held = stopped.empty() ? b_.getInt64(0) : Bits64Of(stopped);
  CallBack(kNoteMargins,
           {Arguments(), watch, column, b_.getInt64(kind.Code()), Bits64Of(lanes), held,
            Listed(compared.lhs, scalar), Listed(compared.rhs, scalar), extra, tests});
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

void DecisionWriter::CountMargins(const LastTest& last, const Compared& compared,
                                  const Vectors& mask, Value* column, uint64_t offset) {
  Vectors counts;
  for (size_t part = 0; part < parts(); ++part) {
    Value* is_number = b_.CreateFCmpORD(compared.lhs[part], compared.rhs[part]);
    Value* const difference = b_.CreateFSub(compared.lhs[part], compared.rhs[part]);
    is_number = b_.CreateAnd(is_number, b_.CreateFCmpORD(difference, difference));
    if (last.has_extra) {
      Value* const extra = compared.extra[part];
      is_number = b_.CreateAnd(is_number, b_.CreateFCmpORD(extra, extra));
    }
    counts.push_back(b_.CreateAnd(mask[part], is_number));
  }
  const Vectors buckets = last.carrier == Carrier::kF32 ? NarrowBuckets(last, compared, counts)
                                                        : Buckets(last, compared);
  CountInHistogram(column, offset, buckets, counts);
}

// In full.
Vectors DecisionWriter::Buckets(const LastTest& last, const Compared& compared) {
  const std::string suffix =
      Cat(precision::FormatName(last.format), "_",
          plan::CarrierName(last.has_extra ? last.extra_carrier : last.carrier));
  Vectors buckets;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const lhs = compared.lhs[part];
    Value* const extra =
        last.has_extra ? compared.extra[part] : llvm::Constant::getNullValue(lhs->getType());
    Value* const ulps = Call("distance_ulps_" + suffix, {lhs, compared.rhs[part], extra});
    buckets.push_back(Call("margin_bucket", {ulps}));
  }
  return buckets;
}

// From the difference in f32: a quotient by a power of two, of which the bucket needs the exponent
// and whether there is anything behind the first bit. Rounding leaves both as they are, unless it
// gives a power of two. Then, and for subnormal and infinite numbers, all are evaluated in full.
Vectors DecisionWriter::NarrowBuckets(const LastTest& last, const Compared& compared,
                                      const Vectors& counts) {
  const precision::FormatTraits traits = precision::Traits(last.format);
  auto* const stored = VectorOf(b_.getInt32Ty());
  const Vectors variables = Variables(b_.getInt32Ty());
  Vectors unclear;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const difference = b_.CreateFSub(compared.lhs[part], compared.rhs[part]);
    Value* const bits = b_.CreateAnd(BitsIn(difference), Splat32(0x7FFFFFFF));
    Value* const field = b_.CreateLShr(bits, 23);
    Value* const behind = b_.CreateAnd(bits, Splat32(0x7FFFFF));
    Value* const is_power = b_.CreateICmpEQ(behind, Splat32(0));
    Value* const is_zero = b_.CreateICmpEQ(bits, Splat32(0));
    Value* const power = b_.CreateLShr(BitsIn(PowerOf(compared, part)), 23);
    Value* const bounded = b_.CreateBinaryIntrinsic(
        llvm::Intrinsic::smax, power, Splat32(static_cast<uint32_t>(traits.min_exponent + 127)));
    Value* const up = b_.CreateSelect(is_power, Splat32(0), Splat32(1));
    Value* bucket = b_.CreateAdd(b_.CreateAdd(b_.CreateSub(field, bounded), up),
                                 Splat32(static_cast<uint32_t>(traits.precision)));
    bucket = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, bucket, Splat32(1));
    bucket =
        b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, bucket, Splat32(kMarginBucketCount - 1));
    b_.CreateStore(b_.CreateSelect(is_zero, llvm::Constant::getNullValue(stored), bucket),
                   variables[part]);
    Value* const is_subnormal = b_.CreateICmpEQ(field, Splat32(0));
    Value* const is_infinite = b_.CreateICmpEQ(power, Splat32(255));
    Value* const is_rare = b_.CreateOr(
        b_.CreateAnd(b_.CreateOr(is_power, is_subnormal), b_.CreateNot(is_zero)), is_infinite);
    unclear.push_back(b_.CreateAnd(counts[part], is_rare));
  }
  IfRarely(Any(unclear), [&] {
    const Vectors exact = Buckets(last, compared);
    for (size_t part = 0; part < parts(); ++part) b_.CreateStore(exact[part], variables[part]);
  });
  Vectors buckets;
  for (size_t part = 0; part < parts(); ++part) {
    buckets.push_back(Get(variables, part, b_.getInt32Ty()));
  }
  return buckets;
}

void DecisionWriter::TestedExtremes(const Vectors& tested, const Vectors& mask, Value* column,
                                    Value* watch) {
  const bool is_f64 = tested[0]->getType()->getScalarType()->isDoubleTy();
  auto* const integer = is_f64 ? b_.getInt64Ty() : b_.getInt32Ty();
  const unsigned sign = integer->getBitWidth() - 1;
  Value* const least = FromWatch(watch, offsetof(MarginWatch, tested_min), integer);
  Value* const most = FromWatch(watch, offsetof(MarginWatch, tested_max), integer);
  Vectors beyond;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const bits = BitsIn(tested[part]);
    Value* const sign_bits = b_.CreateAShr(bits, sign);
    Value* const key = b_.CreateXor(bits, b_.CreateLShr(sign_bits, 1));
    Value* const outside = b_.CreateOr(b_.CreateICmpSLT(key, least), b_.CreateICmpSGT(key, most));
    Value* const is_number = b_.CreateFCmpORD(tested[part], tested[part]);
    beyond.push_back(b_.CreateAnd(b_.CreateAnd(mask[part], is_number), outside));
  }
  IfRarely(Any(beyond), [&] {
    CallBack(kNoteTested, {watch, column, b_.getInt1(is_f64), Bits64Of(beyond),
                           Listed(tested, tested[0]->getType()->getScalarType())});
  });
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
    LastTest kind;
    kind.format = s.format;
    kind.carrier = compared.carrier;
    kind.extra_carrier = compared.kind.extra_is_f64 ? Carrier::kF64 : Carrier::kF32;
    kind.has_extra = !compared.extra.empty();
    CountMargins(kind, compared, mask, columns, offset);
  });
}

void DecisionWriter::Decide(const Statement& s, Carrier of, Carrier of_extra, const Told& told) {
  const plan::RecordedSite& recorded = plan_.events[static_cast<size_t>(s.site)];
  const size_t sites = plan_.events.size();
  Value* const column = Row(kEvents, s.site, sites, sizeof(EventColumn));
  const Vectors asked = told.where.empty() ? told.mask : Both(told.mask, told.where);
  auto* const stored = VectorOf(b_.getInt32Ty());
  // A choice has a number; an event is kept with all its bits set where it holds.
  const bool chooses = !told.operands[2][0]->getType()->getScalarType()->isIntegerTy(1);
  Vectors values;  // where they are not 0
  for (size_t part = 0; part < parts(); ++part) {
    Value* const value = told.operands[2][part];
    Value* const holds = chooses ? b_.CreateICmpNE(value, Splat32(0)) : value;
    values.push_back(b_.CreateAnd(told.mask[part], holds));
  }
  const Compared compared = ComparedBy(s, of, of_extra, told);
  Margins(compared, true, column, Row(kEventWatches, s.site, sites, sizeof(MarginWatch)), asked,
          {});
  if (plan_.event_margins) EventMargins(s, compared, asked);
  Value* const element = told.element == nullptr ? b_.getInt64(0) : told.element;
  Value* const first_vector = b_.CreateMul(
      b_.CreateAdd(b_.getInt64(static_cast<uint64_t>(recorded.first_element)), element),
      b_.getInt64(parts()));
  Vectors changed;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const at = b_.CreateGEP(stored, arguments_[kLastEvents],
                                   b_.CreateAdd(first_vector, b_.getInt64(part)));
    Value* const before = b_.CreateAlignedLoad(stored, at, llvm::Align(4));
    Value* const now = chooses ? told.operands[2][part] : b_.CreateSExt(values[part], stored);
    Value* const differs = chooses
                               ? b_.CreateICmpNE(before, now)
                               : b_.CreateXor(b_.CreateICmpNE(before, Splat32(0)), values[part]);
    changed.push_back(b_.CreateAnd(told.mask[part], differs));
    b_.CreateAlignedStore(b_.CreateSelect(told.mask[part], now, before), at, llvm::Align(4));
  }
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
      Value* const value = chooses ? told.operands[2][part] : values[part];
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
