#include "sim/backend/compiled/record_writer.h"

#include <cstddef>

#include "sim/backend/compiled/group_args.h"
#include "sim/backend/compiled/widen.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/text.h"

namespace simgrad::sim::compiled {
namespace {

using llvm::Value;
using plan::Carrier;
using plan::Statement;

constexpr uint64_t kNoMargin = ~uint64_t{0};

}  // namespace

RecordWriter::RecordWriter(llvm::Module& module, llvm::IRBuilder<>& builder,
                           llvm::IRBuilder<>& entry, const plan::Plan& plan,
                           const WriterOptions& options, Value* const* arguments,
                           llvm::Function*& function)
    : module_(module),
      context_(module.getContext()),
      b_(builder),
      entry_(entry),
      plan_(plan),
      options_(options),
      arguments_(arguments),
      function_(function) {}

// ---- vectors and variables ----

Value* RecordWriter::Call(const std::string& name, const std::vector<Value*>& operands) {
  return WidenedCall(b_, *module_.getFunction(name), operands, width());
}

Value* RecordWriter::Any(const Vectors& mask) {
  Value* any = mask[0];
  for (size_t k = 1; k < mask.size(); ++k) any = b_.CreateOr(any, mask[k]);
  Value* const bits = b_.CreateBitCast(any, b_.getIntNTy(width()));
  return b_.CreateICmpNE(bits, llvm::Constant::getNullValue(bits->getType()));
}

Vectors RecordWriter::Variables(llvm::Type* type) {
  Vectors variables;
  for (size_t part = 0; part < parts(); ++part) {
    variables.push_back(entry_.CreateAlloca(VectorOf(type)));
  }
  return variables;
}

void RecordWriter::Set(const Vectors& variables, Value* value) {
  for (Value* variable : variables) b_.CreateStore(value, variable);
}

Value* RecordWriter::Get(const Vectors& variables, size_t part, llvm::Type* type) {
  return b_.CreateLoad(VectorOf(type), variables[part]);
}

Value* RecordWriter::BitsOf(const Vectors& mask) {
  auto* const all = b_.getIntNTy(width() * static_cast<unsigned>(parts()));
  Value* bits = nullptr;
  for (size_t part = 0; part < parts(); ++part) {
    Value* own = b_.CreateZExt(b_.CreateBitCast(mask[part], b_.getIntNTy(width())), all);
    if (part > 0) own = b_.CreateShl(own, llvm::ConstantInt::get(all, width() * part));
    bits = bits == nullptr ? own : b_.CreateOr(bits, own);
  }
  return bits;
}

Value* RecordWriter::Population(Value* bits) {
  return b_.CreateZExtOrTrunc(b_.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, bits),
                              b_.getInt64Ty());
}

void RecordWriter::Count(Value* counter, const Vectors& mask) {
  AddTo(counter, Population(BitsOf(mask)));
}

Vectors RecordWriter::Both(const Vectors& a, const Vectors& b) {
  Vectors both;
  for (size_t part = 0; part < parts(); ++part) both.push_back(b_.CreateAnd(a[part], b[part]));
  return both;
}

Vectors RecordWriter::ButNot(const Vectors& a, const Vectors& b) {
  Vectors rest;
  for (size_t part = 0; part < parts(); ++part) {
    rest.push_back(b_.CreateAnd(a[part], b_.CreateNot(b[part])));
  }
  return rest;
}

void RecordWriter::If(Value* condition, const std::function<void()>& body) {
  llvm::Function* const function = b_.GetInsertBlock()->getParent();
  auto* const inside = llvm::BasicBlock::Create(context_, "if", function);
  auto* const after = llvm::BasicBlock::Create(context_, "fi", function);
  b_.CreateCondBr(condition, inside, after);
  b_.SetInsertPoint(inside);
  body();
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

// argument + index * stride + offset, in bytes.
Value* RecordWriter::Memory(Member member, Value* index, uint64_t stride, uint64_t offset) {
  Value* const bytes = b_.CreateAdd(b_.CreateMul(index, b_.getInt64(stride)), b_.getInt64(offset));
  return b_.CreateGEP(b_.getInt8Ty(), arguments_[member], bytes);
}

void RecordWriter::AddTo(Value* address, Value* amount) {
  Value* const before = b_.CreateLoad(amount->getType(), address);
  b_.CreateStore(b_.CreateAdd(before, amount), address);
}

// Of counters of 32 bits, in 64.
Value* RecordWriter::SumOf(const Vectors& variables) {
  Value* sum = nullptr;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const wide =
        b_.CreateZExt(Get(variables, part, b_.getInt32Ty()), VectorOf(b_.getInt64Ty()));
    sum = sum == nullptr ? wide : b_.CreateAdd(sum, wide);
  }
  return b_.CreateAddReduce(sum);
}

