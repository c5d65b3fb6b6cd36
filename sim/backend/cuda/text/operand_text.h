// Registers, buffers and inputs of a plan as C++ expressions.
//
// A register is a constant of the thread, or a member of the struct `f` where pieces of the function
// share it. An array is private, a member of `f`, or in the workspace of the block.
// Errors: none. Cost: linear in what is returned. Threads: one thread's; names are given while a
// function is written. What it is made of outlives it.
#pragma once

#include <string>
#include <vector>

#include "sim/backend/cuda/text/function_cuts.h"
#include "sim/backend/cuda/text/shared_arrays.h"
#include "sim/backend/cuda/text/text_options.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::cuda {

class OperandText {
 public:
  OperandText(const plan::Plan& plan, const plan::Function& function, const TextOptions& options,
              const FunctionCuts& cuts, const SharedArrays& arrays);

  // Gives a register a name for people, before it is used.
  void Name(plan::Register r, const std::string& name);

  plan::Carrier CarrierOf(plan::Register r) const {
    return function_.registers[static_cast<size_t>(r)];
  }
  std::string Reg(plan::Register r) const;
  std::string RegOr(plan::Register r, const char* otherwise) const;  // where there is none

  // The number of an element.
  std::string ElementText(const plan::Index& index) const;
  // Element `at` of a buffer; what can be written is an lvalue.
  std::string ElementOf(plan::BufferId id, const std::string& at) const;
  std::string DeclarationOf(plan::BufferId id) const;
  // Entry `at` of the tables of the program, as a number of this type.
  static std::string NumberText(plan::Carrier carrier, const std::string& at);

  // The struct of values that the pieces of the function share; none where it is whole. Members have
  // the names given so far.
  std::string FrameText(const std::string& type) const;

 private:
  std::string BufferName(plan::BufferId id) const;
  std::string InputText(const plan::Buffer& buffer, const std::string& at) const;
  std::string SentText(const plan::Buffer& buffer, const std::string& at) const;

  const plan::Plan& plan_;
  const plan::Function& function_;
  const TextOptions& options_;
  const FunctionCuts& cuts_;
  const SharedArrays& arrays_;
  std::vector<std::string> names_;  // by register: "_speed", or nothing
};

}  // namespace simgrad::sim::cuda
