// The test that decided a predicate is told by its name, with its own margin.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/program/builder.h"
#include "tests/sim/decisions/executors.h"
#include "tests/sim/decisions/f32_program.h"
#include "tests/sim/equality/random.h"
#include "tests/sim/seen_run.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using equality::Random;
using tests::Bind;
using tests::RunSeen;

constexpr double kUlp = 0x1p-23;  // of f32 around 1

Var Formula(Builder& b, Random& random, Vars tests) {
  static const std::vector<OpCode> kJoins = {OpCode::kAnd, OpCode::kOr};
  while (tests.size() > 1) {
    const Var last = tests.back();
    tests.pop_back();
    tests[0] = b.Apply(random.Pick(kJoins), {random.Chance(0.3) ? Not(last) : last, tests[0]});
  }
  return tests[0];
}

// A loop of one turn at most over the state `x`, of which `write` makes the predicate.
using Write = std::function<Var(Builder&, Var)>;
std::shared_ptr<const NumericalProgram> PredicateOf(const Shape& shape, const Write& write,
                                                    TestLevel level) {
  Builder b("predicate");
  b.program().level = level;
  const Var x = b.State("x", shape);
  const WhileOptions options{.site = "loop", .max_iter = 1, .cap_order = CapOrder::kCapFirst};
  b.While(
      options, {x}, {},
      [&](const Vars& now, const Vars&) {
        return LoopPredicate{write(b, now[0]), {}};
      },
      [](const Vars& now, const Vars&, const Vars&) { return now; });
  b.SetNext({x});
  return tests::InF32(b);
}

// x_k < 1, by name, for each of n numbers, joined by a formula.
std::shared_ptr<const NumericalProgram> ProgramOf(Random random, int64_t n, TestLevel level) {
  const auto write = [&](Builder& b, Var x) {
    Vars tests;
    for (int64_t k = 0; k < n; ++k) {
      SiteScope scope(b, absl::StrCat("test_", k));
      const Var one = b.Reshape(b.Slice(x, {k}, {1}), {});
      tests.push_back(b.Apply(OpCode::kLt, {one, b.Literal(1.0)}));
    }
    return Formula(b, random, tests);
  };
  return PredicateOf({n}, write, level);
}

SmallestMargin MarginOn(const std::shared_ptr<Executor>& executor,
                        const std::shared_ptr<const NumericalProgram>& program,
                        const std::vector<std::vector<double>>& x) {
  const int64_t n = static_cast<int64_t>(x[0].size());
  const int64_t instances = static_cast<int64_t>(x.size());
  Work work = tests::WorkOf(*program, instances, 1);
  std::vector<double> numbers;
  for (const auto& row : x) numbers.insert(numbers.end(), row.begin(), row.end());
  Bind(work, InputKind::kState, "x", {tests::Doubles(numbers, {instances, n}), true, false});
  return RunSeen(executor, std::move(work)).diagnostics.terminations.at(0).at(0).margin;
}

std::string NameOf(const NumericalProgram& program, uint32_t number) {
  return number == 0 ? "" : program.deciding_tests.at(number - 1);
}

TEST(DecidingTest, IsTheOneWhoseMarginIsThatOfTheFormula) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    const int64_t n = random.Integer(1, 5);
    const TestLevel level = seed % 2 == 0 ? TestLevel::kDecisions : TestLevel::kLoops;
    const auto program = ProgramOf(random, n, level);
    // No two are as far from 1.
    std::vector<std::vector<double>> x(3);
    for (size_t row = 0; row < x.size(); ++row) {
      for (int64_t k = 0; k < n; ++k) {
        const double distance = static_cast<double>(1 + 16 * k) + 3.0 * static_cast<double>(row);
        x[row].push_back(1.0 + (random.Chance(0.5) ? 2.0 : -2.0) * distance * kUlp);
      }
    }
    SmallestMargin told;
    for (const auto& executor : TestedExecutors()) {
      const SmallestMargin margin = MarginOn(executor, program, x);
      const std::vector<double>& row = x[static_cast<size_t>(margin.ulps_instance)];
      std::string expected;
      for (int64_t k = 0; k < n; ++k) {
        const double own = row[static_cast<size_t>(k)] - 1.0;
        const double ulps = own / kUlp;
        if (ulps == margin.ulps) expected = absl::StrCat("test_", k);
      }
      EXPECT_EQ(NameOf(*program, margin.test), expected) << seed << " " << executor->name();
      EXPECT_NE(expected, "") << seed << " " << executor->name();
      EXPECT_TRUE(!told.any || margin == told) << seed;
      told = margin;
    }
  }
}