// ---- health ----

void RecordWriter::Begin() {
  auto* const i64 = b_.getInt64Ty();
  const auto load = [&](Member member, llvm::Type* type) {
    Vectors vectors;
    for (size_t part = 0; part < parts(); ++part) {
      auto* const vector = VectorOf(type);
      auto* const at = b_.CreateConstGEP1_64(vector, arguments_[member], part);
      vectors.push_back(b_.CreateAlignedLoad(vector, at, llvm::Align(4)));
    }
    return vectors;
  };
  for (Value* used : load(kLanesUsed, b_.getInt32Ty())) {
    used_.push_back(b_.CreateICmpNE(used, Splat32(0)));
  }
  const auto keep = [&](Vectors& variables, Member member, llvm::Type* type) {
    variables = Variables(type);
    const Vectors values = load(member, type);
    for (size_t part = 0; part < parts(); ++part) b_.CreateStore(values[part], variables[part]);
  };
  if (options_.looks) {
    keep(health_, kHealth, i64);
    bad_ = Variables(b_.getInt32Ty());
    Set(bad_, Splat32(0));
  }
  if (!options_.decides) return;
  ranks_ = load(kRanks, b_.getInt32Ty());
  keep(signatures_, kSignatures, i64);
  for (size_t k = 0; k < plan_.terminations.size(); ++k) {
    Termination t;
    t.checks = Counter();
    t.near_stopped = Counter();
    t.near_continued = Counter();
    t.nan_margins = Counter();
    for (Vectors* count : {&t.iterations_sum, &t.iterations_min, &t.iterations_max, &t.has_last}) {
      *count = Variables(b_.getInt32Ty());
    }
    for (Vectors* key : {&t.tested_min, &t.tested_max}) *key = Variables(i64);
    t.last_ulps = Variables(b_.getDoubleTy());
    t.absolute = NewNearest();
    t.ulps = NewNearest();
    terminations_.push_back(std::move(t));
  }
  for (size_t k = 0; k < plan_.events.size(); ++k) {
    Event e;
    e.checks = Counter();
    e.count = Counter();
    e.changes = Counter();
    e.nan_margins = Counter();
    e.absolute = NewNearest();
    e.ulps = NewNearest();
    events_.push_back(std::move(e));
  }
}

void RecordWriter::BeginStep(Value* column, Value* time) {
  column_ = column;
  time_ = time;
  if (options_.looks) Set(bad_, Splat32(0));
  const auto clear = [&](Value* counter) { b_.CreateStore(b_.getInt64(0), counter); };
  for (const Termination& t : terminations_) {
    for (Value* counter : {t.checks, t.near_stopped, t.near_continued, t.nan_margins}) {
      clear(counter);
    }
    for (const Vectors* count : {&t.iterations_sum, &t.iterations_max, &t.has_last}) {
      Set(*count, Splat32(0));
    }
    Set(t.iterations_min, Splat32(~uint32_t{0}));
    Set(t.tested_min, Splat64(~uint64_t{0}));
    Set(t.tested_max, Splat64(0));
    ClearNearest(t.absolute);
    ClearNearest(t.ulps);
  }
  for (const Event& e : events_) {
    for (Value* counter : {e.checks, e.count, e.changes, e.nan_margins}) clear(counter);
    ClearNearest(e.absolute);
    ClearNearest(e.ulps);
  }
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

void RecordWriter::Look(const Told& told) {
  if (!options_.looks) return;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const x = told.operands[0][part];
    const bool is_f64 = x->getType()->getScalarType()->isDoubleTy();
    Value* is_bad = b_.CreateNot(Call(is_f64 ? "is_finite_f64" : "is_finite_f32", {x}));
    is_bad = b_.CreateAnd(is_bad, told.mask[part]);
    if (told.operands.size() > 1) is_bad = b_.CreateAnd(is_bad, told.operands[1][part]);
    Value* const before = Get(bad_, part, b_.getInt32Ty());
    b_.CreateStore(b_.CreateOr(before, b_.CreateSExt(is_bad, VectorOf(b_.getInt32Ty()))),
                   bad_[part]);
  }
}

