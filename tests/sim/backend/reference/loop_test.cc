// while and for, their decisions and what is counted of them, against values computed by hand.
#include <cmath>

#include "precision/hash.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using tests::FinalState;
using tests::Outcome;
using tests::RunProgram;
using tests::Setting;

constexpr double kInf = std::numeric_limits<double>::infinity();

uint64_t LoopHash(std::string_view site, uint64_t step, uint64_t outer, uint64_t element,
                  uint64_t iterations, StopReason reason) {
  return precision::DecisionHash(precision::Fnv1a64(site), step, outer, element,
                                 precision::LoopOutcome(iterations, static_cast<uint64_t>(reason)));
}

struct Halving {
  double x = 8.0;
  double factor = 0.5;
  double tol = 1.0;
  int64_t max_iter = 10;
  CapOrder cap_order = CapOrder::kTestFirst;
  std::optional<double> entry;
};

// x <- factor * x until x < tol; the state is x after the loop.
Outcome RunHalving(const Halving& halving) {
  Setting setting;
  setting.states = {{halving.x}};
  return RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {});
    WhileOptions options;
    options.site = "halving";
    options.max_iter = halving.max_iter;
    options.cap_order = halving.cap_order;
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& carried, const Vars&) {
          LoopTest test{carried[0], b.Literal(halving.tol), std::nullopt, {}};
          if (halving.entry) test.entry = b.Literal(*halving.entry);
          return test;
        },
        [&](const Vars& carried, const Vars&, const Vars&) {
          return Vars{halving.factor * carried[0]};
        });
    b.SetNext({loop.carried[0]});
  });
}

const TerminationStep& Site(const Outcome& outcome) {
  return outcome.seen.diagnostics.terminations.at(0).at(0);
}

void ExpectStop(const Outcome& outcome, uint32_t iterations, StopReason reason, uint64_t checks) {
  EXPECT_EQ(Site(outcome).iterations_min, iterations);
  EXPECT_EQ(Site(outcome).iterations_max, iterations);
  EXPECT_EQ(Site(outcome).reasons[static_cast<size_t>(reason)], 1u);
  EXPECT_EQ(Site(outcome).checks, checks);
  EXPECT_EQ(outcome.result.path_signatures[0], LoopHash("halving", 0, 0, 0, iterations, reason));
}

TEST(Loop, ConvergesWhenTheTestHolds) {
  const Outcome outcome = RunHalving({});
  EXPECT_EQ(FinalState(outcome)[0], 0.5);  // 8, 4, 2, 1 are not below 1
  ExpectStop(outcome, 4, StopReason::kConverged, 5);
  EXPECT_EQ(Site(outcome).tested_min, 0.5);
  EXPECT_EQ(Site(outcome).margin.absolute, 0.0);  // 1 against 1, the third test
  const auto& record = outcome.seen.sites[0][0];
  EXPECT_EQ(record.values[0], (std::vector<double>{8, 4, 2, 1, 0.5}));
}

TEST(Loop, TestsOnceMoreAtTheCapWhereTheTestComesFirst) {
  const Outcome outcome = RunHalving({.max_iter = 2});
  EXPECT_EQ(FinalState(outcome)[0], 2.0);
  ExpectStop(outcome, 2, StopReason::kMaxIter, 3);
}

TEST(Loop, DoesNotTestAgainAtTheCapWhereTheCapComesFirst) {
  const Outcome outcome = RunHalving({.max_iter = 2, .cap_order = CapOrder::kCapFirst});
  EXPECT_EQ(FinalState(outcome)[0], 2.0);
  ExpectStop(outcome, 2, StopReason::kMaxIter, 2);
  EXPECT_EQ(Site(outcome).tested_max, 4.0);
}

TEST(Loop, ConvergesAtTheCapOnlyWhereTheTestComesFirst) {
  ExpectStop(RunHalving({.x = 1.0, .max_iter = 1}), 1, StopReason::kConverged, 2);
  ExpectStop(RunHalving({.x = 1.0, .max_iter = 1, .cap_order = CapOrder::kCapFirst}), 1,
             StopReason::kMaxIter, 1);
}

TEST(Loop, ReportsNonFiniteWhenTheLastTestedValueIs) {
  const Outcome outcome = RunHalving({.x = 0x1p1023, .factor = 2.0, .max_iter = 3});
  ExpectStop(outcome, 3, StopReason::kNonFinite, 4);
  EXPECT_FALSE(outcome.result.health[0].ok);
}

