// The sizes that issue and page promise, through a whole run: instances around warps and blocks,
// elements up to 4096, horizons up to 10^5. With SIMGRAD_LONG=1 also those that take minutes.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/environment.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/observed.h"

namespace simgrad::tests {
namespace {

using sim::cuda::Mapping;

struct Size {
  int64_t instances, elements, steps;
  std::optional<Mapping> mapping;  // unset: the one that is chosen
  int block;
  int64_t grid = 0;  // 0: as many blocks as there is work for
};

// A gradient, with everything recorded that a size leaves room for.
std::string DifferenceAt(const Size& size) {
  auto program = LowerCase(WorldCases(static_cast<double>(size.elements))[0], "f32", true);
  if (!program.ok()) return program.status().ToString();
  sim::Work work = WorkOfCase(*std::move(program), size.instances, size.steps);
  if (size.instances * size.steps * size.elements > 1'000'000) {
    work.options.record_states.clear();
    work.options.record_exports.clear();
  }
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  if (!expected.ok()) return "reference: " + expected.status().ToString();
  const sim::CudaExecutorOptions options = {
      .mapping = size.mapping, .block = size.block, .grid = size.grid};
  const auto actual = sim::equality::Observe(
      std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(MakeHostShimDevice(), options)), work);
  if (!actual.ok()) return actual.status().ToString();
  return sim::equality::FirstDifference(*expected, *actual).value_or("");
}

void ExpectEqualAt(const std::vector<Size>& sizes) {
  for (const Size& size : sizes) {
    EXPECT_EQ(DifferenceAt(size), "")
        << size.instances << " instances of " << size.elements << " elements, " << size.steps
        << " steps, " << (size.mapping ? MappingName(*size.mapping) : "chosen mapping");
  }
}

TEST(SizesTest, InstancesAroundWarpsAndBlocks) {
  std::vector<Size> sizes;
  for (const int64_t instances : {0, 1, 31, 32, 33, 1023, 1024, 1025}) {
    sizes.push_back({instances, 1, 2, Mapping::kThreadPerInstance, 128});
    sizes.push_back({instances, 1, 2, Mapping::kBlockPerInstance, 1});
  }
  ExpectEqualAt(sizes);
}

TEST(SizesTest, ElementsFromOneTo4096) {
  std::vector<Size> sizes = {{3, 2, 2, std::nullopt, 0}, {3, 33, 2, std::nullopt, 0}};
  sizes.push_back({2, 4096, 1, std::nullopt, 32});
  if (IsLong()) {
    for (const int64_t elements : {1, 31, 1000, 4096}) sizes.push_back({3, elements, 3, {}, 0});
  }
  ExpectEqualAt(sizes);
}

TEST(SizesTest, HorizonsFromOneTo100000) {
  std::vector<Size> sizes;
  for (const int64_t steps : {1, 1000, 100'000}) {
    sizes.push_back({1, 1, steps, Mapping::kThreadPerInstance, 1});
  }
  if (IsLong()) sizes.push_back({2, 1, 100'000, Mapping::kBlockPerInstance, 32});
  ExpectEqualAt(sizes);
}

// A block of several warps goes through several groups of instances in each window of recorded steps.
TEST(SizesTest, WindowsOfStepsOverGroupsOfInstances) {
  ExpectEqualAt({{300, 1, 60, Mapping::kThreadPerInstance, 128, 2},
                 {5, 40, 60, Mapping::kBlockPerInstance, 64, 2}});
}

TEST(SizesTest, AMillionInstances) {
  if (!IsLong()) GTEST_SKIP() << "minutes; SIMGRAD_LONG=1 runs it";
  ExpectEqualAt({{1'000'000, 1, 2, Mapping::kThreadPerInstance, 128},
                 {1'000'000, 1, 1, Mapping::kBlockPerInstance, 1}});
}

}  // namespace
}  // namespace simgrad::tests