void RecordWriter::Judge(Value* time, bool stops, uint64_t code) {
  if (!options_.looks) return;
  Vectors bad;
  for (size_t part = 0; part < parts(); ++part) {
    bad.push_back(b_.CreateICmpNE(Get(bad_, part, b_.getInt32Ty()), Splat32(0)));
    // What was not finite before step 0 stops there.
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
    Value* const bad = b_.CreateICmpNE(Get(bad_, part, b_.getInt32Ty()), Splat32(0));
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

// ---- margins ----

RecordWriter::Nearest RecordWriter::NewNearest() {
  return {Variables(b_.getInt64Ty()), Variables(b_.getInt32Ty())};
}

void RecordWriter::ClearNearest(const Nearest& nearest) {
  Set(nearest.magnitude, Splat64(kNoMargin));
  Set(nearest.key, Splat32(~uint32_t{0}));
}

RecordWriter::Distance RecordWriter::DistanceOf(const Statement& s, Carrier of, Carrier of_extra,
                                                const Told& told, size_t part) {
  std::vector<Value*> sides = {told.operands[0][part], told.operands[1][part]};
  if (of == Carrier::kI32 || of == Carrier::kI64) {
    for (Value*& side : sides) side = b_.CreateSExt(side, VectorOf(b_.getInt64Ty()));
    Value* const distance = Call("distance_integer", sides);
    return {distance, distance, Call("is_negative_integer", sides), Splat(b_.getTrue())};
  }
  const bool no_extra = told.extra.empty();
  const Carrier extra = no_extra ? of : of_extra;
  sides.push_back(no_extra ? llvm::Constant::getNullValue(sides[0]->getType()) : told.extra[part]);
  const std::string suffix = Cat(precision::FormatName(s.format), "_", plan::CarrierName(extra));
  return {Call(Cat("distance_", suffix), sides), Call(Cat("distance_ulps_", suffix), sides),
          Call(Cat("is_negative_", suffix), sides), Call(Cat("is_number_", suffix), sides)};
}

// The nearer one of the lane, the smaller key of equal ones.
void RecordWriter::Offer(const Nearest& nearest, size_t part, Value* counts, Value* magnitude,
                         Value* negative) {
  if (!options_.extremes) return;
  Value* const bits = b_.CreateBitCast(magnitude, VectorOf(b_.getInt64Ty()));
  Value* const before = Get(nearest.magnitude, part, b_.getInt64Ty());
  Value* const key_before = Get(nearest.key, part, b_.getInt32Ty());
  Value* const twice = b_.CreateShl(ranks_[part], Splat32(1));
  Value* const key = b_.CreateAdd(twice, b_.CreateSelect(negative, Splat32(0), Splat32(1)));
  Value* const is_nearer =
      b_.CreateOr(b_.CreateICmpULT(bits, before),
                  b_.CreateAnd(b_.CreateICmpEQ(bits, before), b_.CreateICmpULT(key, key_before)));
  Value* const takes = b_.CreateAnd(counts, is_nearer);
  b_.CreateStore(b_.CreateSelect(takes, bits, before), nearest.magnitude[part]);
  b_.CreateStore(b_.CreateSelect(takes, key, key_before), nearest.key[part]);
}

void RecordWriter::JoinNearest(const Nearest& nearest, Value* column, uint64_t offset) {
  if (!options_.extremes) return;
  auto* const i64 = b_.getInt64Ty();
  Value* smallest = nullptr;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const magnitude = Get(nearest.magnitude, part, i64);
    smallest = smallest == nullptr
                   ? magnitude
                   : b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, smallest, magnitude);
  }
  Value* const magnitude = b_.CreateIntMinReduce(smallest, false);
  Value* smallest_key = nullptr;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const is_it = b_.CreateICmpEQ(Get(nearest.magnitude, part, i64), Splat(magnitude));
    Value* const key =
        b_.CreateSelect(is_it, Get(nearest.key, part, b_.getInt32Ty()), Splat32(~uint32_t{0}));
    smallest_key = smallest_key == nullptr
                       ? key
                       : b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, smallest_key, key);
  }
  Value* key = b_.CreateZExt(b_.CreateIntMinReduce(smallest_key, false), i64);
  Value* const none = b_.CreateICmpEQ(magnitude, b_.getInt64(kNoMargin));
  key = b_.CreateSelect(none, b_.getInt64(~uint64_t{0}), key);
  Value* const at = b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offset);
  Value* const at_key = b_.CreateConstGEP1_64(b_.getInt8Ty(), at, 8);
  Value* const before = b_.CreateLoad(i64, at);
  Value* const key_before = b_.CreateLoad(i64, at_key);
  Value* const is_nearer = b_.CreateOr(
      b_.CreateICmpULT(magnitude, before),
      b_.CreateAnd(b_.CreateICmpEQ(magnitude, before), b_.CreateICmpULT(key, key_before)));
  b_.CreateStore(b_.CreateSelect(is_nearer, magnitude, before), at);
  b_.CreateStore(b_.CreateSelect(is_nearer, key, key_before), at_key);
}

