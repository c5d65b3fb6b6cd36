// Operations of integers against C++'s own, in the text for CUDA.
#include "sim/backend/cuda/run/cuda_executor.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/integer_world.h"

namespace simgrad::tests {
namespace {

TEST(CudaIntegerOperationTest, GivesWhatCppComputes) {
  ExpectIntegersOn(std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(MakeHostShimDevice())));
}

}  // namespace
}  // namespace simgrad::tests
