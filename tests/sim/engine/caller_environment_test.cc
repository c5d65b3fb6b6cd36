// What the calling thread has done to its float environment changes no bit of a run.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "tests/precision/hostile_environment.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/work_maker.h"

#ifdef SIMGRAD_HOSTILE_ENVIRONMENT

namespace simgrad {
namespace {

using sim::InputKind;

// Balls without gravity, pressed into the floor by subnormal depths: flushing stops them, and
// rounding elsewhere moves them.
sim::Work Pressed(const std::string& preset, double depth) {
  constexpr int64_t kInstances = 40;
  precision::PolicySpec spec;
  spec.preset = preset;
  const auto world = sim::BuildWorld("bouncing_ball", {{"contact", "penalty"}});
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = tests::LowerForGradient(*world, tests::PolicyOf(spec), "final_height");
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = tests::WorkOf(*std::move(program), kInstances, 9);
  std::vector<double> y;
  for (int64_t i = 0; i < kInstances; ++i)
    y.push_back(-depth * (1.0 + 0.01 * static_cast<double>(i)));
  tests::Bind(work, InputKind::kState, "y", {tests::Doubles(y, {kInstances, 1}), true, false});
  tests::Bind(work, InputKind::kState, "v", tests::Shared({0.0}, {1}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({3.0}, {}));
  tests::Bind(work, InputKind::kParam, "g", tests::Shared({0.0}, {}));
  work.options.threads = 2;
  return work;
}

TEST(CallerEnvironment, FlushingAndRoundingOfTheCallerChangeNoBit) {
  const std::shared_ptr<sim::Executor> executors[] = {sim::MakeReferenceExecutor(),
                                                      sim::MakeCpuExecutor()};
  const std::pair<const char*, double> cases[] = {
      {"f64", 1e-310}, {"f32", 1e-39}, {"f16_safe", 2e-5}};
  for (const auto& executor : executors) {
    for (const auto& [preset, depth] : cases) {
      const sim::Engine engine(executor);
      sim::Observer nobody;
      const auto clean = engine.Execute(Pressed(preset, depth), nobody);
      ASSERT_TRUE(clean.ok()) << clean.status();
      ASSERT_NE(clean->final_states[0].Get(0), 0.0);
      sim::Work work = Pressed(preset, depth);
      volatile double subnormal = std::numeric_limits<double>::denorm_min();
      volatile double flushed = 1.0;
      auto hostile = [&] {
        const tests::HostileEnvironment environment;
        flushed = subnormal + subnormal;
        return engine.Execute(std::move(work), nobody);
      }();
      ASSERT_EQ(flushed, 0.0) << "the environment of this test does nothing";
      ASSERT_TRUE(hostile.ok()) << hostile.status();
      const std::string what = std::string(executor->name()) + ", " + preset;
      EXPECT_EQ(hostile->final_states, clean->final_states) << what;
      EXPECT_EQ(hostile->values, clean->values) << what;
      EXPECT_EQ(hostile->path_signatures, clean->path_signatures) << what;
      EXPECT_EQ(hostile->backward, clean->backward) << what;
      ASSERT_EQ(hostile->gradients.size(), clean->gradients.size());
      for (size_t i = 0; i < clean->gradients.size(); ++i) {
        EXPECT_EQ(hostile->gradients[i].gradient, clean->gradients[i].gradient) << what << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace simgrad

#endif
