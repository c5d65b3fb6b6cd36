// Writes the count of work, and the looks at the clock that may end a run.
//
// Units: fuel is in element-operations, statements times lanes (group_args.h). Work is counted before
//   it is done; the overdraft of the last amount counts against the next.
// Cost: a subtraction, a comparison and a branch for each charge. Threads: one per module.
#pragma once

#include <cstdint>

#include "sim/backend/compiled/writer/function_builder.h"

namespace simgrad::sim::compiled {

class FuelWriter {
 public:
  explicit FuelWriter(FunctionBuilder& function) : f_(function) {}

  // `place` holds the fuel that is left until the next look.
  void SetPlace(llvm::Value* place) { place_ = place; }
  // Around the steps of a function: from the arguments, and back to them.
  void Take();
  void GiveBack();

  // Statements that every lane is about to run.
  void Charge(int64_t statements) { Charge(f_.Int64(statements)); }
  void Charge(llvm::Value* statements);

  // The block that ends the function because the run has to stop.
  llvm::BasicBlock* Stopped();

 private:
  FunctionBuilder& f_;
  llvm::Value* place_ = nullptr;
  llvm::BasicBlock* stopped_ = nullptr;  // null: nothing stops it
};

}  // namespace simgrad::sim::compiled
