// The ball of docs/performance.md as somebody would write it for this GPU: what a generated kernel
// is measured against, and how near it comes itself to what its instructions allow.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/cuda/device.h"
#include "tests/gpu/issue_limit.h"

namespace simgrad::gpu_check {

inline constexpr int64_t kBallInstances = int64_t{1} << 20;
inline constexpr int64_t kBallSteps = 1000;

// CUDA C++ with the entry point simgrad_forward.
std::string YardstickText();
// The states that it and the server's ball begin with.
std::vector<double> BallHeights(int64_t instances);
// The best of `repeats` runs, in seconds of the device.
absl::StatusOr<double> RunYardstick(const std::shared_ptr<sim::cuda::Device>& device, int repeats);

// Per warp and step: how often the body of the inner loop runs, by simulating `warps` warps. A warp
// runs it as often as the lane that needs it most.
double InnerRunsPerWarpStep(int64_t warps, int64_t steps);

struct IssueLimit {
  Counts per_step;        // of a warp
  double inner_runs = 0;  // of a warp and step
  std::string bound;
  double Seconds(int64_t instances, int64_t steps, int multiprocessors, double clock_hz) const;
};

// From the disassembly of YardstickText().
absl::StatusOr<IssueLimit> LimitOfYardstick(const std::string& listing);
// Compiles it for the architecture and calls nvdisasm, or cuobjdump, of the toolkit. NOT_FOUND
// where there is neither.
absl::StatusOr<std::string> DisassembleYardstick(const std::string& architecture);

}  // namespace simgrad::gpu_check
