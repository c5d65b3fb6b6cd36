// Checks a program from an untrusted client before any of it runs.
//
// Errors: INVALID_ARGUMENT with the field path (field_error.h): wrong operand counts, types or
//   shapes, use before definition, use across regions, clashing names, a site named twice, a select
//   that depends on an unnamed comparison of reals, loops and work over the limits, non-finite
//   literals, roles that a world cannot use, adjoint-only operations. A size above its limit is an
//   IsLimit error.
// Cost: n log n in the program. Never allocates by a number found in the program.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

struct ProgramLimits {
  int64_t max_operations = 50'000;
  int64_t max_values = 150'000;
  int64_t max_elements = 1 << 20;              // of one value
  int64_t max_total_elements = 1 << 24;        // of all values
  int64_t max_loop_iterations = 100'000;       // cap of one loop
  int64_t max_nested_iterations = 10'000'000;  // product of the caps of nested loops
  // Element-operations of one step with every loop at its cap (step_work.h): a loop at the largest
  // cap may use each of max_total_elements twice. It is some hours of a core.
  int64_t max_step_work = int64_t{1} << 42;
  int64_t max_depth = 8;  // of nested regions
  int64_t max_name_length = 128;
  int64_t max_name_bytes = 4 << 20;  // of all names, labels and descriptions
  int64_t max_exports = 4'096;
  int64_t max_objectives = 256;
  // Operands or results of one operation, arguments or yields of one region.
  int64_t max_operands = 32'768;
  int64_t max_total_operands = 500'000;    // all of those
  int64_t max_literal_elements = 1 << 22;  // numbers of all literals
};

// Polls `budget`, and returns CANCELLED if it is told to stop.
absl::Status Verify(const Program& program, const ProgramLimits& limits = {},
                    PassBudget* budget = nullptr);

}  // namespace simgrad::sim
