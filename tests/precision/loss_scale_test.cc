#include "precision/loss_scale.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/source_tree.h"

namespace simgrad::precision {
namespace {

// The scale after each of `finite`.
std::vector<float> Trace(const LossScaleRule& rule, LossScale state,
                         const std::vector<bool>& finite) {
  std::vector<float> scales;
  for (const bool all_finite : finite) {
    state = NextLossScale(rule, state, all_finite);
    scales.push_back(state.scale);
  }
  return scales;
}

// PyTorch's unit test of its gradient scaler: scale 4, growth 2, backoff 0.25, interval 2.
TEST(LossScale, FollowsThePublishedTraceInBothModes) {
  for (const LossScaleMode mode : {LossScaleMode::kPytorch, LossScaleMode::kGuarded}) {
    const LossScaleRule rule{mode, 2.0, 0.25, 2};
    EXPECT_EQ(Trace(rule, {4.0f, 0}, {true, true, false}), (std::vector<float>{4, 8, 2}));
  }
}

// 100,000 updates that PyTorch made (tests/data/torch_scaler.py says what a line is).
TEST(LossScale, FollowsPytorchThroughRandomUpdates) {
  std::ifstream file(tests::TestData("torch_scaler.txt"));
  int64_t updates = 0, changes = 0;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    SCOPED_TRACE(line.substr(0, 80));
    std::istringstream words(line);
    // Streams do not read hexadecimal floats.
    std::string scale, growth, backoff, found, change;
    LossScaleRule rule{.mode = LossScaleMode::kPytorch};
    LossScale state;
    words >> scale >> growth >> backoff >> rule.interval >> state.clean >> found >> change;
    state.scale = std::strtof(scale.c_str(), nullptr);
    rule.growth = std::strtod(growth.c_str(), nullptr);
    rule.backoff = std::strtod(backoff.c_str(), nullptr);
    for (size_t index = 0; index < found.size(); ++index) {
      float expected = state.scale;
      const size_t colon = change.find(':');
      if (colon != std::string::npos && std::stoull(change) == index) {
        expected = std::strtof(change.c_str() + colon + 1, nullptr);
        words >> change;
        ++changes;
      }
      state = NextLossScale(rule, state, found[index] == '0');
      ASSERT_EQ(state.scale, expected) << "update " << index;
      ++updates;
    }
    ASSERT_EQ(std::to_string(state.clean), change);
  }
  EXPECT_EQ(updates, 100'000);
  EXPECT_GT(changes, 10'000);
}

TEST(LossScale, ASkipForgetsTheCleanSteps) {
  const LossScaleRule rule{LossScaleMode::kPytorch, 2.0, 0.5, 3};
  EXPECT_EQ(Trace(rule, {8.0f, 2}, {false, true, true, true}), (std::vector<float>{4, 4, 4, 8}));
  EXPECT_EQ(NextLossScale(rule, {8.0f, 1}, true).clean, 2);
  EXPECT_EQ(NextLossScale(rule, {8.0f, 2}, true).clean, 0);
  EXPECT_EQ(NextLossScale(rule, {8.0f, 2}, false).clean, 0);
}

// 65536 / 2^17 = 1/2: PyTorch's algorithm has no floor, the guarded mode stops at 1.
TEST(LossScale, SeventeenSkipsTakePytorchBelowOneAndGuardedToOne) {
  const std::vector<bool> skips(17, false);
  EXPECT_EQ(Trace({LossScaleMode::kPytorch}, {}, skips).back(), 0.5f);
  EXPECT_EQ(Trace({LossScaleMode::kGuarded}, {}, skips).back(), 1.0f);
}

TEST(LossScale, GrowthStopsWhereItWouldOverflow) {
  const LossScaleRule rule{LossScaleMode::kPytorch, 2.0, 0.5, 1};
  EXPECT_EQ(Trace(rule, {0x1p126f, 0}, {true, true}), (std::vector<float>{0x1p127f, 0x1p127f}));
}

TEST(LossScale, GuardedScalesArePowersOfTwo) {
  const LossScaleRule rule{LossScaleMode::kGuarded, 3.0, 0.3, 1};
  EXPECT_EQ(Trace(rule, {1000.0f, 0}, {true, true, false, false}),
            (std::vector<float>{2048, 4096, 1024, 256}));
}

TEST(LossScale, ACountOfCleanStepsAtItsEndGrows) {
  const LossScaleRule rule{LossScaleMode::kGuarded, 2.0, 0.5, INT64_MAX};
  const LossScale next = NextLossScale(rule, {1024.0f, INT64_MAX}, true);
  EXPECT_EQ(next.scale, 2048.0f);
  EXPECT_EQ(next.clean, 0);
}

TEST(LossScale, UnscalingByAPowerOfTwoIsExactDownToTheFormat) {
  EXPECT_EQ(InverseLossScale(65536.0f), 0x1p-16f);
  EXPECT_EQ(InverseLossScale(0x1p127f), 0x1p-127f);  // subnormal in f32, and kept
  EXPECT_EQ(InverseLossScale(3.0f), 1.0f / 3.0f);
  EXPECT_EQ(Unscale(Format::kF32, 0x1.658p-8, 0x1p-16f), 0x1.658p-24);
}

}  // namespace
}  // namespace simgrad::precision
