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
                           const WriterOptions& options, Value* const* arguments)
    : module_(module),
      context_(module.getContext()),
      b_(builder),
      entry_(entry),
      plan_(plan),
      options_(options),
      arguments_(arguments) {}

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

void RecordWriter::Add(const Vectors& variables, size_t part, Value* mask) {
  Value* const before = Get(variables, part, b_.getInt32Ty());
  b_.CreateStore(b_.CreateAdd(before, One(mask)), variables[part]);
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
    for (Vectors* count : {&t.iterations_sum, &t.checks, &t.near_stopped, &t.near_continued,
                           &t.nan_margins, &t.iterations_min, &t.iterations_max, &t.has_last}) {
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
    for (Vectors* count : {&e.checks, &e.count, &e.changes, &e.nan_margins}) {
      *count = Variables(b_.getInt32Ty());
    }
    e.absolute = NewNearest();
    e.ulps = NewNearest();
    events_.push_back(std::move(e));
  }
}

void RecordWriter::BeginStep(Value* column, Value* time) {
  column_ = column;
  time_ = time;
  if (options_.looks) Set(bad_, Splat32(0));
  for (const Termination& t : terminations_) {
    for (const Vectors* count : {&t.iterations_sum, &t.checks, &t.near_stopped, &t.near_continued,
                                 &t.nan_margins, &t.iterations_max, &t.has_last}) {
      Set(*count, Splat32(0));
    }
    Set(t.iterations_min, Splat32(~uint32_t{0}));
    Set(t.tested_min, Splat64(~uint64_t{0}));
    Set(t.tested_max, Splat64(0));
    ClearNearest(t.absolute);
    ClearNearest(t.ulps);
  }
  for (const Event& e : events_) {
    for (const Vectors* count : {&e.checks, &e.count, &e.changes, &e.nan_margins}) {
      Set(*count, Splat32(0));
    }
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

void RecordWriter::Judge(Value* time, bool stops) {
  if (!options_.looks) return;
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
                                    b_.CreateSelect(of_input, Splat64(0), Splat64(2)));
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
  for (size_t part = 0; part < parts(); ++part) {
    Value* const mask =
        told.where.empty() ? told.mask[part] : b_.CreateAnd(told.mask[part], told.where[part]);
    const Distance d = DistanceOf(s, of, of_extra, told, part);
    Value* const counts = b_.CreateAnd(mask, d.number);
    Value* const ended = told.operands[2][part];
    Add(t.checks, part, mask);
    Add(t.nan_margins, part, b_.CreateAnd(mask, b_.CreateNot(d.number)));
    Offer(t.absolute, part, counts, d.absolute, d.negative);
    Offer(t.ulps, part, counts, d.ulps, d.negative);
    Value* const near = b_.CreateAnd(counts, b_.CreateFCmpOLE(d.ulps, band));
    Add(t.near_stopped, part, b_.CreateAnd(near, ended));
    Add(t.near_continued, part, b_.CreateAnd(near, b_.CreateNot(ended)));
    auto* const f64 = b_.getDoubleTy();
    b_.CreateStore(b_.CreateSelect(mask, d.ulps, Get(t.last_ulps, part, f64)), t.last_ulps[part]);
    Value* const has = b_.CreateSExt(d.number, VectorOf(b_.getInt32Ty()));
    b_.CreateStore(b_.CreateSelect(mask, has, Get(t.has_last, part, b_.getInt32Ty())),
                   t.has_last[part]);
  }
}

void RecordWriter::CountInHistogram(Value* column, uint64_t offset, const Vectors& buckets,
                                    const Vectors& mask) {
  Value* const histogram = b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offset);
  for (size_t part = 0; part < parts(); ++part) {
    Value* const amounts = One(mask[part]);
    for (unsigned lane = 0; lane < width(); ++lane) {
      Value* const bucket = b_.CreateExtractElement(buckets[part], uint64_t{lane});
      Value* const amount = b_.CreateExtractElement(amounts, uint64_t{lane});
      AddTo(b_.CreateGEP(b_.getInt32Ty(), histogram, b_.CreateZExt(bucket, b_.getInt64Ty())),
            amount);
    }
  }
}