TEST(DecidingTest, IsTheSameAloneAndAmongEqualInstances) {
  Random random(4);
  const auto program = ProgramOf(random, 3, TestLevel::kDecisions);
  const std::vector<double> x(3, 1.0 - 2.0 * kUlp);
  for (const auto& executor : TestedExecutors()) {
    const SmallestMargin margin = MarginOn(executor, program, {x, x, x, x, x});
    EXPECT_EQ(margin.ulps_instance, 0u);
    EXPECT_TRUE(MarginOn(executor, program, {x}) == margin);
    EXPECT_NE(margin.test, 0u);
  }
}

// One evaluation of a loop's predicate, which `write` makes of x, in f32.
struct Told {
  TerminationStep step;
  std::string test;
  double ulps() const { return step.margin.ulps; }
  uint64_t Stopped(StopReason why) const { return step.reasons[static_cast<size_t>(why)]; }
};

Told ToldOf(const Shape& shape, const std::vector<double>& x, const Write& write,
            TestLevel level = TestLevel::kDecisions) {
  const auto shared = PredicateOf(shape, write, level);
  std::optional<Told> told;
  for (const auto& executor : TestedExecutors()) {
    Work work = tests::WorkOf(*shared, 1, 1);
    Shape all = shape;
    all.insert(all.begin(), 1);
    Bind(work, InputKind::kState, "x", {tests::Doubles(x, all), true, false});
    const TerminationStep step =
        RunSeen(executor, std::move(work)).diagnostics.terminations.at(0).at(0);
    EXPECT_TRUE(!told || step == told->step) << executor->name();
    told = {step, NameOf(*shared, step.margin.test)};
  }
  return *told;
}

Var AllEqual(Builder& b, Var x, const std::vector<double>& y) {
  const Shape shape = {static_cast<int64_t>(y.size())};
  return b.Reduce(OpCode::kAll, b.Apply(OpCode::kEq, {x, b.IntegerArray(y, shape)}));
}

TEST(DecidingTest, AnElementOfAnOrderHangsOnTheClosestPairOfAll) {
  // 1 and 1 + 2 ulps are neighbours; 100 is far from both, and first.
  const auto first_is_100 = [](Builder& b, Var x) {
    const Var order = b.Do(OpCode::kArgsort, {x}, {.axes = {0}});
    return b.Apply(OpCode::kEq, {b.Reshape(b.Slice(order, {2}, {1}), {}), b.Integer(0)});
  };
  const Told told = ToldOf({3}, {100, 1 + 2 * kUlp, 1}, first_is_100);
  EXPECT_EQ(std::abs(told.ulps()), 2);
  EXPECT_EQ(told.test, "loop#1");  // computed for the loop
}

TEST(DecidingTest, APivotHangsOnThoseOfTheColumnsBefore) {
  const auto write = [](Builder& b, Var x) {
    return AllEqual(b, b.Do(OpCode::kLuPermutation, {x}), {0, 1, 2});
  };
  const Told told = ToldOf({3, 3}, {1 + 2 * kUlp, 0, 0, 1, 1, 0, 0, 0, 5}, write);
  EXPECT_EQ(std::abs(told.ulps()), 2);
  EXPECT_EQ(told.test, "loop#1");
}

TEST(DecidingTest, AnOrderHangsOnTheRealsThatItsIntegerKeysAreMadeOf) {
  const auto write = [](Builder& b, Var x) {
    const Var key = b.Convert(x, ElementType::kI32);
    return AllEqual(b, b.Do(OpCode::kArgsort, {key, x}, {.axes = {0}}), {0, 1, 2});
  };
  // The first is half an ulp of 1 below 1; pairs are told apart by their keys.
  const Told told = ToldOf({3}, {1 - kUlp / 2, 1.5, 2.5}, write);
  EXPECT_EQ(told.Stopped(StopReason::kCounter), 0u);
  EXPECT_EQ(told.Stopped(StopReason::kConverged), 1u);
  EXPECT_EQ(std::abs(told.ulps()), 0.5);
  EXPECT_EQ(told.test, "loop#1");  // that of the conversion; of the order: loop#2
}

