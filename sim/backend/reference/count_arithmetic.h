// Counts what rounding does to the numbers of every operation, by replaying instances one by one.
//
// Maths: docs/semantics.md, "Arithmetic". Counted are `initial`, the sampled steps, the terminal cost,
//   their reverses, and what a gradient sums over steps.
// Errors: INVALID_ARGUMENT if the batch does not fit its program; RESOURCE_EXHAUSTED if a step in
//   reverse does not fit the budget; CANCELLED if `stop` returned true.
// Cost: a replay of each instance with the reference executor, all steps; twice that and the reversal
//   where `adjoint` asks; memory of one instance.
// Threads: pure.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "absl/status/statusor.h"
#include "sim/backend/executor.h"
#include "sim/diagnostics/arithmetic.h"

namespace simgrad::sim {

struct ArithmeticOptions {
  int64_t instances = 0;  // the first of the batch; more than it has: all
  int32_t stride = 32;    // of sampled steps
  bool adjoint = false;   // in reverse too; the program has one
  double seed_scale = 1;
  // Asked before each instance and told how many of how many are counted; an error ends the count with
  // it. Null: not asked.
  std::function<absl::Status(int64_t counted, int64_t instances)> before_instance = {};
  // The most bytes that the reversal of one step may keep, and what asks for them. Null: not asked.
  int64_t memory_budget_bytes = std::numeric_limits<int64_t>::max();
  std::function<bool(int64_t more_bytes)> reserve = {};
};

absl::StatusOr<Arithmetic> CountArithmetic(const Batch& batch, const ArithmeticOptions& options,
                                           WorkMeter::StopCallback stop = {});

}  // namespace simgrad::sim
