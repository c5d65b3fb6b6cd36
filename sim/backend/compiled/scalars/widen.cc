#include "sim/backend/compiled/scalars/widen.h"

#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/VFABIDemangler.h>
#include <llvm/Transforms/Utils/ModuleUtils.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "sim/backend/compiled/scalars/scalar_module.h"

namespace simgrad::sim::compiled {
namespace {

using llvm::Value;

bool IsWidenedIntrinsic(llvm::Intrinsic::ID id) {
  return llvm::isTriviallyVectorizable(id) || id == llvm::Intrinsic::is_fpclass ||
         id == llvm::Intrinsic::arithmetic_fence;
}

class Widener {
 public:
  Widener(llvm::IRBuilder<>& builder, unsigned width) : builder_(builder), width_(width) {}

  Value* Body(llvm::Function& function, const std::vector<Value*>& operands) {
    for (llvm::Argument& argument : function.args()) {
      values_[&argument] = operands[argument.getArgNo()];
    }
    for (llvm::Instruction& instruction : function.getEntryBlock()) {
      if (auto* end = llvm::dyn_cast<llvm::ReturnInst>(&instruction)) {
        return Of(end->getReturnValue());
      }
      values_[&instruction] = Instruction(instruction);
    }
    return nullptr;
  }

 private:
  Value* Of(Value* value) {
    if (const auto at = values_.find(value); at != values_.end()) return at->second;
    return builder_.CreateVectorSplat(width_, value);  // a constant
  }

  Value* Instruction(llvm::Instruction& i) {
    if (auto* binary = llvm::dyn_cast<llvm::BinaryOperator>(&i)) {
      Value* const result =
          builder_.CreateBinOp(binary->getOpcode(), Of(i.getOperand(0)), Of(i.getOperand(1)));
      if (auto* made = llvm::dyn_cast<llvm::Instruction>(result)) made->copyIRFlags(&i);
      return result;
    }
    if (auto* unary = llvm::dyn_cast<llvm::UnaryOperator>(&i)) {
      return builder_.CreateUnOp(unary->getOpcode(), Of(i.getOperand(0)));
    }
    if (auto* cast = llvm::dyn_cast<llvm::CastInst>(&i)) {
      return builder_.CreateCast(cast->getOpcode(), Of(i.getOperand(0)),
                                 Widened(i.getType(), width_));
    }
    if (auto* compare = llvm::dyn_cast<llvm::CmpInst>(&i)) {
      return builder_.CreateCmp(compare->getPredicate(), Of(i.getOperand(0)), Of(i.getOperand(1)));
    }
    if (llvm::isa<llvm::SelectInst>(i)) {
      return builder_.CreateSelect(Of(i.getOperand(0)), Of(i.getOperand(1)), Of(i.getOperand(2)));
    }
    if (llvm::isa<llvm::FreezeInst>(i)) return builder_.CreateFreeze(Of(i.getOperand(0)));
    if (auto* intrinsic = llvm::dyn_cast<llvm::IntrinsicInst>(&i)) return Intrinsic(*intrinsic);
    return LaneByLane(i);
  }

  Value* Intrinsic(llvm::IntrinsicInst& call) {
    const llvm::Intrinsic::ID id = call.getIntrinsicID();
    std::vector<Value*> operands;
    std::vector<llvm::Type*> overloads = {Widened(call.getType(), width_)};
    if (id == llvm::Intrinsic::is_fpclass) {
      overloads = {Widened(call.getArgOperand(0)->getType(), width_)};
    }
    for (unsigned k = 0; k < call.arg_size(); ++k) {
      Value* const operand = call.getArgOperand(k);
      const bool is_scalar = llvm::isVectorIntrinsicWithScalarOpAtArg(id, k) ||
                             (id == llvm::Intrinsic::is_fpclass && k == 1);
      operands.push_back(is_scalar ? operand : Of(operand));
    }
    return builder_.CreateIntrinsic(id, overloads, operands);
  }