TEST(Loop, NanNeverConverges) {
  const Outcome outcome = RunHalving({.x = std::nan(""), .max_iter = 3});
  ExpectStop(outcome, 3, StopReason::kNonFinite, 4);
  EXPECT_EQ(Site(outcome).nan_margins, 4u);
  EXPECT_EQ(Site(outcome).tested_min, kInf);  // NaN is left out
}

TEST(Loop, IsNotEnteredBelowItsEntryThreshold) {
  const Outcome outcome = RunHalving({.x = 1.5, .entry = 2.0});
  EXPECT_EQ(FinalState(outcome)[0], 1.5);
  ExpectStop(outcome, 0, StopReason::kNotEntered, 1);
  EXPECT_EQ(Site(outcome).tested_min, 1.5);
  EXPECT_EQ(Site(outcome).margin.absolute, -0.5);  // against the threshold
  EXPECT_EQ(outcome.seen.sites[0][0].values[0], (std::vector<double>{1.5}));
}

TEST(Loop, TheEntryTestHasAMarginAndCanBeNear) {
  // One ulp below the threshold and exactly at it; the test that ends a run is far from both.
  const Outcome below = RunHalving({.x = 2.0 - 0x1p-52, .entry = 2.0});
  EXPECT_EQ(Site(below).near_stopped, 1u);
  EXPECT_EQ(Site(below).near_continued, 0u);
  EXPECT_EQ(Site(below).margin.absolute, -0x1p-52);
  EXPECT_EQ(
      Site(below).histogram[static_cast<size_t>(MarginBucket(std::abs(Site(below).margin.ulps)))],
      1u);
  const Outcome at = RunHalving({.x = 2.0, .entry = 2.0});
  EXPECT_EQ(Site(at).near_stopped, 0u);
  EXPECT_EQ(Site(at).near_continued, 2u);  // 2 against 2, entered; 1 against 1, not below
  const Outcome nan = RunHalving({.x = std::nan(""), .max_iter = 3, .entry = 2.0});
  ExpectStop(nan, 0, StopReason::kNotEntered, 1);
  EXPECT_EQ(Site(nan).nan_margins, 1u);
}

TEST(Loop, IsEnteredAtItsEntryThreshold) {
  const Outcome outcome = RunHalving({.x = 2.0, .entry = 2.0});
  ExpectStop(outcome, 2, StopReason::kConverged, 4);  // 2 is tested twice, and listed once
  EXPECT_EQ(outcome.seen.sites[0][0].values[0], (std::vector<double>{2, 1, 0.5}));
}

TEST(Loop, CountsMarginsInsideTheNearBand) {
  // Tests 1 + 2^-51 (2 ulps above 1, continued) and half of it (far below, stopped).
  const Outcome outcome = RunHalving({.x = 1.0 + 0x1p-51});
  EXPECT_EQ(Site(outcome).near_continued, 1u);
  EXPECT_EQ(Site(outcome).near_stopped, 0u);
  EXPECT_EQ(Site(outcome).margin.ulps, 2.0);
}

// Per element: each element is halved until it is below its own scalar test.
TEST(Loop, StopsEachElementAloneWhereItIsMapped) {
  Setting setting;
  setting.states = {{8.0, 0.25, 2.0}, {0.5, 0.5, 0.25}};
  const Outcome outcome = RunProgram(setting, [](Builder& b) {
    const Var x = b.State("x", {3});
    const Var factor = b.State("factor", {3});
    WhileOptions options;
    options.site = "each";
    options.max_iter = 10;
    options.elements = 3;
    const LoopResult loop = b.While(
        options, {x}, {factor},
        [&](const Vars& carried, const Vars&) {
          return LoopTest{carried[0], b.Literal(1.0), std::nullopt, {carried[0] + carried[0]}};
        },
        [](const Vars& carried, const Vars&, const Vars& mapped) {
          return Vars{mapped[0] * carried[0]};
        });
    b.SetNext({loop.carried[0], loop.exports[0]});
  });
  EXPECT_EQ(FinalState(outcome, 0), (std::vector<double>{0.5, 0.25, 0.5}));
  EXPECT_EQ(FinalState(outcome, 1), (std::vector<double>{1.0, 0.5, 1.0}));
  EXPECT_EQ(outcome.result.path_signatures[0],
            LoopHash("each", 0, 0, 0, 4, StopReason::kConverged) +
                LoopHash("each", 0, 0, 1, 0, StopReason::kConverged) +
                LoopHash("each", 0, 0, 2, 1, StopReason::kConverged));
  EXPECT_EQ(Site(outcome).runs, 3u);
  EXPECT_EQ(Site(outcome).iterations_sum, 5u);
  EXPECT_EQ(Site(outcome).iterations_min, 0u);
  std::array<uint32_t, kIterationBuckets> histogram{};
  for (uint64_t iterations : {4u, 0u, 1u}) ++histogram[IterationBucket(iterations)];
  EXPECT_EQ(Site(outcome).iterations, histogram);
  EXPECT_EQ(outcome.seen.sites[0][0].iterations[0], 5u);
  EXPECT_EQ(outcome.seen.sites[0][0].values[0],
            (std::vector<double>{8, 4, 2, 1, 0.5, 0.25, 2, 0.5}));
}

