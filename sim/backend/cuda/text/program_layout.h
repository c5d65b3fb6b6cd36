// Lays out what an instance of a program has on a device: fields, tables of numbers, shared memory.
//
// Units: bytes where a name says so. Errors: none. Cost: that of a plan, then linear in inputs and
// fields. Threads: pure. The program and the options outlive their layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/backend/cuda/generate.h"
#include "sim/backend/cuda/text/text_options.h"
#include "sim/plan/plan.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::cuda {

struct ProgramLayout {
  const NumericalProgram& numerical;
  const GenerateOptions& options;
  plan::Plan plan;
  std::vector<bool> reads;      // by input, whether the program reads it
  std::vector<int32_t> states;  // the inputs that are states
  TextOptions text;

  std::vector<Field> fields;  // those of the plan come first, under the same numbers
  int health = 0, signature = 0, adjoint_health = 0;
  std::vector<int> last, first;  // by event
  bool sums = false;             // gradients of weights are wanted

  std::vector<double> numbers;  // of the plan, then of configuration

  int64_t window = 1;        // steps that a block records at once
  int64_t shared_bytes = 0;  // of a block, with those of the window at the end
  int64_t window_bytes = 0;
  bool in_workspace = false;  // it is too much for shared memory, and the first of the workspace

  const Program& program() const { return numerical.program; }
  const Value& ValueOf(size_t input) const;
  bool IsBlock() const { return options.mapping == Mapping::kBlockPerInstance; }
  bool Records() const { return options.recording != Recording::kNone; }
  bool PerStep(size_t input) const;
  bool HasLast() const { return numerical.adjoint && numerical.adjoint->last.has_value(); }
  // Whether a block that reverses steps changes a copy of the field, which lies behind its arrays.
  bool IsCopied(const plan::Field& field) const;
  static int64_t CopyBytes(const plan::Field& field);
  // The bytes at the start of the workspace that hold what a block shares; 0: none do.
  int64_t SharedInWorkspace() const;
  // The bytes behind them, if the arrays of a block take `arrays`.
  int64_t InstanceBytes(int64_t arrays) const;
};

// Returns the least multiple of the alignment of the workspace that holds so many bytes.
int64_t AlignedBytes(int64_t bytes);

ProgramLayout LayoutOf(const NumericalProgram& numerical, const GenerateOptions& options);

}  // namespace simgrad::sim::cuda