  // Loads from tables, addresses, calls.
  Value* LaneByLane(llvm::Instruction& i) {
    if (llvm::isa<llvm::GetElementPtrInst>(i)) {
      std::vector<Value*> operands;
      auto& address = llvm::cast<llvm::GetElementPtrInst>(i);
      for (Value* index : address.indices()) operands.push_back(Of(index));
      Value* base = address.getPointerOperand();
      if (const auto at = values_.find(base); at != values_.end()) base = at->second;
      return builder_.CreateGEP(address.getSourceElementType(), base, operands);
    }
    Value* result = llvm::PoisonValue::get(Widened(i.getType(), width_));
    for (unsigned lane = 0; lane < width_; ++lane) {
      llvm::Instruction* const one = i.clone();
      for (unsigned k = 0; k < one->getNumOperands(); ++k) {
        const auto at = values_.find(i.getOperand(k));
        if (at != values_.end()) {
          one->setOperand(k, builder_.CreateExtractElement(at->second, uint64_t{lane}));
        }
      }
      builder_.Insert(one);
      result = builder_.CreateInsertElement(result, one, uint64_t{lane});
    }
    return result;
  }

  llvm::IRBuilder<>& builder_;
  const unsigned width_;
  std::unordered_map<Value*, Value*> values_;
};

// A body of at most so many instructions is written where it is called.
constexpr size_t kWrittenInPlace = 24;
// A larger one that is called at most so often is inlined.
constexpr unsigned kRareUses = 16;
constexpr llvm::StringRef kSuffix = ".lanes";

Value* LaneByLane(llvm::IRBuilder<>& builder, llvm::Function& function,
                  const std::vector<Value*>& operands, unsigned width) {
  Value* result = llvm::PoisonValue::get(Widened(function.getReturnType(), width));
  for (unsigned lane = 0; lane < width; ++lane) {
    std::vector<Value*> scalars;
    for (Value* operand : operands) {
      scalars.push_back(builder.CreateExtractElement(operand, uint64_t{lane}));
    }
    Value* const one = builder.CreateCall(&function, scalars);
    result = builder.CreateInsertElement(result, one, uint64_t{lane});
  }
  return result;
}

// A function that is straight but for rare operands: `usual` of them, `rare` says which.
struct Usually {
  llvm::Function* usual = nullptr;
  llvm::Function* rare = nullptr;
};
Usually UsuallyOf(llvm::Function& function) {
  llvm::Module& module = *function.getParent();
  const Usually usually = {module.getFunction(("usual_" + function.getName()).str()),
                           module.getFunction(("rare_" + function.getName()).str())};
  if (usually.usual != nullptr) {
    ReadBody(*usually.usual);
    ReadBody(*usually.rare);
  }
  return usually;
}

// Lane by lane only where a lane is rare.
Value* WithRareLanes(llvm::IRBuilder<>& builder, llvm::Function& function, const Usually& usually,
                     const std::vector<Value*>& operands, unsigned width) {
  Value* const usual = Widener(builder, width).Body(*usually.usual, operands);
  Value* const rare = Widener(builder, width).Body(*usually.rare, operands);
  llvm::BasicBlock* const before = builder.GetInsertBlock();
  llvm::LLVMContext& context = builder.getContext();
  auto* const slow = llvm::BasicBlock::Create(context, "rare", before->getParent());
  auto* const after = llvm::BasicBlock::Create(context, "usual", before->getParent());
  builder.CreateCondBr(builder.CreateOrReduce(rare), slow, after);
  builder.SetInsertPoint(slow);
  Value* const all = LaneByLane(builder, function, operands, width);
  Value* const mixed = builder.CreateSelect(rare, all, usual);
  builder.CreateBr(after);
  builder.SetInsertPoint(after);
  auto* const result = builder.CreatePHI(usual->getType(), 2);
  result->addIncoming(usual, before);
  result->addIncoming(mixed, slow);
  return result;
}

// The function for vectors, written once in the module.
llvm::Function* LaneFunction(llvm::Function& function, unsigned width) {
  llvm::Module& module = *function.getParent();
  const std::string name = (function.getName() + kSuffix + llvm::Twine(width)).str();
  if (llvm::Function* const made = module.getFunction(name)) return made;
  std::vector<llvm::Type*> types;
  for (llvm::Argument& argument : function.args()) {
    types.push_back(Widened(argument.getType(), width));
  }
  auto* const type =
      llvm::FunctionType::get(Widened(function.getReturnType(), width), types, false);
  auto* const made = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, name, module);
  made->setDoesNotThrow();
  if (function.doesNotAccessMemory()) made->setDoesNotAccessMemory();
  llvm::IRBuilder<> builder(llvm::BasicBlock::Create(module.getContext(), "entry", made));
  std::vector<Value*> arguments;
  for (llvm::Argument& argument : made->args()) arguments.push_back(&argument);
  if (IsStraight(function)) {
    builder.CreateRet(Widener(builder, width).Body(function, arguments));
  } else if (const Usually usually = UsuallyOf(function); usually.usual != nullptr) {
    builder.CreateRet(WithRareLanes(builder, function, usually, arguments, width));
  } else {
    builder.CreateRet(LaneByLane(builder, function, arguments, width));
  }
  return made;
}

}  // namespace