// ---- tests, runs, events ----

void RecordWriter::Test(const Statement& s, Carrier of, Carrier of_extra, const Told& told) {
  if (!options_.decides) return;
  const Termination& t = terminations_[static_cast<size_t>(s.site)];
  Value* const band = Splat(arguments_[kNearBand]);
  const Vectors mask = told.where.empty() ? told.mask : Both(told.mask, told.where);
  Vectors number, near;
  auto* const i32 = b_.getInt32Ty();
  for (size_t part = 0; part < parts(); ++part) {
    const Distance d = DistanceOf(s, of, of_extra, told, part);
    Value* const counts = b_.CreateAnd(mask[part], d.number);
    number.push_back(counts);
    near.push_back(b_.CreateAnd(counts, b_.CreateFCmpOLE(d.ulps, band)));
    Offer(t.absolute, part, counts, d.absolute, d.negative);
    Offer(t.ulps, part, counts, d.ulps, d.negative);
    Value* const before = Get(t.last_ulps, part, b_.getDoubleTy());
    b_.CreateStore(b_.CreateSelect(mask[part], d.ulps, before), t.last_ulps[part]);
    Value* const has = b_.CreateSExt(d.number, VectorOf(i32));
    b_.CreateStore(b_.CreateSelect(mask[part], has, Get(t.has_last, part, i32)), t.has_last[part]);
  }
  if (options_.instances) {
    // The entry test and the first test have one value.
    const Vectors told_now = told.where.empty() ? mask : Both(mask, told.operands[2]);
    Vectors wide;
    for (Value* lhs : told.operands[0]) {
      wide.push_back(b_.CreateFPExt(lhs, VectorOf(b_.getDoubleTy())));
    }
    Value* const values = Listed(wide, b_.getDoubleTy());
    EachLaneOf(told_now, [&](Value* lane) {
      Value* const value =
          b_.CreateLoad(b_.getDoubleTy(), b_.CreateGEP(b_.getDoubleTy(), values, lane));
      CallBack(kTellTested, {column_, b_.getInt64(static_cast<uint64_t>(s.site)), lane, value});
    });
  }
  Count(t.checks, mask);
  Count(t.nan_margins, ButNot(mask, number));
  Count(t.near_stopped, Both(near, told.operands[2]));
  Count(t.near_continued, ButNot(near, told.operands[2]));
}

Value* RecordWriter::Listed(const Vectors& values, llvm::Type* type) {
  auto* const listed = entry_.CreateAlloca(type, entry_.getInt64(width() * parts()));
  for (size_t part = 0; part < parts(); ++part) {
    b_.CreateAlignedStore(values[part], b_.CreateConstGEP1_64(VectorOf(type), listed, part),
                          llvm::Align(4));
  }
  return listed;
}

void RecordWriter::EachLaneOf(const Vectors& mask, const std::function<void(Value* lane)>& body) {
  Value* const all = BitsOf(mask);
  auto* const before = b_.GetInsertBlock();
  auto* const head = llvm::BasicBlock::Create(context_, "lanes", function_);
  auto* const inside = llvm::BasicBlock::Create(context_, "lane", function_);
  auto* const after = llvm::BasicBlock::Create(context_, "told", function_);
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  auto* const rest = b_.CreatePHI(all->getType(), 2);
  rest->addIncoming(all, before);
  Value* const none = llvm::Constant::getNullValue(all->getType());
  b_.CreateCondBr(b_.CreateICmpNE(rest, none), inside, after);
  b_.SetInsertPoint(inside);
  Value* const lane =
      b_.CreateIntrinsic(llvm::Intrinsic::cttz, {all->getType()}, {rest, b_.getTrue()});
  body(b_.CreateZExtOrTrunc(lane, b_.getInt64Ty()));
  Value* const one = llvm::ConstantInt::get(all->getType(), 1);
  rest->addIncoming(b_.CreateAnd(rest, b_.CreateSub(rest, one)), b_.GetInsertBlock());
  b_.CreateBr(head);
  b_.SetInsertPoint(after);
}

