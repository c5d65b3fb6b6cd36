// The CPU executor of a build without LLVM serves, and says that it is slow.
#include "sim/backend/host_executor.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/backend/reference/reference_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim {
namespace {

TEST(WithoutLlvm, TheReferenceServesAndSaysSo) {
  const auto host = MakeHostExecutor({});
  EXPECT_EQ(host->name(), "cpu");
  EXPECT_NE(host->note().find("built without LLVM"), std::string::npos) << host->note();
  EXPECT_EQ(host->held().kernels, 0);
  EXPECT_EQ(host->held().plans, 0);
}

TEST(WithoutLlvm, RolloutsAndGradientsHaveTheBitsOfTheReference) {
  const std::shared_ptr<Executor> reference = MakeReferenceExecutor();
  const std::shared_ptr<Executor> host = MakeHostExecutor({});
  int gradients = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const auto made = equality::MakeCase(seed);
    ASSERT_TRUE(made.ok()) << made.status();
    const auto expected = equality::Observe(reference, made->work);
    const auto actual = equality::Observe(host, made->work);
    ASSERT_TRUE(expected.ok() && actual.ok()) << actual.status();
    EXPECT_EQ(equality::FirstDifference(*expected, *actual), std::nullopt) << "seed " << seed;
    gradients += made->work.gradient.has_value() ? 1 : 0;
  }
  EXPECT_GT(gradients, 5);
}

}  // namespace
}  // namespace simgrad::sim
