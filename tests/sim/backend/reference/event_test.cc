// Events: guards, changes, first steps, margins; against values computed by hand.
#include <cmath>

#include "precision/hash.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using tests::Outcome;
using tests::RunProgram;
using tests::Setting;

uint64_t EventHash(std::string_view site, uint64_t step, uint64_t element, bool value) {
  return precision::DecisionHash(precision::Fnv1a64(site), step, 0, element, value ? 1 : 0);
}

// x changes its sign every second step: x, y -> y, -x.
void Rotate(Builder& b, bool guarded) {
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  std::optional<Var> guard;
  if (guarded) {
    guard = b.Event("gate", y, Comparison::kGt, b.Literal(0.0));
  }
  b.Event("below", x, Comparison::kLt, b.Literal(0.0), guard);
  b.SetNext({y, -x});
}

TEST(Event, AddsItsHashOnlyWhereItChanges) {
  Setting setting;
  setting.steps = 6;
  setting.states = {{1.0}, {2.0}};  // x: 1, 2, -1, -2, 1, 2
  const Outcome outcome = RunProgram(setting, [](Builder& b) { Rotate(b, false); });
  const auto& steps = outcome.seen.diagnostics.events.at(0);
  std::vector<uint64_t> counts;
  std::vector<uint64_t> changes;
  for (const EventStep& step : steps) {
    counts.push_back(step.count);
    changes.push_back(step.changes);
    EXPECT_EQ(step.checks, 1u);
  }
  EXPECT_EQ(counts, (std::vector<uint64_t>{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(changes, (std::vector<uint64_t>{0, 0, 1, 0, 1, 0}));
  EXPECT_EQ(outcome.result.path_signatures[0],
            EventHash("below", 2, 0, true) + EventHash("below", 4, 0, false));
  EXPECT_EQ(outcome.result.first_event_steps[0][0], 2);
}

TEST(Event, IsFalseAndUncheckedWhereItsGuardIs) {
  Setting setting;
  setting.steps = 4;
  setting.states = {{1.0}, {2.0}};  // x: 1, 2, -1, -2;  y: 2, -1, -2, 1
  const Outcome outcome = RunProgram(setting, [](Builder& b) { Rotate(b, true); });
  const auto& below = outcome.seen.diagnostics.events.at(1);
  EXPECT_EQ(below[0].checks, 1u);
  EXPECT_EQ(below[1].checks, 0u);
  EXPECT_FALSE(below[1].margin.any);
  EXPECT_EQ(below[2].count, 0u);  // x < 0, but the gate is shut
  EXPECT_EQ(below[3].count, 1u);
  EXPECT_EQ(outcome.result.path_signatures[0],
            EventHash("gate", 0, 0, true) + EventHash("gate", 1, 0, false) +
                EventHash("gate", 3, 0, true) + EventHash("below", 3, 0, true));
}

TEST(Event, DecidesEveryElementByItself) {
  Setting setting;
  setting.states = {{1.0, -2.0, -0.5}};
  const Outcome outcome = RunProgram(setting, [](Builder& b) {
    const Var x = b.State("x", {3});
    b.Event("below", x, Comparison::kLt, b.Literal(0.0));
    b.SetNext({x});
  });
  EXPECT_EQ(outcome.seen.diagnostics.events[0][0].count, 2u);
  EXPECT_EQ(outcome.seen.diagnostics.events[0][0].margin.absolute, -0.5);
  EXPECT_EQ(outcome.result.path_signatures[0],
            EventHash("below", 0, 1, true) + EventHash("below", 0, 2, true));
}

TEST(Event, CountsMarginsAtSampledStepsOfProgramsWithALevel) {
  Setting setting;
  setting.steps = 5;
  setting.states = {{1.0}, {2.0}};  // x: 1, 2, -1, -2, 1;  y: 2, -1, -2, 1, 2
  setting.adjust = [](Work& work) { work.options.stride = 2; };
  const auto run = [&](TestLevel level) {
    return RunProgram(setting, [&](Builder& b) {
      b.program().level = level;
      Rotate(b, true);
    });
  };
  const StepDiagnostics seen = run(TestLevel::kDecisions).seen.diagnostics;
  ASSERT_EQ(seen.sampled_steps, (std::vector<int64_t>{1, 3, 4}));
  ASSERT_EQ(seen.event_margins.size(), 2u);
  // A power of two lies 2^52 ulps from 0.
  MarginHistogram one{};
  one[static_cast<size_t>(MarginBucket(0x1p52))] = 1;
  EXPECT_EQ(seen.event_margins[0], (std::vector<MarginHistogram>{one, one, one}));
  // At step 1 the gate is shut.
  EXPECT_EQ(seen.event_margins[1], (std::vector<MarginHistogram>{{}, one, one}));
  EXPECT_TRUE(run(TestLevel::kDeclared).seen.diagnostics.event_margins.empty());
}

TEST(Event, MeasuresItsMarginAtTheOperandsOfASubtraction) {
  Setting setting;
  setting.states = {{1024.0}, {1024.0 - 0x1p-42}};
  const Outcome outcome = RunProgram(setting, [](Builder& b) {
    const Var x = b.State("x", {});
    const Var y = b.State("y", {});
    b.Event("close", x - y, Comparison::kLt, b.Literal(0.0));
    b.SetNext({x, y});
  });
  const SmallestMargin& margin = outcome.seen.diagnostics.events[0][0].margin;
  EXPECT_EQ(margin.absolute, 0x1p-42);
  // The ulp of f64 at 1024 is 2^-42; at the difference itself it would be 2^-94.
  EXPECT_EQ(margin.ulps, 1.0);
}

TEST(Event, CountsNanMarginsApart) {
  Setting setting;
  setting.states = {{std::nan("")}};
  const Outcome outcome = RunProgram(setting, [](Builder& b) {
    const Var x = b.State("x", {});
    b.Event("below", x, Comparison::kLt, b.Literal(0.0));
    b.SetNext({x});
  });
  const EventStep& step = outcome.seen.diagnostics.events[0][0];
  EXPECT_EQ(step.checks, 1u);
  EXPECT_EQ(step.nan_margins, 1u);
  EXPECT_EQ(step.count, 0u);
  EXPECT_FALSE(step.margin.any);
}

}  // namespace
}  // namespace simgrad::sim
