// A function of a plan that is being written: its arguments, registers, masks and time, and the
// instructions on them.
//
// The writers of its parts (memory, tape, fuel, control, records) share one.
// Errors: none; plans are valid. Threads: one per module.
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/backend/compiled/writer/lane_builder.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

struct Masks {
  Vectors running;  // lanes whose instance runs
  Vectors now;      // lanes for which the statement at hand runs
  int depth = 0;    // masked blocks around it
};

class FunctionBuilder : private LaneBuilder {
 public:
  // `owner` is the function of the plan that `function` is, or is a piece of.
  FunctionBuilder(llvm::Module& module, const plan::Plan& plan, const plan::Function& owner,
                  const plan::Function& function, const WriterOptions& options,
                  const std::string& name);
  FunctionBuilder(const FunctionBuilder&) = delete;
  FunctionBuilder& operator=(const FunctionBuilder&) = delete;
  // Once all is written: the entry, with the variables, leads to the rest.
  void End() { entry_.CreateBr(begin_); }

  const plan::Plan& plan() const { return plan_; }
  const plan::Function& owner() const { return owner_; }
  const plan::Function& function() const { return planned_; }
  const WriterOptions& options() const { return options_; }
  bool is_piece() const { return &owner_ != &planned_; }
  bool is_step() const { return &owner_ == &plan_.step; }
  bool is_one() const { return options_.shape.lanes() == 1; }  // scalar code
  uint64_t lane_count() const { return static_cast<uint64_t>(options_.shape.lanes()); }

  llvm::Module& module() { return module_; }
  llvm::Function* made() { return made_; }
  llvm::IRBuilder<>& b() { return b_; }          // where the function has got to
  llvm::IRBuilder<>& entry() { return entry_; }  // at its beginning
  const LaneBuilder& lanes() const { return *this; }
  using LaneBuilder::Any, LaneBuilder::Arguments, LaneBuilder::Bits64Of, LaneBuilder::CallBack,
      LaneBuilder::If, LaneBuilder::Offset, LaneBuilder::parts, LaneBuilder::Splat,
      LaneBuilder::Splat64, LaneBuilder::Variables, LaneBuilder::VectorOf, LaneBuilder::width;

  // ---- types ----
  llvm::Type* ScalarType(plan::Carrier carrier);
  // In memory a bool is -1 or 0 as wide as a float, which vector units can test at once.
  llvm::Type* ScalarInMemory(plan::Carrier carrier);
  llvm::Type* StoredType(plan::Carrier carrier) { return VectorOf(ScalarInMemory(carrier)); }
  int64_t BytesOfOne(plan::Carrier carrier) const;
  llvm::Value* ToStored(plan::Carrier carrier, llvm::Value* value);
  llvm::Value* FromStored(plan::Carrier carrier, llvm::Value* value);
  llvm::Value* Int64(int64_t n) { return b_.getInt64(static_cast<uint64_t>(n)); }
  llvm::Value* LoadInt64(llvm::Value* at) { return b_.CreateLoad(b_.getInt64Ty(), at); }

  // ---- registers ----
  plan::Carrier CarrierOf(plan::Register r) const { return planned_.registers[IndexOf(r)]; }
  bool IsUniform(plan::Register r) const { return registers_[IndexOf(r)].uniform; }
  llvm::Value* Part(plan::Register r, size_t part);
  Vectors PartsOf(plan::Register r);  // none: empty
  // The number of a register that all lanes share.
  llvm::Value* Uniform(plan::Register r) const { return registers_[IndexOf(r)].parts[0]; }
  void SetUniform(plan::Register r, llvm::Value* value);
  void SetLanes(plan::Register r, const std::function<llvm::Value*(size_t part)>& value);

  // ---- arguments ----
  void ReadArguments();
  llvm::Value* Argument(Member member) const { return argument_values_[member]; }
  llvm::Value* ArgumentAt(Member member) { return Offset(Arguments(), 8 * member); }
  llvm::LoadInst* ListedPointer(Member list, int32_t number);
  void MarkInvariant(llvm::LoadInst* load);
  // Says how many bytes can be read where a pointer leads, so that a loop may read them before its
  // first turn.
  void MarkReadable(llvm::LoadInst* pointer, uint64_t bytes);

  // ---- time and masks ----
  void SetTime(llvm::Value* column);  // counts the steps of the call
  llvm::Value* time() const { return time_; }
  llvm::Value* column() const { return column_; }
  Masks& masks() { return masks_; }
  llvm::Value* Mask(size_t part) const { return masks_.now[part]; }

  // ---- blocks and loops ----
  llvm::BasicBlock* NewBlock(const char* name);
  // body(0), body(1), ... as often as the scalar `extent` says. Returns the branch back.
  llvm::Instruction* CountTo(llvm::Value* extent,
                             const std::function<void(llvm::Value* counter)>& body);
  // Loops over elements whose turns share only memory that they read; outermost first.
  void BeginParallel(llvm::MDNode* group) { loops_.push_back(group); }
  void EndParallel() { loops_.pop_back(); }
  size_t parallel_loops() const { return loops_.size(); }
  // An access that no other turn of the parallel loops around it touches, but for the first
  // `shared`: there each turn uses the same bytes anew.
  void MarkParallel(llvm::Value* access, size_t shared = 0);

 private:
  // A scalar that holds in every lane, or one vector per part.
  struct Lanes {
    bool uniform = false;
    Vectors parts;
  };
  static size_t IndexOf(plan::Register r) { return static_cast<size_t>(r); }
  llvm::FunctionType* Type();
  llvm::LoadInst* ReadArgument(Member member, llvm::Type* type);

  const plan::Plan& plan_;
  const plan::Function& owner_;
  const plan::Function& planned_;
  llvm::IRBuilder<> body_builder_, entry_builder_;  // b_, entry_
  llvm::Value* argument_values_[kMembers] = {};     // arguments_
  llvm::Function* made_ = nullptr;                  // function_
  llvm::BasicBlock* begin_ = nullptr;
  std::vector<Lanes> registers_;
  llvm::Value* time_ = nullptr;
  llvm::Value* column_ = nullptr;
  Masks masks_;
  std::vector<llvm::Metadata*> loops_;  // their access groups
};

}  // namespace simgrad::sim::compiled
