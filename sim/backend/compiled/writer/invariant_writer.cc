#include "sim/backend/compiled/writer/invariant_writer.h"

#include <algorithm>
#include <vector>

namespace simgrad::sim::compiled {

using llvm::Value;
using plan::Statement;

bool ReusesInvariants(const FunctionBuilder& function, StepOrder order) {
  if (order == StepOrder::kOne || function.is_piece()) return false;
  const std::vector<Statement>& statements = function.function().statements;
  return std::any_of(statements.begin(), statements.end(),
                     [](const Statement& s) { return s.invariant; });
}

void InvariantWriter::Begin() {
  counted_ = f_.entry().CreateAlloca(b_.getInt32Ty());
  b_.CreateStore(b_.getInt32(0), counted_);
}

void InvariantWriter::Each(const std::function<void()>& write) {
  auto* const runs = f_.NewBlock("invariant");
  auto* const after = f_.NewBlock("after");
  Value* const stored = f_.LoadInt64(f_.ArgumentAt(kReuses));
  Value* const missing = b_.CreateAnd(f_.Bits64Of(f_.masks().now), b_.CreateNot(stored));
  b_.CreateCondBr(b_.CreateICmpNE(missing, b_.getInt64(0)), runs, after);
  b_.SetInsertPoint(runs);
  records_.WatchRanges(counted_);
  write();
  records_.WatchRanges(nullptr);
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

void InvariantWriter::EndStep() {
  if (counted_ == nullptr) return;
  Value* const counted = b_.CreateLoad(b_.getInt32Ty(), counted_);
  Value* const counted_none = b_.CreateICmpEQ(counted, b_.getInt32(0));
  Value* const stored = f_.Bits64Of(records_.Running());
  b_.CreateStore(b_.CreateSelect(counted_none, stored, b_.getInt64(0)), f_.ArgumentAt(kReuses));
  b_.CreateStore(b_.getInt32(0), counted_);
}

}  // namespace simgrad::sim::compiled
