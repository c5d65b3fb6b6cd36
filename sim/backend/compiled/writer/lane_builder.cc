#include "sim/backend/compiled/writer/lane_builder.h"

#include <llvm/IR/MDBuilder.h>

#include "sim/backend/compiled/scalars/widen.h"

namespace simgrad::sim::compiled {

using llvm::Value;

LaneBuilder::LaneBuilder(llvm::Module& module, llvm::IRBuilder<>& builder, llvm::IRBuilder<>& entry,
                         const WriterOptions& options, Value* const* arguments,
                         llvm::Function*& function)
    : module_(module),
      context_(module.getContext()),
      b_(builder),
      entry_(entry),
      options_(options),
      arguments_(arguments),
      function_(function) {}

Value* LaneBuilder::Call(const std::string& name, const std::vector<Value*>& operands) {
  return WidenedCall(b_, *module_.getFunction(name), operands, width());
}

// ---- variables ----

Vectors LaneBuilder::Variables(llvm::Type* type) {
  Vectors variables;
  for (size_t part = 0; part < parts(); ++part) {
    variables.push_back(entry_.CreateAlloca(VectorOf(type)));
  }
  return variables;
}

void LaneBuilder::Set(const Vectors& variables, Value* value) {
  for (Value* variable : variables) b_.CreateStore(value, variable);
}

Value* LaneBuilder::Get(const Vectors& variables, size_t part, llvm::Type* type) {
  return b_.CreateLoad(VectorOf(type), variables[part]);
}

Vectors LaneBuilder::LoadLanes(Member member, llvm::Type* type) {
  Vectors vectors;
  auto* const vector = VectorOf(type);
  for (size_t part = 0; part < parts(); ++part) {
    auto* const at = b_.CreateConstGEP1_64(vector, arguments_[member], part);
    vectors.push_back(b_.CreateAlignedLoad(vector, at, llvm::Align(4)));
  }
  return vectors;
}

void LaneBuilder::StoreLanes(Member member, const Vectors& variables, llvm::Type* type) {
  auto* const vector = VectorOf(type);
  for (size_t part = 0; part < parts(); ++part) {
    b_.CreateAlignedStore(Get(variables, part, type),
                          b_.CreateConstGEP1_64(vector, arguments_[member], part), llvm::Align(4));
  }
}

Value* LaneBuilder::Listed(const Vectors& values, llvm::Type* type) {
  if (lists_of_ != function_) {
    lists_.clear();
    lists_of_ = function_;
  }
  if (listed_ == lists_.size()) {
    constexpr uint64_t kBytes = 8;  // of a number of any type
    auto* const made =
        entry_.CreateAlloca(entry_.getInt8Ty(), entry_.getInt64(kBytes * width() * parts()));
    made->setAlignment(llvm::Align(64));
    lists_.push_back(made);
  }
  Value* const listed = lists_[listed_++];
  for (size_t part = 0; part < parts(); ++part) {
    b_.CreateAlignedStore(values[part], b_.CreateConstGEP1_64(VectorOf(type), listed, part),
                          llvm::Align(4));
  }
  return listed;
}

// ---- masks ----

Value* LaneBuilder::Any(const Vectors& mask) {
  Value* any = mask[0];
  for (size_t k = 1; k < mask.size(); ++k) any = b_.CreateOr(any, mask[k]);
  Value* const bits = b_.CreateBitCast(any, b_.getIntNTy(width()));
  return b_.CreateICmpNE(bits, llvm::Constant::getNullValue(bits->getType()));
}

Value* LaneBuilder::BitsOf(const Vectors& mask) {
  auto* const all = b_.getIntNTy(width() * static_cast<unsigned>(parts()));
  Value* bits = nullptr;
  for (size_t part = 0; part < parts(); ++part) {
    Value* own = b_.CreateZExt(b_.CreateBitCast(mask[part], b_.getIntNTy(width())), all);
    if (part > 0) own = b_.CreateShl(own, llvm::ConstantInt::get(all, width() * part));
    bits = bits == nullptr ? own : b_.CreateOr(bits, own);
  }
  return bits;
}

Value* LaneBuilder::Bits64Of(const Vectors& mask) {
  return b_.CreateZExtOrTrunc(BitsOf(mask), b_.getInt64Ty());
}

Vectors LaneBuilder::LanesOf(Value* bits) {
  auto* const one = b_.getIntNTy(width());
  Vectors mask;
  for (size_t part = 0; part < parts(); ++part) {
    Value* const own = b_.CreateTrunc(b_.CreateLShr(bits, width() * part), one);
    mask.push_back(b_.CreateBitCast(own, VectorOf(b_.getInt1Ty())));
  }
  return mask;
}

Value* LaneBuilder::Population(Value* bits) {
  return b_.CreateZExtOrTrunc(b_.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, bits),
                              b_.getInt64Ty());
}

Vectors LaneBuilder::Both(const Vectors& a, const Vectors& b) {
  Vectors both;
  for (size_t part = 0; part < parts(); ++part) both.push_back(b_.CreateAnd(a[part], b[part]));
  return both;
}

