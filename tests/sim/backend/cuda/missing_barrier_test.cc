// A generated kernel that lacks one barrier gives other bits, and the comparison sees it.
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "sim/backend/cuda/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/observed.h"

namespace simgrad::tests {
namespace {

using sim::cuda::Mapping;

constexpr char kBarrier[] = "__syncthreads();";

int BarriersIn(const std::string& text) {
  int count = 0;
  for (size_t at = text.find(kBarrier); at != std::string::npos; at = text.find(kBarrier, at + 1)) {
    ++count;
  }
  return count;
}

// `text` without its barrier number `which`; the line stays, so that lines keep their numbers.
std::string WithoutBarrier(std::string text, int which) {
  size_t at = text.find(kBarrier);
  for (int i = 0; i < which; ++i) at = text.find(kBarrier, at + 1);
  return text.replace(at, sizeof(kBarrier) - 1, ";");
}

// Plants a missing barrier at up to `most` places of the kernels, evenly over the text.
void ExpectCaught(Mapping mapping, int most, int least_caught) {
  const sim::Work work = WorkOfCase(*LowerCase(WorldCases(9)[0], "f32", true), 40, 5);
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  sim::cuda::GenerateOptions options;
  options.mapping = mapping;
  for (const sim::Binding& binding : work.batch.inputs)
    options.per_step.push_back(binding.per_step);
  const auto source = sim::cuda::Generate(*work.batch.program, options);
  ASSERT_TRUE(source.ok()) << source.status();
  const int barriers = BarriersIn(source->text);
  ASSERT_GE(barriers, least_caught);
  int planted = 0;
  int caught = 0;
  for (int k = 0; k < std::min(most, barriers); ++k) {
    const int which = k * barriers / std::min(most, barriers);
    ++planted;
    bool seen = false;
    for (uint64_t seed = 1; seed <= 3 && !seen; ++seed) {
      const auto device = MakeHostShimDevice({.seed = seed, .plant = [which](std::string text) {
                                                return WithoutBarrier(std::move(text), which);
                                              }});
      const auto actual =
          sim::equality::Observe(std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(
                                     device, {.mapping = mapping, .block = 32, .grid = 1})),
                                 work);
      seen = !actual.ok() || sim::equality::FirstDifference(*expected, *actual).has_value();
    }
    caught += seen ? 1 : 0;
    if (!seen) std::cout << "barrier " << which << " of " << barriers << " was not missed\n";
  }
  std::cout << MappingName(mapping) << ": " << caught << " of " << planted
            << " missing barriers caught\n";
  EXPECT_GE(caught, least_caught);
}

TEST(MissingBarrierTest, IsCaughtWithAThreadPerInstance) {
  ExpectCaught(Mapping::kThreadPerInstance, 6, 2);
}

TEST(MissingBarrierTest, IsCaughtWithABlockPerInstance) {
  ExpectCaught(Mapping::kBlockPerInstance, 6, 2);
}

}  // namespace
}  // namespace simgrad::tests
