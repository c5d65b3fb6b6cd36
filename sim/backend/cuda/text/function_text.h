// A function of a plan as C++ for a GPU: one statement of the plan is one of the text.
//
// Registers are constants of the thread, arrays are private (a thread per instance) or in the
// workspace of the block at offsets that are used again behind the block of statements that declares
// them. A function of many statements is cut into several that are not inlined, since the time of a
// compiler grows faster than the length of a function; what they share stands in a struct.
// Errors: none. Cost: linear, times the depth of loops. Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/backend/cuda/generate.h"
#include "sim/plan/plan.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::cuda {

// The numbers of a program, and its integers, that a thread reads once for an instance and a window of
// steps: members n0, n1, ..., i0, ... of the Instance.
inline constexpr int64_t kKeptNumbers = 16;

struct TextOptions {
  Mapping mapping = Mapping::kThreadPerInstance;
  bool records = true;
  bool tells_instances = false;
  std::vector<bool> reads_once;  // per input: one number that is read before the steps
  std::vector<int64_t> config;   // per input: its place among the numbers; -1: it is sent
  std::vector<int> gradient;     // per input: field of its gradient, and of the flag beside it
  std::vector<int> connected;
  std::vector<bool> gradient_kept;  // the sum travels with the thread
  precision::Format adjoint_format = precision::Format::kF32;
  int64_t longest = 400;  // statements of a function that is not cut
};

struct FunctionText {
  std::string text;
  int64_t workspace = 0;  // bytes of the block
  int functions = 1;
};

// `name` in C++: of an Instance, and where steps are reversed of the place of the step's frame, which
// the replay of a step returns.
FunctionText WriteFunction(const plan::Plan& plan, const plan::Function& function,
                           const TextOptions& options, const std::string& name);

// Words of the text.
std::string TypeText(plan::Carrier carrier);
std::string FormatText(precision::Format format);  // "Format::kF32"
std::string HashText(uint64_t hash);

}  // namespace simgrad::sim::cuda
