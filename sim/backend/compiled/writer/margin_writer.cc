#include "sim/backend/compiled/writer/margin_writer.h"

#include <llvm/Analysis/VectorUtils.h>

#include <cstddef>
#include <limits>

#include "sim/backend/compiled/group/group_args.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/text.h"

namespace simgrad::sim::compiled {

using llvm::Value;
using plan::Carrier;

void MarginWriter::BeginMargins() { ranks_ = LoadLanes(kRanks, b_.getInt32Ty()); }

Value* MarginWriter::FromWatch(Value* watch, uint64_t offset, llvm::Type* type) {
  return Splat(b_.CreateLoad(type, Offset(watch, offset)));
}

Value* MarginWriter::BitsIn(Value* x) {
  const unsigned bits = x->getType()->getScalarSizeInBits();
  return b_.CreateBitCast(x, VectorOf(b_.getIntNTy(bits)));
}

// 2^e of the largest magnitude, in the carrier of the sides; 0 for a subnormal one, infinite where
// one is infinite or NaN.
Value* MarginWriter::PowerOf(const Compared& compared, size_t part) {
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
Value* MarginWriter::MayMatter(const Compared& compared, Value* watch, size_t part) {
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
Value* MarginWriter::IsKnownZero(const Compared& compared, Value* watch, size_t part) {
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

void MarginWriter::Margins(const Compared& compared, bool is_event, Value* column, Value* watch,
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

void MarginWriter::NoteMargins(const Compared& compared, bool is_event, Value* column, Value* watch,
                               const Vectors& lanes, const Vectors& stopped) {
  auto* const scalar = compared.lhs[0]->getType()->getScalarType();
  Value* const null = llvm::ConstantPointerNull::get(llvm::PointerType::get(context_, 0));
  const Lists lists(*this);
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

void MarginWriter::CountMargins(const MarginCarriers& of, const Compared& compared,
                                const Vectors& mask, Value* column, uint64_t offset) {
  Vectors counts;
  for (size_t part = 0; part < parts(); ++part) {
    Value* is_number = b_.CreateFCmpORD(compared.lhs[part], compared.rhs[part]);
    Value* const difference = b_.CreateFSub(compared.lhs[part], compared.rhs[part]);
    is_number = b_.CreateAnd(is_number, b_.CreateFCmpORD(difference, difference));
    if (of.has_extra) {
      Value* const extra = compared.extra[part];
      is_number = b_.CreateAnd(is_number, b_.CreateFCmpORD(extra, extra));
    }
    counts.push_back(b_.CreateAnd(mask[part], is_number));
  }
  const Vectors buckets =
      of.carrier == Carrier::kF32 ? NarrowBuckets(of, compared, counts) : Buckets(of, compared);
  CountInHistogram(column, offset, buckets, counts);
}

// In full.
Vectors MarginWriter::Buckets(const MarginCarriers& of, const Compared& compared) {
  const std::string suffix = Cat(precision::FormatName(of.format), "_",
                                 plan::CarrierName(of.has_extra ? of.extra_carrier : of.carrier));
  Vectors buckets;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const lhs = compared.lhs[part];
    Value* const extra =
        of.has_extra ? compared.extra[part] : llvm::Constant::getNullValue(lhs->getType());
    Value* const ulps = Call("distance_ulps_" + suffix, {lhs, compared.rhs[part], extra});
    buckets.push_back(Call("margin_bucket", {ulps}));
  }
  return buckets;
}

// From the difference in f32: a quotient by a power of two, of which the bucket needs the exponent
// and whether there is anything behind the first bit. Rounding leaves both as they are, unless it
// gives a power of two. Then, and for subnormal and infinite numbers, all are evaluated in full.
Vectors MarginWriter::NarrowBuckets(const MarginCarriers& of, const Compared& compared,
                                    const Vectors& counts) {
  const precision::FormatTraits traits = precision::Traits(of.format);
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
    const Vectors exact = Buckets(of, compared);
    for (size_t part = 0; part < parts(); ++part) b_.CreateStore(exact[part], variables[part]);
  });
  Vectors buckets;
  for (size_t part = 0; part < parts(); ++part) {
    buckets.push_back(Get(variables, part, b_.getInt32Ty()));
  }
  return buckets;
}

void MarginWriter::TestedExtremes(const Vectors& tested, const Vectors& mask, Value* column,
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
    const Lists lists(*this);
    CallBack(kNoteTested, {watch, column, b_.getInt1(is_f64), Bits64Of(beyond),
                           Listed(tested, tested[0]->getType()->getScalarType())});
  });
}

}  // namespace simgrad::sim::compiled