TEST(Loop, ForRunsItsCountWithAnAscendingIndex) {
  Setting setting;
  setting.states = {{0.0}};
  const Outcome outcome = RunProgram(setting, [](Builder& b) {
    const Var x = b.State("x", {});
    // Horner: x = 10 x + i reads the indices off as digits.
    const Vars out = b.For(4, {x}, [&](Var index, const Vars& carried) {
      return Vars{10.0 * carried[0] + b.Convert(index, ElementType::kReal)};
    });
    b.SetNext({out[0]});
  });
  EXPECT_EQ(FinalState(outcome)[0], 123.0);
}

TEST(Loop, ForOfNoTripsPassesItsOperandsThrough) {
  Setting setting;
  setting.states = {{5.0}};
  const Outcome outcome = RunProgram(setting, [](Builder& b) {
    const Var x = b.State("x", {});
    b.SetNext({b.For(0, {x}, [](Var, const Vars& carried) { return Vars{2.0 * carried[0]}; })[0]});
  });
  EXPECT_EQ(FinalState(outcome)[0], 5.0);
}

// An inner while inside a while inside a for: x is doubled in `outer` until it is at least 3, after
// `inner` has halved it below 1.
TEST(Loop, NumbersOuterIterationsInMixedRadix) {
  Setting setting;
  setting.states = {{1.0}, {0.0}};
  const Outcome outcome = RunProgram(setting, [](Builder& b) {
    const Var x = b.State("x", {});
    const Var n = b.State("n", {});
    const Vars out = b.For(2, {x, n}, [&](Var, const Vars& trip) {
      WhileOptions outer;
      outer.site = "outer";
      outer.max_iter = 5;
      outer.comparison = Comparison::kGe;
      const LoopResult result = b.While(
          outer, {trip[0], trip[1]}, {},
          [&](const Vars& carried, const Vars&) {
            return LoopTest{carried[1], b.Literal(2.0), std::nullopt, {}};
          },
          [&](const Vars& carried, const Vars&, const Vars&) {
            WhileOptions inner;
            inner.site = "inner";
            inner.max_iter = 7;
            const LoopResult halved = b.While(
                inner, {carried[0]}, {},
                [&](const Vars& y, const Vars&) {
                  return LoopTest{y[0], b.Literal(1.0), std::nullopt, {}};
                },
                [](const Vars& y, const Vars&, const Vars&) { return Vars{0.5 * y[0]}; });
            return Vars{4.0 * halved.carried[0], carried[1] + b.Literal(1.0)};
          });
      return Vars{result.carried[0], b.Literal(0.0) * result.carried[1]};
    });
    b.SetNext(out);
  });
  // x: 1 -> 0.5 (1 iteration) -> 2 -> 0.5 (2) -> 2, and again 2 -> 0.5 (2) -> 2 -> 0.5 (2) -> 2.
  EXPECT_EQ(FinalState(outcome)[0], 2.0);
  constexpr StopReason kHeld = StopReason::kConverged;
  // j of `outer` is the trip; of `inner` trip * (5 + 1) + outer iteration.
  EXPECT_EQ(outcome.result.path_signatures[0],
            LoopHash("outer", 0, 0, 0, 2, kHeld) + LoopHash("outer", 0, 1, 0, 2, kHeld) +
                LoopHash("inner", 0, 0, 0, 1, kHeld) + LoopHash("inner", 0, 1, 0, 2, kHeld) +
                LoopHash("inner", 0, 6, 0, 2, kHeld) + LoopHash("inner", 0, 7, 0, 2, kHeld));
}

}  // namespace
}  // namespace simgrad::sim