Vectors LaneBuilder::ButNot(const Vectors& a, const Vectors& b) {
  Vectors rest;
  for (size_t part = 0; part < parts(); ++part) {
    rest.push_back(b_.CreateAnd(a[part], b_.CreateNot(b[part])));
  }
  return rest;
}

// ---- control ----

void LaneBuilder::If(Value* condition, const std::function<void()>& body) {
  auto* const inside = llvm::BasicBlock::Create(context_, "if", function_);
  auto* const after = llvm::BasicBlock::Create(context_, "fi", function_);
  b_.CreateCondBr(condition, inside, after);
  b_.SetInsertPoint(inside);
  body();
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

void LaneBuilder::IfRarely(Value* condition, const std::function<void()>& body) {
  auto* const inside = llvm::BasicBlock::Create(context_, "rare", function_);
  auto* const after = llvm::BasicBlock::Create(context_, "usual", function_);
  b_.CreateCondBr(condition, inside, after,
                  llvm::MDBuilder(context_).createUnlikelyBranchWeights());
  b_.SetInsertPoint(inside);
  body();
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

void LaneBuilder::EachKindOf(
    const Vectors& mask, const Same& same,
    const std::function<void(Value* lane, const Vectors& lanes, Value* count)>& body) {
  Value* const all = BitsOf(mask);
  auto* const before = b_.GetInsertBlock();
  auto* const head = llvm::BasicBlock::Create(context_, "kinds", function_);
  auto* const inside = llvm::BasicBlock::Create(context_, "kind", function_);
  auto* const after = llvm::BasicBlock::Create(context_, "told", function_);
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  auto* const rest = b_.CreatePHI(all->getType(), 2);
  rest->addIncoming(all, before);
  Value* const none = llvm::Constant::getNullValue(all->getType());
  b_.CreateCondBr(b_.CreateICmpNE(rest, none), inside, after);
  b_.SetInsertPoint(inside);
  Value* const first =
      b_.CreateIntrinsic(llvm::Intrinsic::cttz, {all->getType()}, {rest, b_.getTrue()});
  Value* const lane = b_.CreateZExtOrTrunc(first, b_.getInt64Ty());
  Vectors lanes = same(lane);
  Value* taken;
  if (lanes.empty()) {
    Value* const others =
        b_.CreateAnd(rest, b_.CreateSub(rest, llvm::ConstantInt::get(all->getType(), 1)));
    taken = b_.CreateXor(rest, others);
    body(lane, lanes, nullptr);
  } else {
    lanes = Both(lanes, mask);
    taken = BitsOf(lanes);
    body(lane, lanes, Population(taken));
  }
  rest->addIncoming(b_.CreateXor(rest, taken), b_.GetInsertBlock());
  b_.CreateBr(head);
  b_.SetInsertPoint(after);
}

void LaneBuilder::EachLaneOf(const Vectors& mask, const std::function<void(Value* lane)>& body) {
  EachKindOf(
      mask, [](Value*) { return Vectors(); },
      [&](Value* lane, const Vectors&, Value*) { body(lane); });
}

// ---- memory ----

Value* LaneBuilder::Memory(Member member, Value* index, uint64_t stride, uint64_t offset) {
  Value* const bytes = b_.CreateAdd(b_.CreateMul(index, b_.getInt64(stride)), b_.getInt64(offset));
  return b_.CreateGEP(b_.getInt8Ty(), arguments_[member], bytes);
}

Value* LaneBuilder::Offset(Value* address, uint64_t bytes) {
  return b_.CreateConstGEP1_64(b_.getInt8Ty(), address, bytes);
}

void LaneBuilder::AddTo(Value* address, Value* amount) {
  Value* const before = b_.CreateLoad(amount->getType(), address);
  b_.CreateStore(b_.CreateAdd(before, amount), address);
}

void LaneBuilder::CallBack(Member member, const std::vector<Value*>& operands) {
  auto* const pointer = llvm::PointerType::get(context_, 0);
  std::vector<llvm::Type*> types;
  for (Value* operand : operands) types.push_back(operand->getType());
  auto* const type = llvm::FunctionType::get(b_.getVoidTy(), types, false);
  b_.CreateCall(type, b_.CreateLoad(pointer, Offset(Arguments(), 8 * member)), operands);
}

void LaneBuilder::CountInHistogram(Value* column, uint64_t offset, const Vectors& buckets,
                                   const Vectors& mask) {
  auto* const i32 = b_.getInt32Ty();
  const Lists lists(*this);
  Value* const histogram = Offset(column, offset);
  Value* const listed = Listed(buckets, i32);
  Value* bucket = nullptr;
  EachKindOf(
      mask,
      [&](Value* lane) {
        bucket = b_.CreateLoad(i32, b_.CreateGEP(i32, listed, lane));
        Vectors same;
        for (Value* own : buckets) same.push_back(b_.CreateICmpEQ(own, Splat(bucket)));
        return same;
      },
      [&](Value*, const Vectors&, Value* count) {
        AddTo(b_.CreateGEP(i32, histogram, b_.CreateZExt(bucket, b_.getInt64Ty())),
              b_.CreateTrunc(count, i32));
      });
}

}  // namespace simgrad::sim::compiled
