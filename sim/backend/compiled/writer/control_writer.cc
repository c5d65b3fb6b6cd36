#include "sim/backend/compiled/writer/control_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "sim/backend/compiled/analysis/statement_cost.h"
#include "sim/work_meter.h"

namespace simgrad::sim::compiled {

using llvm::Value;
using plan::Carrier;
using plan::Statement;

ControlWriter::ControlWriter(FunctionBuilder& function, FuelWriter& fuel, TapeWriter& tape,
                             std::function<void(const Statements& body)> block)
    : f_(function), b_(function.b()), fuel_(fuel), tape_(tape), block_(std::move(block)) {}

// ---- loops over elements ----

void ControlWriter::Each(const Statement& s) {
  Value* const extent = s.operands.empty() ? f_.Int64(s.number) : f_.Uniform(s.operands[0]);
  const bool asks = IsLong(s);
  const bool maps_elements = f_.is_one() && s.parallel && s.operands.empty();
  // A look inside would keep the compiler from making vectors of its turns.
  const bool asks_before = asks && maps_elements && !HasLoop(s.body);
  // One of arithmetic is counted as a whole when it begins.
  const bool is_bounded = !s.operands.empty() || s.number * CostOf(s.body) <= WorkMeter::kPiece;
  const bool charges_once = asks && !maps_elements && is_bounded && IsArithmetic(s.body);
  if (charges_once) fuel_.Charge(b_.CreateMul(extent, f_.Int64(CostOf(s.body))));
  const auto body = [&](Value* counter) {
    f_.SetUniform(s.result, counter);
    if (asks && !asks_before && !charges_once) fuel_.Charge(CostOf(s.body));
    block_(s.body);
  };
  if (!maps_elements) {
    f_.CountTo(extent, body);
    return;
  }
  auto* const group = llvm::MDNode::getDistinct(b_.getContext(), {});
  f_.BeginParallel(group);
  tape_.AroundLoop(s.body, [&] {
    if (asks_before) {
      InPieces(s, body, group);
    } else {
      SayParallel(f_.CountTo(extent, body), group);
    }
  });
  f_.EndParallel();
}

// A loop of many turns as loops of few, with a look before each of them.
void ControlWriter::InPieces(const Statement& s, const Turn& body, llvm::MDNode* group) {
  const int64_t cost = CostOf(s.body);
  const int64_t most = std::max<int64_t>(1, WorkMeter::kPiece / cost);
  f_.CountTo(f_.Int64((s.number + most - 1) / most), [&](Value* piece) {
    fuel_.Charge(std::min(most, s.number) * cost);
    Value* const begin = b_.CreateMul(piece, f_.Int64(most));
    Value* const left = b_.CreateSub(f_.Int64(s.number), begin);
    Value* const turns = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, left, f_.Int64(most));
    SayParallel(f_.CountTo(turns, [&](Value* turn) { body(b_.CreateAdd(begin, turn)); }), group);
  });
}

// Tells LLVM what the plan guarantees: turns of the loop share only memory that they read.
void ControlWriter::SayParallel(llvm::Instruction* back, llvm::MDNode* group) {
  auto& context = b_.getContext();
  llvm::Metadata* const accesses[] = {llvm::MDString::get(context, "llvm.loop.parallel_accesses"),
                                      group};
  llvm::Metadata* const properties[] = {nullptr, llvm::MDNode::get(context, accesses)};
  auto* const loop = llvm::MDNode::getDistinct(context, properties);
  loop->replaceOperandWith(0, loop);
  back->setMetadata(llvm::LLVMContext::MD_loop, loop);
}

// ---- loops that lanes leave ----

void ControlWriter::Repeat(const Statement& s) {
  Masks& masks = f_.masks();
  const Vectors outer_mask = masks.now;
  const Vectors outer_live = std::exchange(live_, f_.Variables(b_.getInt32Ty()));
  auto* const outer_exit = exit_;
  for (size_t part = 0; part < f_.parts(); ++part) StoreLive(part);
  auto* const head = f_.NewBlock("repeat");
  exit_ = f_.NewBlock("left");
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  ++masks.depth;
  fuel_.Charge(CostOf(s.body));
  ReadLive();
  block_(s.body);
  b_.CreateBr(head);
  --masks.depth;
  b_.SetInsertPoint(exit_);
  masks.now = outer_mask;
  live_ = outer_live;
  exit_ = outer_exit;
}

void ControlWriter::StoreLive(size_t part) {
  b_.CreateStore(f_.ToStored(Carrier::kBool, f_.Mask(part)), live_[part]);
}

void ControlWriter::ReadLive() {
  for (size_t part = 0; part < f_.parts(); ++part) {
    auto* const stored = b_.CreateLoad(f_.StoredType(Carrier::kBool), live_[part]);
    f_.masks().now[part] = f_.FromStored(Carrier::kBool, stored);
  }
}

void ControlWriter::Leave(const Statement& s) {
  Vectors& mask = f_.masks().now;
  for (size_t part = 0; part < f_.parts(); ++part) {
    Value* const stays = b_.CreateNot(f_.Part(s.operands[0], part));
    mask[part] = b_.CreateAnd(mask[part], stays);
    StoreLive(part);
  }
  auto* const on = f_.NewBlock("on");
  b_.CreateCondBr(f_.Any(mask), on, exit_);
  b_.SetInsertPoint(on);
  if (!f_.is_one()) return;
  mask[0] = b_.getTrue();
  StoreLive(0);
}

// ---- masked blocks ----

void ControlWriter::If(const Statement& s) {
  Vectors inner;
  for (size_t part = 0; part < f_.parts(); ++part) {
    inner.push_back(b_.CreateAnd(f_.Mask(part), f_.Part(s.operands[0], part)));
  }
  If(inner, s.body);
}

void ControlWriter::If(const Vectors& inner, const Statements& body) {
  Masks& masks = f_.masks();
  const Vectors outer = masks.now;
  f_.If(f_.Any(inner), [&] {
    ++masks.depth;
    masks.now = inner;
    if (f_.is_one()) masks.now[0] = b_.getTrue();
    block_(body);
    --masks.depth;
  });
  masks.now = outer;
}

}  // namespace simgrad::sim::compiled
