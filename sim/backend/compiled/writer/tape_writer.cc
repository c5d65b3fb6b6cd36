#include "sim/backend/compiled/writer/tape_writer.h"

#include <algorithm>
#include <cstddef>

#include "sim/backend/compiled/analysis/statement_cost.h"
#include "sim/backend/compiled/writer/element_address.h"

namespace simgrad::sim::compiled {

using llvm::Value;
using plan::Carrier;
using plan::Statement;

void TapeWriter::Meter() {
  Value* const at = b_.CreateGEP(b_.getInt64Ty(), f_.Argument(kTapeBytes), f_.column());
  Value* const bytes = b_.CreateMul(f_.LoadInt64(top_), b_.getInt64(f_.lane_count()));
  Value* const before = f_.LoadInt64(at);
  b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, before, bytes), at);
}

// ---- the frame of a step ----

bool TapeWriter::MakesFrame() const {
  const auto& statements = f_.function().statements;
  return HasFrame() &&
         std::any_of(statements.begin(), statements.end(),
                     [this](const Statement& s) { return s.result == f_.function().frame; });
}

Value* TapeWriter::FrameOfStep() {
  return b_.CreateGEP(b_.getInt64Ty(), f_.Argument(kFrames), f_.column());
}

void TapeWriter::BeginFrame() {
  if (!HasFrame() || MakesFrame()) return;
  f_.SetUniform(f_.function().frame, f_.LoadInt64(FrameOfStep()));
}

void TapeWriter::EndFrame() {
  if (MakesFrame()) b_.CreateStore(f_.Uniform(f_.function().frame), FrameOfStep());
}

// ---- frames ----

void TapeWriter::Push(const Statement& s) {
  Value* const place = f_.LoadInt64(top_);
  Value* const top = b_.CreateAdd(place, f_.Int64(s.number));
  b_.CreateStore(top, top_);
  f_.SetUniform(s.result, place);
  if (f_.is_step()) return;  // only counted
  Value* const bytes = b_.CreateMul(top, b_.getInt64(f_.lane_count()));
  Value* const capacity = f_.LoadInt64(f_.ArgumentAt(kTapeCapacity));
  auto* const grows = f_.NewBlock("grow");
  auto* const after = f_.NewBlock("pushed");
  b_.CreateCondBr(b_.CreateICmpSGT(bytes, capacity), grows, after);
  b_.SetInsertPoint(grows);
  f_.CallBack(kGrow, {f_.Arguments(), bytes});
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

Value* TapeWriter::FrameAddress(const Statement& s, int64_t bytes) {
  Value* const offset = b_.CreateAdd(f_.Uniform(s.frame), f_.Int64(s.number));
  Value* const element = b_.CreateMul(ElementNumber(f_, s.index), f_.Int64(bytes));
  Value* const at = b_.CreateMul(b_.CreateAdd(offset, element), b_.getInt64(f_.lane_count()));
  return b_.CreateGEP(b_.getInt8Ty(), memory_ != nullptr ? memory_ : Memory(), at);
}

// A push may move it.
Value* TapeWriter::Memory() {
  return b_.CreateLoad(llvm::PointerType::get(b_.getContext(), 0), f_.ArgumentAt(kTape));
}

void TapeWriter::AroundLoop(const std::vector<Statement>& body,
                            const std::function<void()>& write) {
  Value* const outer = memory_;
  if (!HasPush(body)) memory_ = Memory();
  write();
  memory_ = outer;
}

void TapeWriter::Keep(const Statement& s) {
  const Carrier carrier = f_.CarrierOf(s.operands[0]);
  Value* const at = FrameAddress(s, f_.BytesOfOne(carrier));
  if (s.shared) {
    b_.CreateAlignedStore(f_.Uniform(s.operands[0]), at, llvm::Align(4));
    return;
  }
  auto* const type = f_.StoredType(carrier);
  for (size_t part = 0; part < f_.parts(); ++part) {
    Value* const to = b_.CreateConstGEP1_64(type, at, part);
    Value* value = f_.ToStored(carrier, f_.Part(s.operands[0], part));
    if (f_.masks().depth > 0) {
      // Lanes that left get zeros: the reversal reads no iterations and no tests of theirs.
      value = b_.CreateSelect(f_.Mask(part), value, llvm::Constant::getNullValue(type));
    }
    f_.MarkParallel(b_.CreateAlignedStore(value, to, llvm::Align(4)));
  }
}

void TapeWriter::Recall(const Statement& s) {
  const Carrier carrier = f_.CarrierOf(s.result);
  Value* const at = FrameAddress(s, f_.BytesOfOne(carrier));
  if (s.shared) {
    return f_.SetUniform(s.result, b_.CreateAlignedLoad(b_.getInt64Ty(), at, llvm::Align(4)));
  }
  auto* const type = f_.StoredType(carrier);
  f_.SetLanes(s.result, [&](size_t part) {
    Value* const from = b_.CreateConstGEP1_64(type, at, part);
    auto* const load = b_.CreateAlignedLoad(type, from, llvm::Align(4));
    f_.MarkParallel(load);
    return f_.FromStored(carrier, load);
  });
}

}  // namespace simgrad::sim::compiled