void RecordWriter::CountInHistogram(Value* column, uint64_t offset, const Vectors& buckets,
                                    const Vectors& mask) {
  auto* const i32 = b_.getInt32Ty();
  Value* const histogram = b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offset);
  Value* const listed = Listed(buckets, i32);
  Value* const all = BitsOf(mask);
  llvm::Function* const function = b_.GetInsertBlock()->getParent();
  auto* const before = b_.GetInsertBlock();
  auto* const head = llvm::BasicBlock::Create(context_, "buckets", function);
  auto* const inside = llvm::BasicBlock::Create(context_, "bucket", function);
  auto* const after = llvm::BasicBlock::Create(context_, "counted", function);
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  auto* const rest = b_.CreatePHI(all->getType(), 2);
  rest->addIncoming(all, before);
  b_.CreateCondBr(b_.CreateICmpNE(rest, llvm::Constant::getNullValue(all->getType())), inside,
                  after);
  b_.SetInsertPoint(inside);
  Value* const first =
      b_.CreateIntrinsic(llvm::Intrinsic::cttz, {all->getType()}, {rest, b_.getTrue()});
  Value* const bucket =
      b_.CreateLoad(i32, b_.CreateGEP(i32, listed, b_.CreateZExtOrTrunc(first, b_.getInt64Ty())));
  Vectors same;
  for (Value* own : buckets) same.push_back(b_.CreateICmpEQ(own, Splat(bucket)));
  Value* const taken = b_.CreateAnd(BitsOf(same), rest);
  AddTo(b_.CreateGEP(i32, histogram, b_.CreateZExt(bucket, b_.getInt64Ty())),
        b_.CreateTrunc(Population(taken), i32));
  rest->addIncoming(b_.CreateXor(rest, taken), inside);
  b_.CreateBr(head);
  b_.SetInsertPoint(after);
}

// Whatever is the same for all lanes is hashed once.
void RecordWriter::Sign(uint64_t site, const Told& told, const Vectors& outcomes,
                        const Vectors& mask) {
  Value* const element = told.element == nullptr ? b_.getInt64(0) : told.element;
  llvm::Function& of_step = *module_.getFunction("decision_of_step");
  llvm::Function& of_element = *module_.getFunction("decision_of_element");
  Value* const step = WidenedCall(b_, of_step, {b_.getInt64(site), time_}, 1);
  Value* uniform = nullptr;
  if (told.iteration.empty()) {
    uniform = WidenedCall(b_, of_element, {step, b_.getInt64(0), element}, 1);
  }
  for (size_t part = 0; part < parts(); ++part) {
    Value* const prefix =
        uniform != nullptr
            ? Splat(uniform)
            : Call("decision_of_element", {Splat(step), told.iteration[part], Splat(element)});
    Value* const hash = Call("decision_of_outcome", {prefix, outcomes[part]});
    Value* const before = Get(signatures_, part, b_.getInt64Ty());
    Value* const added = b_.CreateSelect(mask[part], hash, Splat64(0));
    b_.CreateStore(b_.CreateAdd(before, added), signatures_[part]);
  }
}

Value* RecordWriter::ColumnOf(Member member, int32_t site, size_t sites, uint64_t bytes) {
  return Memory(member, column_, sites * bytes, static_cast<uint64_t>(site) * bytes);
}

void RecordWriter::Run(const Statement& s, const Told& told) {
  if (!options_.decides) return;
  const size_t site = static_cast<size_t>(s.site);
  const Termination& t = terminations_[site];
  Value* const column =
      ColumnOf(kTerminations, s.site, plan_.terminations.size(), sizeof(TerminationColumn));
  Vectors iteration_buckets, margin_buckets, has_margin, outcomes;
  auto* const i32 = b_.getInt32Ty();
  auto* const i64 = b_.getInt64Ty();
  for (size_t part = 0; part < parts(); ++part) {
    Value* const mask = told.mask[part];
    Value* const ran = told.operands[0][part];
    Value* const reason = told.operands[1][part];
    Value* tested = told.operands[2][part];
    Value* const counted = b_.CreateSelect(mask, ran, Splat32(0));
    b_.CreateStore(b_.CreateAdd(Get(t.iterations_sum, part, i32), counted), t.iterations_sum[part]);
    b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, Get(t.iterations_min, part, i32),
                                            b_.CreateSelect(mask, ran, Splat32(~uint32_t{0}))),
                   t.iterations_min[part]);
    b_.CreateStore(
        b_.CreateBinaryIntrinsic(llvm::Intrinsic::umax, Get(t.iterations_max, part, i32), counted),
        t.iterations_max[part]);
    if (options_.extremes) {
      tested = b_.CreateFPExt(tested, VectorOf(b_.getDoubleTy()));
      Value* const key = Call("ordered_key", {tested});
      Value* const tells = b_.CreateAnd(mask, b_.CreateFCmpORD(tested, tested));
      b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, Get(t.tested_min, part, i64),
                                              b_.CreateSelect(tells, key, Splat64(~uint64_t{0}))),
                     t.tested_min[part]);
      b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::umax, Get(t.tested_max, part, i64),
                                              b_.CreateSelect(tells, key, Splat64(0))),
                     t.tested_max[part]);
    }
    iteration_buckets.push_back(Call("iteration_bucket", {ran}));
    margin_buckets.push_back(Call("margin_bucket", {Get(t.last_ulps, part, b_.getDoubleTy())}));
    has_margin.push_back(
        b_.CreateAnd(mask, b_.CreateICmpNE(Get(t.has_last, part, i32), Splat32(0))));
    // The next run of this step has no last test yet.
    b_.CreateStore(b_.CreateSelect(mask, Splat32(0), Get(t.has_last, part, i32)), t.has_last[part]);
    outcomes.push_back(Call("loop_outcome", {ran, reason}));
  }
  CountInHistogram(column, offsetof(TerminationColumn, iterations), iteration_buckets, told.mask);
  CountInHistogram(column, offsetof(TerminationColumn, histogram), margin_buckets, has_margin);
  for (int reason = 0; reason < kReasons; ++reason) {
    Vectors is_it;
    for (Value* own : told.operands[1]) {
      is_it.push_back(b_.CreateICmpEQ(own, Splat32(static_cast<uint32_t>(reason))));
    }
    Value* const at = b_.CreateConstGEP1_64(
        b_.getInt8Ty(), column,
        offsetof(TerminationColumn, reasons) + 8 * static_cast<uint64_t>(reason));
    Value* const added = Population(BitsOf(Both(is_it, told.mask)));
    AddTo(at, added);
    AddTo(b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offsetof(TerminationColumn, runs)), added);
  }
  Sign(plan_.terminations[site].hash, told, outcomes, told.mask);
  if (!options_.instances) return;
  Value* const iterations = Listed(told.operands[0], i32);
  Value* const reasons = Listed(told.operands[1], i32);
  EachLaneOf(told.mask, [&](Value* lane) {
    CallBack(kTellRun, {column_, b_.getInt64(site), lane,
                        b_.CreateLoad(i32, b_.CreateGEP(i32, iterations, lane)),
                        b_.CreateLoad(i32, b_.CreateGEP(i32, reasons, lane))});
  });
}

