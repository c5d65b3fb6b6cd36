// Writes the frames that a replay puts on the tape, and reads them in reverse.
//
// Layout: a place is in bytes per lane; a number lies at (place + offset) * lanes, by lane.
//   A forward step only counts what a replay would push.
// Errors: none; where the tape is too small, the code asks for more (GroupArgs::grow).
// Threads: one per module.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/backend/compiled/writer/function_builder.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

class TapeWriter {
 public:
  explicit TapeWriter(FunctionBuilder& function) : f_(function), b_(function.b()) {}

  // `top` holds the top of the tape, in bytes per lane.
  void SetTop(llvm::Value* top) { top_ = top; }
  void Clear() { b_.CreateStore(b_.getInt64(0), top_); }
  // Takes the top into the most that a step has put on the tape.
  void Meter();

  // Around the statements of a step: its frame is read if another function made it, or noted.
  void BeginFrame();
  void EndFrame();

  void Push(const plan::Statement& s);
  void Keep(const plan::Statement& s);
  void Recall(const plan::Statement& s);

  // Writes a loop of `body`. Where nothing in it is pushed, the memory is found once, before it.
  void AroundLoop(const std::vector<plan::Statement>& body, const std::function<void()>& write);

 private:
  bool HasFrame() const { return f_.function().frame != plan::kNoRegister; }
  bool MakesFrame() const;
  llvm::Value* FrameOfStep();
  // The address of lane 0 of a number in a frame.
  llvm::Value* FrameAddress(const plan::Statement& s, int64_t bytes);
  llvm::Value* Memory();

  FunctionBuilder& f_;
  llvm::IRBuilder<>& b_;
  llvm::Value* top_ = nullptr;
  llvm::Value* memory_ = nullptr;  // of the tape, in a loop that pushes nothing; else null
};

}  // namespace simgrad::sim::compiled
