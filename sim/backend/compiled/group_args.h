// What a compiled function is given: one group of instances, side by side in the lanes of vectors.
//
// Layout: everything that differs between instances lies as [element][lane]. The machine code was
//   written for one number of lanes; a group of fewer instances leaves lanes unused.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simgrad::sim::compiled {

// Read by machine code: the order of members is its contract (function_writer.cc).
struct GroupArgs {
  const double* numbers;      // of the plan
  const int64_t* integers;    // of the plan
  const void* const* inputs;  // per program input: f64 or i64, [step if it has them][element][lane]
                              // or, where it is shared, without lanes
  std::byte* const* fields;   // per field of the plan: [element][lane]
  std::byte* workspace;
  const uint32_t* lanes_run;  // [lane]: not 0 where an instance runs
  int64_t first_step;
  int64_t count;
  int32_t* health;  // [lane]: first bad step of this call, else -1
};

}  // namespace simgrad::sim::compiled
