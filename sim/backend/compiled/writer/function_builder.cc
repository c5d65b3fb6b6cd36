#include "sim/backend/compiled/writer/function_builder.h"

#include <algorithm>
#include <utility>

#include "sim/backend/compiled/group/group_args.h"

namespace simgrad::sim::compiled {
namespace {

using plan::Carrier;
using plan::Statement;

// The entries of the plan's tables up to the last that a function reads. Its code is that of other plans of the
// same structure too, whose tables may end there.
struct TablesRead {
  int64_t numbers = 0;
  int64_t integers = 0;

  void See(const std::vector<Statement>& statements, const plan::Function& function) {
    for (const Statement& s : statements) {
      if (s.code == plan::Code::kNumber) numbers = std::max(numbers, s.number + 1);
      if (s.code == plan::Code::kInteger) integers = std::max(integers, s.number + 1);
      if (s.buffer != plan::kNoBuffer) See(function.buffers[static_cast<size_t>(s.buffer)]);
      See(s.body, function);
    }
  }

 private:
  void See(const plan::Buffer& buffer) {
    if (buffer.kind != plan::BufferKind::kTable) return;
    const bool is_real = buffer.carrier == Carrier::kF32 || buffer.carrier == Carrier::kF64;
    int64_t& entries = is_real ? numbers : integers;
    entries = std::max(entries, buffer.number + buffer.count);
  }
};

}  // namespace

using llvm::Value;
using plan::Register;

FunctionBuilder::FunctionBuilder(llvm::Module& module, const plan::Plan& plan,
                                 const plan::Function& owner, const plan::Function& function,
                                 const WriterOptions& options, const std::string& name)
    : LaneBuilder(module, body_builder_, entry_builder_, options, argument_values_, made_),
      plan_(plan),
      owner_(owner),
      planned_(function),
      body_builder_(module.getContext()),
      entry_builder_(module.getContext()),
      registers_(function.registers.size()) {
  made_ = llvm::Function::Create(
      Type(), is_piece() ? llvm::Function::InternalLinkage : llvm::Function::ExternalLinkage, name,
      module);
  if (is_piece()) made_->addFnAttr(llvm::Attribute::NoInline);
  made_->getArg(0)->addAttr(llvm::Attribute::NoAlias);
  // Registers that are spilled lie in one cache line each.
  made_->addFnAttr(llvm::Attribute::getWithStackAlignment(context_, llvm::Align(64)));
  static_assert(sizeof(GroupArgs) == 8 * kMembers);
  made_->addDereferenceableParamAttr(0, sizeof(GroupArgs));
  auto* const entry = llvm::BasicBlock::Create(context_, "entry", made_);
  begin_ = llvm::BasicBlock::Create(context_, "begin", made_);
  entry_.SetInsertPoint(entry);
  b_.SetInsertPoint(begin_);
}

// void function(GroupArgs*), or bool piece(GroupArgs*, carried, column): whether the run has to stop.
llvm::FunctionType* FunctionBuilder::Type() {
  auto* const pointer = llvm::PointerType::get(context_, 0);
  if (!is_piece()) return llvm::FunctionType::get(b_.getVoidTy(), {pointer}, false);
  return llvm::FunctionType::get(b_.getInt1Ty(), {pointer, pointer, b_.getInt64Ty()}, false);
}

// ---- types ----

llvm::Type* FunctionBuilder::ScalarType(Carrier carrier) {
  switch (carrier) {
    case Carrier::kBool:
      return b_.getInt1Ty();
    case Carrier::kI32:
    case Carrier::kU32:
    case Carrier::kU8:
      return b_.getInt32Ty();
    case Carrier::kI64:
      return b_.getInt64Ty();
    case Carrier::kF32:
      return b_.getFloatTy();
    case Carrier::kF64:
      break;
  }
  return b_.getDoubleTy();
}

llvm::Type* FunctionBuilder::ScalarInMemory(Carrier carrier) {
  return carrier == Carrier::kBool ? b_.getInt32Ty() : ScalarType(carrier);
}

int64_t FunctionBuilder::BytesOfOne(Carrier carrier) const {
  return carrier == Carrier::kF64 || carrier == Carrier::kI64 ? 8 : 4;
}

Value* FunctionBuilder::ToStored(Carrier carrier, Value* value) {
  return carrier == Carrier::kBool ? b_.CreateSExt(value, StoredType(carrier)) : value;
}

Value* FunctionBuilder::FromStored(Carrier carrier, Value* value) {
  if (carrier != Carrier::kBool) return value;
  return b_.CreateICmpSLT(value, llvm::Constant::getNullValue(value->getType()));
}

// ---- registers ----

Value* FunctionBuilder::Part(Register r, size_t part) {
  const Lanes& lanes = registers_[IndexOf(r)];
  return lanes.uniform ? Splat(lanes.parts[0]) : lanes.parts[part];
}

Vectors FunctionBuilder::PartsOf(Register r) {
  Vectors vectors;
  if (r == plan::kNoRegister) return vectors;
  for (size_t part = 0; part < parts(); ++part) vectors.push_back(Part(r, part));
  return vectors;
}

void FunctionBuilder::SetUniform(Register r, Value* value) {
  registers_[IndexOf(r)] = {true, {value}};
}

void FunctionBuilder::SetLanes(Register r, const std::function<Value*(size_t part)>& value) {
  Lanes lanes;
  for (size_t part = 0; part < parts(); ++part) lanes.parts.push_back(value(part));
  registers_[IndexOf(r)] = std::move(lanes);
}

// ---- arguments ----

void FunctionBuilder::ReadArguments() {
  auto* const pointer = llvm::PointerType::get(context_, 0);
  for (unsigned member = 0; member < kMembers; ++member) {
    argument_values_[member] = ReadArgument(static_cast<Member>(member), pointer);
  }
  const auto holds = [&](Member member, size_t entries) {
    MarkReadable(llvm::cast<llvm::LoadInst>(argument_values_[member]), 8 * entries);
  };
  TablesRead tables;
  tables.See(planned_.statements, planned_);
  holds(kNumbers, static_cast<size_t>(tables.numbers));
  holds(kIntegers, static_cast<size_t>(tables.integers));
  holds(kInputs, options_.inputs.size());
  argument_values_[kFirstStep] = ReadArgument(kFirstStep, b_.getInt64Ty());
  argument_values_[kCount] = ReadArgument(kCount, b_.getInt64Ty());
}

llvm::LoadInst* FunctionBuilder::ReadArgument(Member member, llvm::Type* type) {
  auto* const load = b_.CreateLoad(type, ArgumentAt(member));
  MarkInvariant(load);
  return load;
}

llvm::LoadInst* FunctionBuilder::ListedPointer(Member list, int32_t number) {
  auto* const pointer = llvm::PointerType::get(context_, 0);
  auto* const at =
      b_.CreateConstGEP1_64(pointer, argument_values_[list], static_cast<uint64_t>(number));
  auto* const load = b_.CreateLoad(pointer, at);
  MarkInvariant(load);
  return load;
}

void FunctionBuilder::MarkInvariant(llvm::LoadInst* load) {
  load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
}

void FunctionBuilder::MarkReadable(llvm::LoadInst* pointer, uint64_t bytes) {
  if (bytes == 0) return;
  const auto say = [&](unsigned kind, uint64_t n) {
    auto* const number = llvm::ConstantAsMetadata::get(b_.getInt64(n));
    pointer->setMetadata(kind, llvm::MDNode::get(context_, {number}));
  };
  say(llvm::LLVMContext::MD_dereferenceable, bytes);
  say(llvm::LLVMContext::MD_align, 8);
}

void FunctionBuilder::SetTime(Value* column) {
  time_ = b_.CreateAdd(argument_values_[kFirstStep], column);
  column_ = column;
}

// ---- blocks and loops ----

llvm::BasicBlock* FunctionBuilder::NewBlock(const char* name) {
  return llvm::BasicBlock::Create(context_, name, made_);
}

llvm::Instruction* FunctionBuilder::CountTo(Value* extent,
                                            const std::function<void(Value* counter)>& body) {
  auto* const before = b_.GetInsertBlock();
  auto* const head = NewBlock("each");
  auto* const inside = NewBlock("turn");
  auto* const after = NewBlock("after");
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  auto* const counter = b_.CreatePHI(b_.getInt64Ty(), 2);
  counter->addIncoming(b_.getInt64(0), before);
  b_.CreateCondBr(b_.CreateICmpSLT(counter, extent), inside, after);
  b_.SetInsertPoint(inside);
  body(counter);
  counter->addIncoming(b_.CreateAdd(counter, b_.getInt64(1)), b_.GetInsertBlock());
  auto* const back = b_.CreateBr(head);
  b_.SetInsertPoint(after);
  return back;
}

void FunctionBuilder::MarkParallel(Value* access, size_t shared) {
  auto* const instruction = llvm::dyn_cast<llvm::Instruction>(access);
  if (instruction == nullptr || loops_.size() <= shared) return;
  const std::vector<llvm::Metadata*> groups(loops_.begin() + static_cast<std::ptrdiff_t>(shared),
                                            loops_.end());
  instruction->setMetadata(llvm::LLVMContext::MD_access_group,
                           groups.size() == 1 ? llvm::cast<llvm::MDNode>(groups[0])
                                              : llvm::MDNode::get(context_, groups));
}

}  // namespace simgrad::sim::compiled
