// Margins by element of kernels: the bits that the reference gives.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/program/lower.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::tests {
namespace {

// The forward run of a random program that tells the margins of all sites that have any.
std::optional<sim::Work> TellingWork(uint64_t seed) {
  const auto made = sim::equality::MakeCase(seed, {.instances = 5, .steps = 2});
  EXPECT_TRUE(made.ok()) << made.status();
  const sim::NumericalProgram& plain = *made->work.batch.program;
  std::vector<std::string> sites;
  for (const sim::Site& site : plain.sites) {
    const auto told = sim::Lower(made->world, plain.policy, plain.objective, std::nullopt, nullptr,
                                 {.margins = {site.name}});
    if (told.ok()) sites.push_back(site.name);  // not a loop that a boolean stops
  }
  if (sites.empty()) return std::nullopt;
  auto told = sim::Lower(made->world, plain.policy, plain.objective, std::nullopt, nullptr,
                         {.margins = sites});
  EXPECT_TRUE(told.ok()) << told.status();
  sim::Work work = made->work;
  work.gradient.reset();
  work.batch.cotangents = {};
  work.batch.inputs.resize(told->program.inputs.size());
  work.options.record_exports.clear();
  for (size_t i = 0; i < told->program.exports.size(); ++i) {
    work.options.record_exports.push_back(static_cast<int32_t>(i));
  }
  work.batch.program = std::make_shared<const sim::NumericalProgram>(*std::move(told));
  return work;
}

TEST(ToldMarginsTest, OfRandomProgramsAreThoseOfTheReference) {
  int compared = 0;
  for (uint64_t seed = 40; seed < 46; ++seed) {
    SCOPED_TRACE(seed);
    const std::optional<sim::Work> work = TellingWork(seed);
    if (!work) continue;
    const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), *work);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const auto actual = sim::equality::Observe(
        std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(MakeHostShimDevice())), *work);
    ASSERT_TRUE(actual.ok()) << actual.status();
    EXPECT_EQ(sim::equality::FirstDifference(*expected, *actual), std::nullopt);
    ++compared;
  }
  EXPECT_GE(compared, 3);
}

}  // namespace
}  // namespace simgrad::tests