// A function of GroupArgs, which gets them first.
void RecordWriter::CallBack(Member member, std::vector<Value*> operands) {
  auto* const pointer = llvm::PointerType::get(context_, 0);
  operands.insert(operands.begin(), function_->getArg(0));
  std::vector<llvm::Type*> types;
  for (Value* operand : operands) types.push_back(operand->getType());
  auto* const type = llvm::FunctionType::get(b_.getVoidTy(), types, false);
  b_.CreateCall(type,
                b_.CreateLoad(pointer, b_.CreateConstGEP1_64(b_.getInt8Ty(), function_->getArg(0),
                                                             8 * member)),
                operands);
}

void RecordWriter::Decide(const Statement& s, Carrier of, Carrier of_extra, const Told& told) {
  if (!options_.decides) return;
  const size_t site = static_cast<size_t>(s.site);
  const plan::RecordedSite& recorded = plan_.events[site];
  const Event& e = events_[site];
  auto* const stored = VectorOf(b_.getInt32Ty());
  Value* const first_element = b_.getInt64(static_cast<uint64_t>(recorded.first_element));
  Vectors changed, values, numbers, last_at;
  const Vectors& guard = told.where.empty() ? told.mask : told.where;
  Value* const element = told.element == nullptr ? b_.getInt64(0) : told.element;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const mask = told.mask[part];
    Value* const value = b_.CreateAnd(mask, told.operands[2][part]);
    Value* const asked = b_.CreateAnd(mask, guard[part]);
    const Distance d = DistanceOf(s, of, of_extra, told, part);
    Value* const counts = b_.CreateAnd(asked, d.number);
    numbers.push_back(counts);
    values.push_back(value);
    Offer(e.absolute, part, counts, d.absolute, d.negative);
    Offer(e.ulps, part, counts, d.ulps, d.negative);
    Value* const vector =
        b_.CreateAdd(b_.CreateMul(b_.CreateAdd(first_element, element), b_.getInt64(parts())),
                     b_.getInt64(part));
    last_at.push_back(b_.CreateGEP(stored, arguments_[kLastEvents], vector));
    Value* const before = b_.CreateAlignedLoad(stored, last_at[part], llvm::Align(4));
    Value* const held = b_.CreateICmpNE(before, Splat32(0));
    changed.push_back(b_.CreateAnd(mask, b_.CreateXor(held, value)));
    b_.CreateAlignedStore(b_.CreateSelect(mask, b_.CreateSExt(value, stored), before),
                          last_at[part], llvm::Align(4));
    auto* const steps = VectorOf(b_.getInt64Ty());
    Value* const first_at =
        b_.CreateGEP(steps, arguments_[kFirstEvents],
                     b_.getInt64(static_cast<uint64_t>(s.site) * parts() + part));
    Value* const first = b_.CreateAlignedLoad(steps, first_at, llvm::Align(4));
    Value* const is_first = b_.CreateAnd(value, b_.CreateICmpSLT(first, Splat64(0)));
    b_.CreateAlignedStore(b_.CreateSelect(is_first, Splat(time_), first), first_at, llvm::Align(4));
  }
  const Vectors asked = Both(told.mask, guard);
  Count(e.checks, asked);
  Count(e.count, values);
  Count(e.nan_margins, ButNot(asked, numbers));
  If(Any(changed), [&] {
    Count(e.changes, changed);
    Vectors outcomes;
    for (Value* value : values) outcomes.push_back(b_.CreateZExt(value, VectorOf(b_.getInt64Ty())));
    Sign(recorded.hash, told, outcomes, changed);
  });
}

