// Compiled plans give the states, exports and values of the reference on random programs.
#include <bit>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sim/backend/compiled/compiled_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/plan/make_plan.h"
#include "sim/plan/print.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {
namespace {

constexpr uint64_t kCases = 400;

// Every step on its own, so that a failure names the first one that differs.
void ExpectSameForward(Run& expected, Run& actual, const Batch& batch, uint64_t seed) {
  const Program& program = batch.program->program;
  const auto compare = [&](int64_t t) {
    for (int32_t state : program.InputsOf(InputKind::kState)) {
      ASSERT_EQ(expected.State(state), actual.State(state))
          << "seed " << seed << ", step " << t << ", state "
          << program.inputs[static_cast<size_t>(state)].name;
    }
    for (size_t k = 0; k < program.exports.size(); ++k) {
      ASSERT_EQ(expected.Export(static_cast<int32_t>(k)), actual.Export(static_cast<int32_t>(k)))
          << "seed " << seed << ", step " << t << ", export " << program.exports[k].name;
    }
  };
  ASSERT_TRUE(expected.Start().ok());
  ASSERT_TRUE(actual.Start().ok());
  compare(0);
  for (int64_t t = 0; t < batch.steps && !::testing::Test::HasFatalFailure(); ++t) {
    ASSERT_TRUE(expected.Forward(t, 1).ok());
    ASSERT_TRUE(actual.Forward(t, 1).ok());
    compare(t + 1);
  }
  ASSERT_TRUE(expected.Finish().ok());
  ASSERT_TRUE(actual.Finish().ok());
  const std::vector<double> a = expected.Values();
  const std::vector<double> b = actual.Values();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint64_t>(a[i]), std::bit_cast<uint64_t>(b[i])) << "seed " << seed;
  }
}

void ExpectSame(uint64_t seed, compiled::Isa isa, compiled::Effort effort, int parts) {
  const auto made = MakeCase(seed);
  ASSERT_TRUE(made.ok()) << made.status().message();
  Batch batch = made->work.batch;
  auto numerical = std::make_shared<NumericalProgram>(*batch.program);
  numerical->policy.nonfinite = precision::NonFinite::kReport;
  batch.program = numerical;
  RunOptions options;
  options.recording = Recording::kNone;
  const auto expected = MakeReferenceExecutor()->Create(batch, options);
  const auto actual =
      compiled::MakeCompiledExecutor({.isa = isa, .effort = effort, .parts = parts})
          ->Create(batch, options);
  if (std::getenv("SIMGRAD_SEED") != nullptr) {
    std::cout << numerical->text << plan::Print(plan::MakePlan(*numerical, {}));
  }
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  ASSERT_TRUE(actual.ok()) << "seed " << seed << ": " << actual.status().message();
  ExpectSameForward(**expected, **actual, batch, seed);
}

TEST(CompiledEqualityTest, StatesExportsAndValuesAreThoseOfTheReference) {
  if (const char* seed = std::getenv("SIMGRAD_SEED")) {
    return ExpectSame(std::strtoull(seed, nullptr, 10), compiled::BestIsa(),
                      compiled::Effort::kBest, 1);
  }
  for (uint64_t seed = 0; seed < kCases && !HasFailure(); ++seed) {
    const compiled::Isa isa = static_cast<compiled::Isa>(
        seed % (static_cast<uint64_t>(compiled::BestIsa()) + 1));
    ExpectSame(seed, isa, seed % 2 == 0 ? compiled::Effort::kQuick : compiled::Effort::kBest,
               1 + static_cast<int>(seed % 3));
  }
}

}  // namespace
}  // namespace simgrad::sim::equality
