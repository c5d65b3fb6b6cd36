// Writes loops and masked blocks: each, repeat, leave, if.
//
// Maths: lanes that left a repeat stay masked until the others have. Turns of a loop over elements
//   share only memory that they read, which is said to LLVM where one instance runs alone.
// Cost: a loop of many turns charges its work and asks the clock (fuel_writer.h).
// Errors: none. Threads: one per module.
#pragma once

#include <functional>
#include <vector>

#include "sim/backend/compiled/writer/fuel_writer.h"
#include "sim/backend/compiled/writer/function_builder.h"
#include "sim/backend/compiled/writer/tape_writer.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

class ControlWriter {
 public:
  using Statements = std::vector<plan::Statement>;
  // `block` writes the statements of a body.
  ControlWriter(FunctionBuilder& function, FuelWriter& fuel, TapeWriter& tape,
                std::function<void(const Statements& body)> block);

  void Each(const plan::Statement& s);
  void Repeat(const plan::Statement& s);
  void Leave(const plan::Statement& s);
  void If(const plan::Statement& s);
  // Writes a body for the lanes of a mask; where it has none, the body is skipped.
  void If(const Vectors& inner, const Statements& body);

 private:
  using Turn = std::function<void(llvm::Value* counter)>;
  void InPieces(const plan::Statement& s, const Turn& body, llvm::MDNode* group);
  void SayParallel(llvm::Instruction* back, llvm::MDNode* group);
  // The mask in memory, from which each turn of a repeat reads it.
  void StoreLive(size_t part);
  void ReadLive();

  FunctionBuilder& f_;
  llvm::IRBuilder<>& b_;
  FuelWriter& fuel_;
  TapeWriter& tape_;
  const std::function<void(const Statements& body)> block_;
  // The innermost repeat:
  Vectors live_;  // variables of its mask
  llvm::BasicBlock* exit_ = nullptr;
};

}  // namespace simgrad::sim::compiled