// ---- ranges ----

void RecordWriter::RangeVariables(precision::Role role, Vectors*& under, Vectors*& over) {
  const auto [at, is_new] = ranges_.try_emplace(static_cast<int>(role));
  if (is_new) {
    for (Vectors* variables : {&at->second.first, &at->second.second}) {
      *variables = Variables(b_.getInt32Ty());
      for (Value* variable : *variables)
        entry_.CreateStore(llvm::Constant::getNullValue(VectorOf(b_.getInt32Ty())), variable);
    }
  }
  under = &at->second.first;
  over = &at->second.second;
}

void RecordWriter::Range(const Statement& s, Carrier from, const Told& told) {
  if (!options_.ranges) return;
  Vectors *under, *over;
  RangeVariables(s.role, under, over);
  const std::string suffix = Cat(plan::CarrierName(from), "_", precision::FormatName(s.format));
  const auto add = [&](const Vectors& variables, size_t part, Value* flag) {
    Value* const amount = b_.CreateMul(One(flag), Splat32(static_cast<uint32_t>(s.number)));
    b_.CreateStore(b_.CreateAdd(Get(variables, part, b_.getInt32Ty()), amount), variables[part]);
  };
  for (size_t part = 0; part < parts(); ++part) {
    Value* mask = told.mask[part];
    if (told.operands.size() > 2) mask = b_.CreateAnd(mask, told.operands[2][part]);
    Value* const x = told.operands[0][part];
    Value* const r = told.operands[1][part];
    add(*under, part, b_.CreateAnd(mask, Call(Cat("underflows_", suffix), {x, r})));
    add(*over, part, b_.CreateAnd(mask, Call(Cat("overflows_", suffix), {x})));
  }
}

void RecordWriter::Stored(const Statement& s, const Told& told) {
  if (!options_.ranges) return;
  Vectors *under, *over;
  RangeVariables(s.role, under, over);
  const std::string_view format = precision::FormatName(s.format);
  const auto add = [&](const Vectors& variables, size_t part, Value* flag) {
    Value* const before = Get(variables, part, b_.getInt32Ty());
    b_.CreateStore(b_.CreateAdd(before, One(flag)), variables[part]);
  };
  for (size_t part = 0; part < parts(); ++part) {
    Value* const x = told.operands[0][part];
    add(*under, part, b_.CreateAnd(told.mask[part], Call(Cat("stores_tiny_", format), {x})));
    add(*over, part, b_.CreateAnd(told.mask[part], Call(Cat("stores_infinity_", format), {x})));
  }
}

void RecordWriter::Take(const Told& told) {
  if (!options_.ranges) return;
  Value* const column = Memory(kBackward, column_, sizeof(BackwardColumn), 0);
  const Vectors present = Both(told.operands[1], told.mask);
  Vectors finite, buckets;
  Value* largest = nullptr;
  auto* const i64 = VectorOf(b_.getInt64Ty());
  for (size_t part = 0; part < parts(); ++part) {
    Value* const x = b_.CreateFPExt(told.operands[0][part], VectorOf(b_.getDoubleTy()));
    Value* const magnitude = Call("abs_f64", {x});
    finite.push_back(b_.CreateAnd(present[part], Call("is_finite_f64", {x})));
    buckets.push_back(Call("exponent_bucket", {magnitude}));
    Value* const bits = b_.CreateSelect(finite[part], b_.CreateBitCast(magnitude, i64), Splat64(0));
    largest =
        largest == nullptr ? bits : b_.CreateBinaryIntrinsic(llvm::Intrinsic::umax, largest, bits);
  }
  Value* const at =
      b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offsetof(BackwardColumn, largest));
  Value* const before = b_.CreateLoad(b_.getInt64Ty(), at);
  b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::umax, before,
                                          b_.CreateIntMaxReduce(largest, false)),
                 at);
  AddTo(b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offsetof(BackwardColumn, nonfinite)),
        b_.CreateTrunc(Population(BitsOf(ButNot(present, finite))), b_.getInt32Ty()));
  CountInHistogram(column, offsetof(BackwardColumn, exponents), buckets, finite);
}

