// The parts of gpu_check.
#pragma once

#include <memory>
#include <string>

#include "sim/backend/cuda/device.h"
#include "tests/gpu/report.h"

namespace simgrad::gpu_check {

struct EqualityGoal {
  int64_t triples = 10'000;   // (program, policy, size)
  int64_t steps = 1'000'000;  // over all of them
  int threads = 1;            // that generate, compile and compare side by side
  double seconds = 1e9;       // after which no further triple is begun
  uint64_t first_seed = 1;
};

// `cuda` against `cpu` to the bit, on random programs, policies and sizes.
void CheckEquality(const std::shared_ptr<sim::cuda::Device>& device, const EqualityGoal& goal,
                   Report& report);
// Sizes around the widths of warps and blocks; unless `small`, large ones, long horizons, and
// memory that runs out.
void CheckSizes(const std::shared_ptr<sim::cuda::Device>& device, bool small, Report& report);
// The speed demands, beside a kernel written by hand.
void MeasureSpeed(const std::shared_ptr<sim::cuda::Device>& device, const std::string& architecture,
                  Report& report);

}  // namespace simgrad::gpu_check
