// Writes the loads and stores of a function: locals, fields, inputs, tables, and numbers that are
// sent or summed for the adjoint.
//
// Layout: [element][part][lane], or [element] where all lanes have the same (uniform_buffers.h). Locals and fields
//   of few elements stay in registers (small_arrays.h), from step to step too. Stores heed the mask where the buffer
//   began outside of it.
// Errors: none. Threads: one per module.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/backend/compiled/analysis/small_arrays.h"
#include "sim/backend/compiled/writer/function_builder.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

class MemoryWriter {
 public:
  explicit MemoryWriter(FunctionBuilder& function);

  // Around a function or a piece of one, once its arguments are read.
  void Begin();
  void StoreFields();
  // Finds the locals that pieces share: other pieces may have declared them.
  void BindPlaced();
  // Makes what invariant loops store outlive the call (GroupArgs::kept). If all lanes have the same,
  // it is one number an element.
  void ReuseInvariants();

  void Number(const plan::Statement& s);  // kNumber, kInteger
  void Declare(const plan::Statement& s);
  void Load(const plan::Statement& s);
  void Store(const plan::Statement& s);

  // The memory of a buffer that has several elements.
  llvm::Value* At(plan::BufferId id) const { return locals_[IndexOf(id)].memory; }
  // Whether a loop is written turn by turn.
  bool IsUnrolled(const plan::Statement& s) const { return small_.unrolled.count(&s) > 0; }

 private:
  struct Local {
    Vectors variables;  // [element][part], of few elements; else in memory
    llvm::Value* memory = nullptr;
    size_t loops = 0;  // parallel loops around its declaration
    int depth = 0;     // masked blocks around its declaration
  };

  static size_t IndexOf(plan::BufferId id) { return static_cast<size_t>(id); }
  const plan::Buffer& BufferOf(plan::BufferId id) const {
    return f_.function().buffers[IndexOf(id)];
  }
  const InputForm& FormOf(const plan::Buffer& input) const {
    return f_.options().inputs[static_cast<size_t>(input.number)];
  }
  // Whether it is one number an element, for all lanes.
  bool IsUniform(plan::BufferId id) const { return !uniform_.empty() && uniform_[IndexOf(id)]; }
  void LoadUniform(const plan::Statement& s);
  void StoreUniform(const plan::Statement& s);
  bool Outlives(const plan::Buffer& buffer) const;
  // Whether it stays in registers.
  bool IsKept(const plan::Buffer& buffer) const;
  bool IsNamed(const plan::Buffer& buffer) const;
  // Needs a buffer that stays in registers.
  llvm::Value* Variable(const Local& local, llvm::Value* element, size_t part) const;

  void FindInputs();
  void LoadFields();
  void MakeVariables(plan::BufferId id);
  llvm::Value* SharedVariable(plan::BufferId id);
  llvm::Value* PlaceOf(const plan::Buffer& buffer);
  // The memory of a local, a field, or a number that is sent or summed; its entry of the current
  // step if it has one for each.
  llvm::Value* MemoryOf(const plan::Buffer& buffer, const Local& local);

  llvm::LoadInst* LoadVector(llvm::Type* type, llvm::Value* memory, llvm::Value* vector_index);
  static bool IsOfAllTurns(const plan::Buffer& buffer);
  llvm::Value* LoadPart(const plan::Statement& s, llvm::Value* element, size_t part);
  void StorePart(const plan::Statement& s, llvm::Value* element, bool masked, size_t part);
  void LoadInput(const plan::Statement& s, const plan::Buffer& buffer);
  void LoadTable(const plan::Statement& s, const plan::Buffer& buffer);
  llvm::Value* TableNumber(plan::Carrier carrier, llvm::Value* number);
  // A number of the table in the carrier of a register.
  llvm::Value* FromTable(plan::Carrier carrier, llvm::Value* number);

  FunctionBuilder& f_;
  llvm::IRBuilder<>& b_;
  std::vector<Local> locals_;  // by buffer
  SmallArrays small_;          // where lanes hold instances
  bool reuses_ = false;
  std::vector<bool> uniform_;  // by buffer; empty: none
};

}  // namespace simgrad::sim::compiled