// ---- the ends ----

void RecordWriter::JoinTermination(const Termination& t, Value* column) {
  const auto at = [&](uint64_t offset) {
    return b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offset);
  };
  const auto join = [&](const Vectors& variables, llvm::Type* type, uint64_t offset, bool least) {
    const llvm::Intrinsic::ID id = least ? llvm::Intrinsic::umin : llvm::Intrinsic::umax;
    Value* joined = Get(variables, 0, type);
    for (size_t part = 1; part < parts(); ++part) {
      joined = b_.CreateBinaryIntrinsic(id, joined, Get(variables, part, type));
    }
    Value* const one =
        least ? b_.CreateIntMinReduce(joined, false) : b_.CreateIntMaxReduce(joined, false);
    Value* const before = b_.CreateLoad(type, at(offset));
    b_.CreateStore(b_.CreateBinaryIntrinsic(id, before, one), at(offset));
  };
  using C = TerminationColumn;
  AddTo(at(offsetof(C, iterations_sum)), SumOf(t.iterations_sum));
  AddTo(at(offsetof(C, checks)), b_.CreateLoad(b_.getInt64Ty(), t.checks));
  AddTo(at(offsetof(C, near_stopped)), b_.CreateLoad(b_.getInt64Ty(), t.near_stopped));
  AddTo(at(offsetof(C, near_continued)), b_.CreateLoad(b_.getInt64Ty(), t.near_continued));
  AddTo(at(offsetof(C, nan_margins)), b_.CreateLoad(b_.getInt64Ty(), t.nan_margins));
  join(t.iterations_min, b_.getInt32Ty(), offsetof(C, iterations_min), true);
  join(t.iterations_max, b_.getInt32Ty(), offsetof(C, iterations_max), false);
  if (options_.extremes) {
    join(t.tested_min, b_.getInt64Ty(), offsetof(C, tested_min), true);
    join(t.tested_max, b_.getInt64Ty(), offsetof(C, tested_max), false);
  }
  JoinNearest(t.absolute, column, offsetof(C, absolute));
  JoinNearest(t.ulps, column, offsetof(C, ulps));
}

void RecordWriter::JoinEvent(const Event& e, Value* column) {
  const auto add = [&](Value* counter, uint64_t offset) {
    AddTo(b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offset),
          b_.CreateLoad(b_.getInt64Ty(), counter));
  };
  add(e.checks, offsetof(EventColumn, checks));
  add(e.count, offsetof(EventColumn, count));
  add(e.changes, offsetof(EventColumn, changes));
  add(e.nan_margins, offsetof(EventColumn, nan_margins));
  JoinNearest(e.absolute, column, offsetof(EventColumn, absolute));
  JoinNearest(e.ulps, column, offsetof(EventColumn, ulps));
}

void RecordWriter::EndStep() {
  for (size_t k = 0; k < terminations_.size(); ++k) {
    JoinTermination(terminations_[k], ColumnOf(kTerminations, static_cast<int32_t>(k),
                                               terminations_.size(), sizeof(TerminationColumn)));
  }
  for (size_t k = 0; k < events_.size(); ++k) {
    JoinEvent(events_[k],
              ColumnOf(kEvents, static_cast<int32_t>(k), events_.size(), sizeof(EventColumn)));
  }
}

void RecordWriter::End() {
  const auto store = [&](const Vectors& variables, Member member) {
    auto* const vector = VectorOf(b_.getInt64Ty());
    for (size_t part = 0; part < parts(); ++part) {
      b_.CreateAlignedStore(Get(variables, part, b_.getInt64Ty()),
                            b_.CreateConstGEP1_64(vector, arguments_[member], part),
                            llvm::Align(4));
    }
  };
  if (options_.looks) store(health_, kHealth);
  if (options_.decides) store(signatures_, kSignatures);
  for (const auto& [role, counts] : ranges_) {
    const uint64_t place = 8 * static_cast<uint64_t>(role);
    AddTo(b_.CreateConstGEP1_64(b_.getInt8Ty(), arguments_[kRanges],
                                offsetof(RangeColumn, underflows) + place),
          SumOf(counts.first));
    AddTo(b_.CreateConstGEP1_64(b_.getInt8Ty(), arguments_[kRanges],
                                offsetof(RangeColumn, overflows) + place),
          SumOf(counts.second));
  }
}

}  // namespace simgrad::sim::compiled