TEST(DecidingTest, ATestOfNanIsCountedBehindAnIntegerAndInAnAny) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto any = [](Builder& b, Var x) {
    return b.Reduce(OpCode::kAny, b.Apply(OpCode::kLt, {x, b.Literal(1, {2})}));
  };
  const Told of_any = ToldOf({2}, {nan, nan}, any);
  EXPECT_EQ(of_any.step.nan_margins, of_any.step.checks);
  EXPECT_EQ(of_any.Stopped(StopReason::kNonFinite), 1u);
  const auto either = [](Builder& b, Var x) {
    const Var never = b.Apply(OpCode::kEq, {b.StepIndex(), b.Integer(7)});
    return b.Apply(OpCode::kOr, {never, b.Apply(OpCode::kLt, {x, b.Literal(1)})});
  };
  const Told of_or = ToldOf({}, {nan}, either);
  EXPECT_EQ(of_or.step.nan_margins, of_or.step.checks);
  EXPECT_EQ(of_or.Stopped(StopReason::kNonFinite), 1u);
}

TEST(DecidingTest, WhatHoldsOfIntegersAloneNeedsNoTestBesideIt) {
  const auto write = [](Builder& b, Var x) {
    const Var always = b.Apply(OpCode::kEq, {b.StepIndex(), b.Integer(0)});
    return b.Apply(OpCode::kOr, {b.Apply(OpCode::kGt, {x, b.Literal(1)}), always});
  };
  // Both margins are infinite.
  const Told told = ToldOf({}, {std::numeric_limits<double>::infinity()}, write);
  EXPECT_EQ(told.Stopped(StopReason::kCounter), 1u);
}

TEST(DecidingTest, OfEqualMarginsTheFirstInTextIsNamedWhicheverOperandItIs) {
  for (const TestLevel level : {TestLevel::kDecisions, TestLevel::kDeclared}) {
    const auto write = [](Builder& b, Var x) {
      Vars tests;
      for (const char* name : {"one", "two"}) {
        SiteScope scope(b, name);
        tests.push_back(b.Apply(OpCode::kLt, {x, b.Literal(1.0)}));
      }
      return b.Apply(OpCode::kAnd, {tests[1], tests[0]});
    };
    const Told told = ToldOf({}, {1 - kUlp}, write, level);
    EXPECT_EQ(told.test, "one");
    // An ulp of 1, the larger of the two; 1 - kUlp is two ulps of its own below.
    EXPECT_EQ(told.ulps(), -1);
  }
}

TEST(DecidingTest, IsFiniteIsAsFarAsTheBoundOfItsFormat) {
  const auto write = [](Builder& b, Var x) { return Not(b.Do(OpCode::kIsFinite, {x})); };
  const double most = 0x1.fffffep127;
  const Told told = ToldOf({}, {0x1.fffffap127}, write);
  EXPECT_EQ(told.ulps(), -2);
  EXPECT_EQ(told.step.margin.absolute, 0x1.fffffap127 - most);
  EXPECT_EQ(ToldOf({}, {-most}, write).ulps(), 0);
  EXPECT_EQ(ToldOf({}, {-std::numeric_limits<double>::infinity()}, write).ulps(),
            std::numeric_limits<double>::infinity());
  const Told of_nan = ToldOf({}, {std::numeric_limits<double>::quiet_NaN()}, write);
  EXPECT_EQ(of_nan.ulps(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(of_nan.step.nan_margins, 0u);
  // It is no test that is NaN: the loop ends at its cap as with any number.
  const auto never = [](Builder& b, Var x) { return b.Do(OpCode::kIsFinite, {x}); };
  const Told capped = ToldOf({}, {std::numeric_limits<double>::quiet_NaN()}, never);
  EXPECT_EQ(capped.Stopped(StopReason::kMaxIter), 1u);
}

}  // namespace
}  // namespace simgrad::sim
