#include "sim/backend/compiled/writer/record_writer.h"

#include <cstddef>

#include "sim/backend/compiled/group/group_args.h"
#include "sim/backend/compiled/scalars/widen.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/text.h"

namespace simgrad::sim::compiled {
using llvm::Value;
using plan::Carrier;
using plan::Statement;

RecordWriter::RecordWriter(const LaneBuilder& lanes, const plan::Plan& plan,
                           const plan::Function& function)
    : LaneBuilder(lanes), decisions_(lanes, plan, function) {}

// ---- health ----

void RecordWriter::BeginLanes() {
  if (options_.shape.lanes() == 1) {
    used_.push_back(b_.getTrue());  // a group has an instance
  } else {
    for (Value* used : LoadLanes(kLanesUsed, b_.getInt32Ty())) {
      used_.push_back(b_.CreateICmpNE(used, Splat32(0)));
    }
  }
  if (options_.looks) {
    health_ = Variables(b_.getInt64Ty());
    const Vectors before = LoadLanes(kHealth, b_.getInt64Ty());
    for (size_t part = 0; part < parts(); ++part) b_.CreateStore(before[part], health_[part]);
  }
  if (options_.decides) decisions_.Begin();
}

void RecordWriter::Begin() {
  BeginLanes();
  if (!options_.looks) return;
  bad_ = Variables(b_.getInt32Ty());
  Set(bad_, Splat32(0));
}

int64_t RecordWriter::LookedBytes(const LaneShape& shape) { return 4 * shape.lanes(); }

void RecordWriter::BeginPiece(Value* looked, bool is_first, Value* column, Value* time) {
  BeginLanes();
  column_ = column;
  if (options_.decides) decisions_.BeginStep(column, time);
  if (!options_.looks) return;
  auto* const vector = VectorOf(b_.getInt32Ty());
  bad_ = Variables(b_.getInt32Ty());
  for (size_t part = 0; part < parts(); ++part) {
    looked_.push_back(b_.CreateConstGEP1_64(vector, looked, part));
    if (!is_first) b_.CreateStore(b_.CreateLoad(vector, looked_.back()), bad_[part]);
  }
  if (is_first) Set(bad_, Splat32(0));
}

void RecordWriter::BeginStep(Value* column, Value* time) {
  column_ = column;
  if (options_.looks) Set(bad_, Splat32(0));
  if (options_.decides) decisions_.BeginStep(column, time);
}

void RecordWriter::Decision(const Statement& s, Carrier of, Carrier of_extra, const Told& told) {
  if (!options_.decides) return;
  if (s.code == plan::Code::kTest) return decisions_.Test(s, of, of_extra, told);
  if (s.code == plan::Code::kRun) return decisions_.Run(s, told);
  decisions_.Decide(s, of, of_extra, told);
}

Vectors RecordWriter::Running() {
  if (!options_.looks || !options_.stops) return used_;
  Vectors running;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const health = Get(health_, part, b_.getInt64Ty());
    Value* const is_stopped =
        b_.CreateAnd(b_.CreateICmpSGE(health, Splat64(0)),
                     b_.CreateICmpNE(b_.CreateAnd(health, Splat64(1)), Splat64(0)));
    running.push_back(b_.CreateAnd(used_[part], b_.CreateNot(is_stopped)));
  }
  return running;
}

// An integer of 32 bits that is negative where x is not finite: few instructions, and the integers of
// many results are joined by `or`, which loops over elements can do in vectors.
Value* RecordWriter::NegativeWhereNotFinite(Value* x) {
  const bool is_f64 = x->getType()->getScalarType()->isDoubleTy();
  Value* high = nullptr;
  if (is_f64) {
    Value* const bits = b_.CreateBitCast(x, VectorOf(b_.getInt64Ty()));
    high = b_.CreateTrunc(b_.CreateLShr(bits, Splat64(32)), VectorOf(b_.getInt32Ty()));
  } else {
    high = b_.CreateBitCast(x, VectorOf(b_.getInt32Ty()));
  }
  const uint32_t infinity = is_f64 ? 0x7FF00000u : 0x7F800000u;
  return b_.CreateAdd(b_.CreateAnd(high, Splat32(0x7FFFFFFFu)), Splat32(0x80000000u - infinity));
}

void RecordWriter::Look(const Told& told) {
  if (!options_.looks) return;
  for (size_t part = 0; part < parts(); ++part) {
    Value* looked = NegativeWhereNotFinite(told.operands[0][part]);
    const auto only = [&](Value* where) {
      const auto* const constant = llvm::dyn_cast<llvm::Constant>(where);
      if (constant != nullptr && constant->isAllOnesValue()) return;
      looked = b_.CreateAnd(looked, b_.CreateSExt(where, VectorOf(b_.getInt32Ty())));
    };
    only(told.mask[part]);
    if (told.operands.size() > 1) only(told.operands[1][part]);
    Value* const before = Get(bad_, part, b_.getInt32Ty());
    b_.CreateStore(b_.CreateOr(before, looked), bad_[part]);
  }
}