void RecordWriter::Sign(const Vectors& hashes, const Vectors& mask) {
  for (size_t part = 0; part < parts(); ++part) {
    Value* const before = Get(signatures_, part, b_.getInt64Ty());
    Value* const added = b_.CreateSelect(mask[part], hashes[part], Splat64(0));
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
  Vectors iteration_buckets, margin_buckets, has_margin, hashes;
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
    Value* const iteration = told.iteration.empty() ? Splat64(0) : told.iteration[part];
    Value* const element = told.element == nullptr ? Splat64(0) : Splat(told.element);
    hashes.push_back(Call("loop_hash", {Splat64(plan_.terminations[site].hash), Splat(time_),
                                        iteration, element, ran, reason}));
  }
  CountInHistogram(column, offsetof(TerminationColumn, iterations), iteration_buckets, told.mask);
  CountInHistogram(column, offsetof(TerminationColumn, histogram), margin_buckets, has_margin);
  for (int reason = 0; reason < kReasons; ++reason) {
    Value* count = nullptr;
    for (size_t part = 0; part < parts(); ++part) {
      Value* const is_it = b_.CreateAnd(
          told.mask[part],
          b_.CreateICmpEQ(told.operands[1][part], Splat32(static_cast<uint32_t>(reason))));
      Value* const ones = One(is_it);
      count = count == nullptr ? ones : b_.CreateAdd(count, ones);
    }
    Value* const at = b_.CreateConstGEP1_64(
        b_.getInt8Ty(), column,
        offsetof(TerminationColumn, reasons) + 8 * static_cast<uint64_t>(reason));
    Value* const added = b_.CreateZExt(b_.CreateAddReduce(count), i64);
    AddTo(at, added);
    AddTo(b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offsetof(TerminationColumn, runs)), added);
  }
  Sign(hashes, told.mask);
}

void RecordWriter::Decide(const Statement& s, Carrier of, Carrier of_extra, const Told& told) {
  if (!options_.decides) return;
  const size_t site = static_cast<size_t>(s.site);
  const plan::RecordedSite& recorded = plan_.events[site];
  const Event& e = events_[site];
  auto* const stored = VectorOf(b_.getInt32Ty());
  Value* const first_element = b_.getInt64(static_cast<uint64_t>(recorded.first_element));
  Vectors changed;
  Vectors last_at;
  const Vectors& guard = told.where.empty() ? told.mask : told.where;
  Value* const element = told.element == nullptr ? b_.getInt64(0) : told.element;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const mask = told.mask[part];
    Value* const value = b_.CreateAnd(mask, told.operands[2][part]);
    Value* const asked = b_.CreateAnd(mask, guard[part]);
    const Distance d = DistanceOf(s, of, of_extra, told, part);
    Value* const counts = b_.CreateAnd(asked, d.number);
    Add(e.checks, part, asked);
    Add(e.count, part, value);
    Add(e.nan_margins, part, b_.CreateAnd(asked, b_.CreateNot(d.number)));
    Offer(e.absolute, part, counts, d.absolute, d.negative);
    Offer(e.ulps, part, counts, d.ulps, d.negative);
    Value* const vector =
        b_.CreateAdd(b_.CreateMul(b_.CreateAdd(first_element, element), b_.getInt64(parts())),
                     b_.getInt64(part));
    last_at.push_back(b_.CreateGEP(stored, arguments_[kLastEvents], vector));
    Value* const before = b_.CreateAlignedLoad(stored, last_at[part], llvm::Align(4));
    Value* const held = b_.CreateICmpNE(before, Splat32(0));
    changed.push_back(b_.CreateAnd(mask, b_.CreateXor(held, value)));
    Add(e.changes, part, changed[part]);
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
  If(Any(changed), [&] {
    Vectors hashes;
    for (size_t part = 0; part < parts(); ++part) {
      Value* const iteration = told.iteration.empty() ? Splat64(0) : told.iteration[part];
      hashes.push_back(Call("event_hash", {Splat64(recorded.hash), Splat(time_), iteration,
                                           Splat(element), told.operands[2][part]}));
    }
    Sign(hashes, changed);
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
  if (!options_.decides) return;
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
  if (!options_.decides) return;
  Vectors *under, *over;
  RangeVariables(s.role, under, over);
  const std::string_view format = precision::FormatName(s.format);
  for (size_t part = 0; part < parts(); ++part) {
    Value* const x = told.operands[0][part];
    Add(*under, part, b_.CreateAnd(told.mask[part], Call(Cat("stores_tiny_", format), {x})));
    Add(*over, part, b_.CreateAnd(told.mask[part], Call(Cat("stores_infinity_", format), {x})));
  }
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
  AddTo(at(offsetof(C, checks)), SumOf(t.checks));
  AddTo(at(offsetof(C, near_stopped)), SumOf(t.near_stopped));
  AddTo(at(offsetof(C, near_continued)), SumOf(t.near_continued));
  AddTo(at(offsetof(C, nan_margins)), SumOf(t.nan_margins));
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
  const auto add = [&](const Vectors& variables, uint64_t offset) {
    AddTo(b_.CreateConstGEP1_64(b_.getInt8Ty(), column, offset), SumOf(variables));
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
  if (!options_.decides) return;
  store(signatures_, kSignatures);
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
