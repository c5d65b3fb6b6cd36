#include "sim/backend/compiled/writer/fuel_writer.h"

#include <llvm/IR/MDBuilder.h>

namespace simgrad::sim::compiled {

using llvm::Value;

void FuelWriter::Take() { f_.b().CreateStore(f_.LoadInt64(f_.ArgumentAt(kFuel)), place_); }

void FuelWriter::GiveBack() { f_.b().CreateStore(f_.LoadInt64(place_), f_.ArgumentAt(kFuel)); }

void FuelWriter::Charge(Value* statements) {
  auto& b = f_.b();
  Value* const lanes = b.getInt64(f_.lane_count());
  Value* const before = f_.LoadInt64(place_);
  Value* const left = b.CreateSub(before, b.CreateMul(statements, lanes));
  b.CreateStore(left, place_);
  auto* const asks = f_.NewBlock("asks");
  auto* const on = f_.NewBlock("on");
  auto* const rare = llvm::MDBuilder(b.getContext()).createBranchWeights(1, 1 << 16);
  b.CreateCondBr(b.CreateICmpSLT(left, b.getInt64(0)), asks, on, rare);
  b.SetInsertPoint(asks);
  auto* const pointer = llvm::PointerType::get(b.getContext(), 0);
  auto* const type = llvm::FunctionType::get(b.getInt64Ty(), {pointer}, false);
  Value* const given =
      b.CreateCall(type, b.CreateLoad(pointer, f_.ArgumentAt(kPoll)), {f_.Arguments()});
  Value* const next = b.CreateAdd(given, left);
  b.CreateStore(b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, next, b.getInt64(0)), place_);
  b.CreateCondBr(b.CreateICmpSGT(given, b.getInt64(0)), on, Stopped());
  b.SetInsertPoint(on);
}

llvm::BasicBlock* FuelWriter::Stopped() {
  if (stopped_ != nullptr) return stopped_;
  auto& b = f_.b();
  stopped_ = f_.NewBlock("stopped");
  llvm::ReturnInst::Create(b.getContext(), f_.is_piece() ? b.getTrue() : nullptr, stopped_);
  return stopped_;
}

}  // namespace simgrad::sim::compiled
