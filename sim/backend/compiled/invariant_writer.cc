#include "sim/backend/compiled/invariant_writer.h"

#include "sim/plan/statement_walk.h"

namespace simgrad::sim::compiled {

using llvm::Value;
using plan::Code;
using plan::Statement;

bool ReusesInvariants(const FunctionBuilder& function, StepOrder order) {
  if (order == StepOrder::kOne || function.is_piece()) return false;
  // A replay and a reversal meet instances in later turns that had stopped in the first.
  if (function.options().stops && !function.is_step()) return false;
  bool has_one = false;
  bool has_steps = false;
  for (const Statement& s : function.function().statements) {
    if (!s.invariant) continue;
    has_one = true;
    plan::EachStatement(s.body, [&](const Statement& inner) {
      if (inner.code != Code::kLoad) return;
      const plan::Buffer& buffer = function.function().buffers[static_cast<size_t>(inner.buffer)];
      has_steps =
          has_steps || (buffer.kind == plan::BufferKind::kInput &&
                        function.options().inputs[static_cast<size_t>(buffer.number)].per_step);
    });
  }
  return has_one && !has_steps;
}

void InvariantWriter::Begin() {
  counted_ = f_.entry().CreateAlloca(b_.getInt32Ty());
  b_.CreateStore(b_.getInt32(0), counted_);
}

void InvariantWriter::Each(const std::function<void()>& write) {
  auto* const runs = f_.NewBlock("invariant");
  auto* const after = f_.NewBlock("after");
  Value* const reuses = f_.LoadInt64(f_.ArgumentAt(kReuses));
  b_.CreateCondBr(b_.CreateICmpEQ(reuses, b_.getInt64(0)), runs, after);
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
  Value* const reuses = b_.CreateICmpEQ(counted, b_.getInt32(0));
  b_.CreateStore(b_.CreateZExt(reuses, b_.getInt64Ty()), f_.ArgumentAt(kReuses));
}

}  // namespace simgrad::sim::compiled