llvm::Type* Widened(llvm::Type* type, unsigned width) {
  return width == 1 ? type : llvm::FixedVectorType::get(type, width);
}

llvm::Value* Splatted(llvm::IRBuilder<>& builder, llvm::Value* scalar, unsigned width) {
  return width == 1 ? scalar : builder.CreateVectorSplat(width, scalar);
}

bool IsStraight(const llvm::Function& function) {
  if (function.size() != 1) return false;
  for (const llvm::Instruction& i : llvm::instructions(function)) {
    if (i.getOpcode() == llvm::Instruction::FRem) return false;  // a call of fmod
    if (const auto* call = llvm::dyn_cast<llvm::CallInst>(&i)) {
      if (!llvm::isa<llvm::IntrinsicInst>(call)) return false;
      if (!IsWidenedIntrinsic(call->getIntrinsicID())) return false;
    }
  }
  return true;
}

llvm::Value* WidenedCall(llvm::IRBuilder<>& builder, llvm::Function& function,
                         const std::vector<llvm::Value*>& operands, unsigned width) {
  ReadBody(function);
  if (width == 1) return builder.CreateCall(&function, operands);
  if (IsStraight(function) && function.getEntryBlock().size() <= kWrittenInPlace) {
    return Widener(builder, width).Body(function, operands);
  }
  return builder.CreateCall(LaneFunction(function, width), operands);
}

void OfferVectors(llvm::CallInst& call) {
  llvm::Function& function = *call.getCalledFunction();
  if (UsuallyOf(function).usual == nullptr) return;
  llvm::SmallVector<std::string, 3> variants;
  for (unsigned width : {4u, 8u, 16u}) {
    llvm::Function* const wide = LaneFunction(function, width);
    const std::string operands(function.arg_size(), 'v');
    variants.push_back((llvm::Twine("_ZGV_LLVM_N") + llvm::Twine(width) + operands + "_" +
                        function.getName() + "(" + wide->getName() + ")")
                           .str());
    llvm::appendToCompilerUsed(*function.getParent(), {wide});
  }
  llvm::VFABI::setVectorVariantNames(&call, variants);
  call.addFnAttr(llvm::Attribute::NoInline);
}

void InlineRareLaneFunctions(llvm::Module& module) {
  for (llvm::Function& function : module) {
    if (!function.getName().contains(kSuffix)) continue;
    const bool calls = std::any_of(
        llvm::inst_begin(function), llvm::inst_end(function), [](const llvm::Instruction& i) {
          return llvm::isa<llvm::CallInst>(i) && !llvm::isa<llvm::IntrinsicInst>(i);
        });
    const bool is_rare = !calls && !function.hasNUsesOrMore(kRareUses + 1);
    function.addFnAttr(is_rare ? llvm::Attribute::AlwaysInline : llvm::Attribute::NoInline);
  }
}

}  // namespace simgrad::sim::compiled