void RecordWriter::Judge(Value* time, bool stops, uint64_t code) {
  if (!options_.looks) return;
  Vectors bad;
  for (size_t part = 0; part < parts(); ++part) {
    bad.push_back(b_.CreateICmpSLT(Get(bad_, part, b_.getInt32Ty()), Splat32(0)));
    // An instance that was not finite before step 0 stops there.
    if (stops) {
      Value* const health = Get(health_, part, b_.getInt64Ty());
      bad[part] = b_.CreateOr(bad[part], b_.CreateICmpSGE(health, Splat64(0)));
    }
  }
  Value* const given =
      b_.CreateICmpNE(b_.CreatePtrToInt(arguments_[kBadInputs], b_.getInt64Ty()), b_.getInt64(0));
  If(b_.CreateOr(given, Any(bad)), [&] { JudgeLanes(time, stops, code); });
}

// At least one lane, or an input, is not finite.
void RecordWriter::JudgeLanes(Value* time, bool stops, uint64_t kind) {
  Value* const bad_inputs =
      b_.CreateICmpNE(b_.CreatePtrToInt(arguments_[kBadInputs], b_.getInt64Ty()), b_.getInt64(0));
  Vectors input;
  // No pointer: no input is bad.
  llvm::Function* const function = b_.GetInsertBlock()->getParent();
  auto* const before = b_.GetInsertBlock();
  auto* const inside = llvm::BasicBlock::Create(context_, "inputs", function);
  auto* const after = llvm::BasicBlock::Create(context_, "judge", function);
  b_.CreateCondBr(bad_inputs, inside, after);
  b_.SetInsertPoint(inside);
  Vectors loaded;
  auto* const vector = VectorOf(b_.getInt32Ty());
  for (size_t part = 0; part < parts(); ++part) {
    Value* const at =
        b_.CreateGEP(vector, arguments_[kBadInputs],
                     b_.CreateAdd(b_.CreateMul(column_, b_.getInt64(parts())), b_.getInt64(part)));
    loaded.push_back(b_.CreateAlignedLoad(vector, at, llvm::Align(4)));
  }
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
  for (size_t part = 0; part < parts(); ++part) {
    auto* const flags = b_.CreatePHI(vector, 2);
    flags->addIncoming(llvm::Constant::getNullValue(vector), before);
    flags->addIncoming(loaded[part], inside);
    input.push_back(flags);
  }
  const Vectors running = Running();
  for (size_t part = 0; part < parts(); ++part) {
    Value* const health = Get(health_, part, b_.getInt64Ty());
    Value* const of_input = b_.CreateICmpNE(input[part], Splat32(0));
    Value* const bad = b_.CreateICmpSLT(Get(bad_, part, b_.getInt32Ty()), Splat32(0));
    Value* const code = b_.CreateOr(Splat(b_.CreateShl(time, b_.getInt64(8))),
                                    b_.CreateSelect(of_input, Splat64(0), Splat64(kind)));
    Value* const is_new =
        b_.CreateAnd(b_.CreateAnd(b_.CreateOr(of_input, bad), b_.CreateICmpSLT(health, Splat64(0))),
                     running[part]);
    Value* next = b_.CreateSelect(is_new, code, health);
    if (stops) {
      Value* const ends = b_.CreateAnd(b_.CreateICmpSGE(next, Splat64(0)), running[part]);
      next = b_.CreateSelect(ends, b_.CreateOr(next, Splat64(1)), next);
    }
    b_.CreateStore(next, health_[part]);
  }
}

// ---- counters ----

RecordWriter::CounterPair& RecordWriter::CountersOf(int key, std::map<int, CounterPair>& all,
                                                    llvm::Type* type) {
  const auto [at, is_new] = all.try_emplace(key);
  if (!is_new) return at->second;
  for (Value** variable : {&at->second.first, &at->second.second}) {
    *variable = entry_.CreateAlloca(type);
    entry_.CreateStore(llvm::Constant::getNullValue(type), *variable);
  }
  return at->second;
}

void RecordWriter::Count(Counters& all, int key, Value* first, Value* second, int64_t times) {
  auto* const type = in_loop_ ? b_.getInt32Ty() : b_.getInt64Ty();
  CounterPair& to = CountersOf(key, in_loop_ ? all.of_loop : all.total, type);
  to.counts = true;
  Value* const each = llvm::ConstantInt::get(type, static_cast<uint64_t>(times));
  AddTo(to.first, b_.CreateMul(b_.CreateZExt(first, type), each));
  AddTo(to.second, b_.CreateMul(b_.CreateZExt(second, type), each));
}

