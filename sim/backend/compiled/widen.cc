#include "sim/backend/compiled/widen.h"

#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/IntrinsicInst.h>

#include <unordered_map>

namespace simgrad::sim::compiled {
namespace {

using llvm::Value;

bool IsWidenedIntrinsic(llvm::Intrinsic::ID id) {
  return llvm::isTriviallyVectorizable(id) || id == llvm::Intrinsic::is_fpclass;
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
    if (const auto* call = llvm::dyn_cast<llvm::CallInst>(&i)) {
      if (!llvm::isa<llvm::IntrinsicInst>(call)) return false;
      if (!IsWidenedIntrinsic(call->getIntrinsicID())) return false;
    }
  }
  return true;
}

llvm::Value* WidenedCall(llvm::IRBuilder<>& builder, llvm::Function& function,
                         const std::vector<llvm::Value*>& operands, unsigned width) {
  if (width == 1) return builder.CreateCall(&function, operands);
  if (IsStraight(function)) return Widener(builder, width).Body(function, operands);
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

}  // namespace simgrad::sim::compiled
