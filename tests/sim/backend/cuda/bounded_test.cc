// Maxima and minima beside a number of the program, in the text for CUDA.
#include "sim/backend/cuda/run/cuda_executor.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/bounded_world.h"

namespace simgrad::tests {
namespace {

TEST(CudaBoundedTest, GivesTheLargerAndTheSmaller) {
  ExpectBoundsOn(std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(MakeHostShimDevice())));
}

}  // namespace
}  // namespace simgrad::tests