void RecordWriter::EndLoop() {
  in_loop_ = false;
  AddLoop(ranges_);
  AddLoop(additions_);
}

void RecordWriter::AddLoop(Counters& all) {
  for (auto& [key, from] : all.of_loop) {
    if (!std::exchange(from.counts, false)) continue;
    const CounterPair& to = CountersOf(key, all.total, b_.getInt64Ty());
    const auto add = [&](Value* total, Value* counter) {
      AddTo(total, b_.CreateZExt(b_.CreateLoad(b_.getInt32Ty(), counter), b_.getInt64Ty()));
      b_.CreateStore(b_.getInt32(0), counter);
    };
    add(to.first, from.first);
    add(to.second, from.second);
  }
}

void RecordWriter::CountLanes(Value* counter, const Vectors& mask, int64_t times) {
  AddTo(counter, b_.CreateMul(Population(BitsOf(mask)), b_.getInt64(static_cast<uint64_t>(times))));
}

void RecordWriter::AddAll(const Counters& all, Member member, uint64_t stride, uint64_t first,
                          uint64_t second) {
  const auto add = [&](uint64_t place, Value* counter) {
    AddTo(Offset(arguments_[member], place), b_.CreateLoad(b_.getInt64Ty(), counter));
  };
  for (const auto& [key, counters] : all.total) {
    const uint64_t place = stride * static_cast<uint64_t>(key);
    add(first + place, counters.first);
    add(second + place, counters.second);
  }
}

// ---- ranges ----

void RecordWriter::CountRanges(precision::Role role, int64_t times, const Vectors& under,
                               const Vectors& over) {
  if (in_registers()) {
    Count(ranges_, static_cast<int>(role), under[0], over[0], times);
    if (watched_ == nullptr) return;
    Value* const before = b_.CreateLoad(b_.getInt32Ty(), watched_);
    b_.CreateStore(b_.CreateOr(before, One(b_.CreateOr(under[0], over[0]))), watched_);
    return;
  }
  Vectors either;
  for (size_t part = 0; part < parts(); ++part) {
    either.push_back(b_.CreateOr(under[part], over[part]));
  }
  IfRarely(Any(either), [&] {
    Value* const counters = Offset(arguments_[kRanges], 8 * static_cast<uint64_t>(role));
    CountLanes(Offset(counters, offsetof(RangeColumn, underflows)), under, times);
    CountLanes(Offset(counters, offsetof(RangeColumn, overflows)), over, times);
    if (watched_ != nullptr) b_.CreateStore(b_.getInt32(1), watched_);
  });
}

void RecordWriter::Range(const Statement& s, Carrier from, const Told& told) {
  if (!options_.ranges) return;
  const std::string suffix = Cat(plan::CarrierName(from), "_", precision::FormatName(s.format));
  Vectors under, over;
  for (size_t part = 0; part < parts(); ++part) {
    Value* mask = told.mask[part];
    if (told.operands.size() > 2) mask = b_.CreateAnd(mask, told.operands[2][part]);
    Value* const x = told.operands[0][part];
    Value* const r = told.operands[1][part];
    under.push_back(b_.CreateAnd(mask, Call(Cat("underflows_", suffix), {x, r})));
    over.push_back(b_.CreateAnd(mask, Call(Cat("overflows_", suffix), {x})));
  }
  CountRanges(s.role, s.number, under, over);
}

void RecordWriter::Stored(const Statement& s, const Told& told) {
  if (!options_.ranges) return;
  const std::string_view format = precision::FormatName(s.format);
  Vectors under, over;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const x = told.operands[0][part];
    under.push_back(b_.CreateAnd(told.mask[part], Call(Cat("stores_tiny_", format), {x})));
    over.push_back(b_.CreateAnd(told.mask[part], Call(Cat("stores_infinity_", format), {x})));
  }
  CountRanges(s.role, 1, under, over);
}

// ---- additions ----

Value* RecordWriter::IsSampled() {
  return b_.CreateICmpNE(b_.CreatePtrToInt(arguments_[kAdditions], b_.getInt64Ty()),
                         b_.getInt64(0));
}

