// The facts of a program and of its launches that the text of its functions hangs on.
//
// Threads: data.
#pragma once

#include <cstdint>
#include <vector>

#include "precision/format.h"
#include "sim/backend/cuda/generate.h"

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

}  // namespace simgrad::sim::cuda