void RecordWriter::Absorbed(const Statement& s, const Told& told) {
  if (!options_.ranges) return;
  Vectors additions, absorbed;
  for (size_t part = 0; part < parts(); ++part) {
    const auto counts = [&](Value* x) {
      Value* const magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
      auto* const infinity = llvm::ConstantFP::getInfinity(x->getType());
      auto* const zero = llvm::ConstantFP::get(x->getType(), 0.0);
      return b_.CreateAnd(b_.CreateFCmpOLT(magnitude, infinity), b_.CreateFCmpOGT(magnitude, zero));
    };
    Value* const x = told.operands[0][part];
    Value* const y = told.operands[1][part];
    Value* const stored = told.operands[2][part];
    Value* const is_one = b_.CreateOr(b_.CreateFCmpOEQ(stored, x), b_.CreateFCmpOEQ(stored, y));
    additions.push_back(b_.CreateAnd(told.mask[part], b_.CreateAnd(counts(x), counts(y))));
    absorbed.push_back(b_.CreateAnd(additions.back(), is_one));
  }
  if (in_registers()) return Count(additions_, s.site, additions[0], absorbed[0], s.number);
  Value* const column =
      Offset(arguments_[kAdditions], sizeof(AdditionColumn) * static_cast<uint64_t>(s.site));
  CountLanes(Offset(column, offsetof(AdditionColumn, additions)), additions, s.number);
  CountLanes(Offset(column, offsetof(AdditionColumn, absorbed)), absorbed, s.number);
}

void RecordWriter::Take(const Statement& s, const Told& told) {
  if (!options_.ranges) return;
  Value* const column = Memory(kBackward, column_, sizeof(BackwardColumn), 0);
  const Vectors present = Both(told.operands[1], told.mask);
  const bool is_f64 = told.operands[0][0]->getType()->getScalarType()->isDoubleTy();
  const std::string carrier = is_f64 ? "f64" : "f32";
  auto* const integer = is_f64 ? b_.getInt64Ty() : b_.getInt32Ty();
  Vectors finite, buckets, under;
  Value* largest = nullptr;  // the bits of magnitudes are in the order of these
  const Vectors over(parts(), llvm::Constant::getNullValue(VectorOf(b_.getInt1Ty())));
  for (size_t part = 0; part < parts(); ++part) {
    Value* const x = told.operands[0][part];
    Value* const is_under = Call(Cat("stores_tiny_", precision::FormatName(s.format)), {x});
    under.push_back(b_.CreateAnd(present[part], is_under));
    Value* const magnitude = Call("abs_" + carrier, {x});
    finite.push_back(b_.CreateAnd(present[part], Call("is_finite_" + carrier, {x})));
    buckets.push_back(Call("exponent_bucket_" + carrier, {magnitude}));
    Value* const all = b_.CreateBitCast(magnitude, VectorOf(integer));
    Value* const bits =
        b_.CreateSelect(finite[part], all, llvm::Constant::getNullValue(all->getType()));
    largest =
        largest == nullptr ? bits : b_.CreateBinaryIntrinsic(llvm::Intrinsic::umax, largest, bits);
  }
  Value* of_all = width() == 1 ? largest : b_.CreateIntMaxReduce(largest, false);
  if (!is_f64) {
    Value* const wide = b_.CreateFPExt(b_.CreateBitCast(of_all, b_.getFloatTy()), b_.getDoubleTy());
    of_all = b_.CreateBitCast(wide, b_.getInt64Ty());
  }
  Value* const at =
      b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offsetof(BackwardColumn, largest));
  Value* const before = b_.CreateLoad(b_.getInt64Ty(), at);
  b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::umax, before, of_all), at);
  AddTo(b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offsetof(BackwardColumn, nonfinite)),
        b_.CreateTrunc(Population(BitsOf(ButNot(present, finite))), b_.getInt32Ty()));
  CountInHistogram(column, offsetof(BackwardColumn, exponents), buckets, finite);
  CountRanges(s.role, 1, under, over);
}

void RecordWriter::Take(const TakenField& field, Value* values, Value* present, int64_t count,
                        const Vectors& mask) {
  If(Any(mask), [&] {
    Value* const column = Memory(kBackward, column_, sizeof(BackwardColumn), 0);
    Value* const underflows = Offset(arguments_[kRanges], 8 * static_cast<uint64_t>(field.role) +
                                                              offsetof(RangeColumn, underflows));
    CallBack(kTakeCotangents,
             {column, underflows, values, present, b_.getInt64(static_cast<uint64_t>(count)),
              b_.getInt32(static_cast<uint32_t>(field.format))});
  });
}

void RecordWriter::End() {
  for (size_t part = 0; part < looked_.size(); ++part) {
    b_.CreateStore(Get(bad_, part, b_.getInt32Ty()), looked_[part]);
  }
  if (options_.looks) StoreLanes(kHealth, health_, b_.getInt64Ty());
  if (options_.decides) decisions_.End();
  AddAll(ranges_, kRanges, 8, offsetof(RangeColumn, underflows), offsetof(RangeColumn, overflows));
  if (additions_.total.empty()) return;
  If(IsSampled(), [&] {
    AddAll(additions_, kAdditions, sizeof(AdditionColumn), offsetof(AdditionColumn, additions),
           offsetof(AdditionColumn, absorbed));
  });
}

}  // namespace simgrad::sim::compiled
