// Predicates of loops and cond, their decisions and gradients, against values computed by hand.
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

const TerminationStep& Site(const Outcome& outcome) {
  return outcome.seen.diagnostics.terminations.at(0).at(0);
}

// x <- x / 2 until x < tol, or the counter is at `count`, whichever comes first.
struct Halving {
  double x = 8.0;
  double tol = 1.0;
  int64_t count = 100;
  int64_t max_iter = 10;
  OpCode join = OpCode::kOr;
};

Outcome RunHalving(const Halving& halving) {
  Setting setting;
  setting.states = {{halving.x}};
  return RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {});
    WhileOptions options;
    options.site = "halving";
    options.max_iter = halving.max_iter;
    const LoopResult loop = b.While(
        options, {x, b.Integer(0)}, {},
        [&](const Vars& carried, const Vars&) {
          const Var small = b.Apply(OpCode::kLt, {carried[0], b.Literal(halving.tol)});
          const Var done = b.Apply(OpCode::kGe, {carried[1], b.Integer(halving.count)});
          return LoopPredicate{b.Apply(halving.join, {small, done}), {}};
        },
        [&](const Vars& carried, const Vars&, const Vars&) {
          return Vars{0.5 * carried[0], b.Apply(OpCode::kAdd, {carried[1], b.Integer(1)})};
        });
    b.SetNext({loop.carried[0]});
  });
}

void ExpectStop(const Outcome& outcome, uint32_t iterations, StopReason reason, uint64_t checks) {
  EXPECT_EQ(Site(outcome).iterations_min, iterations);
  EXPECT_EQ(Site(outcome).iterations_max, iterations);
  EXPECT_EQ(Site(outcome).reasons[static_cast<size_t>(reason)], 1u);
  EXPECT_EQ(Site(outcome).checks, checks);
  EXPECT_EQ(
      outcome.result.path_signatures[0],
      precision::DecisionHash(precision::Fnv1a64("halving"), 0, 0, 0,
                              precision::LoopOutcome(iterations, static_cast<uint64_t>(reason))));
}

TEST(Predicate, IsEndedByARealTest) {
  const Outcome outcome = RunHalving({});
  EXPECT_EQ(FinalState(outcome)[0], 0.5);  // 8, 4, 2, 1 are not below 1
  ExpectStop(outcome, 4, StopReason::kConverged, 5);
  EXPECT_EQ(Site(outcome).margin.absolute, 0.0);  // 1 against 1, the fourth test
  EXPECT_EQ(Site(outcome).tested_min, -0.5);      // 0.5 against 1
}

TEST(Predicate, IsEndedByItsCounter) {
  const Outcome outcome = RunHalving({.count = 2});
  EXPECT_EQ(FinalState(outcome)[0], 2.0);
  ExpectStop(outcome, 2, StopReason::kCounter, 3);
  EXPECT_EQ(Site(outcome).tested_max, kInf);
  EXPECT_EQ(Site(outcome).margin.absolute, 3.0);  // 4 against 1; 2 against 1 decides nothing
}

TEST(Predicate, OfZeroIterationsIsNotEnteredNever) {
  ExpectStop(RunHalving({.x = 0.25}), 0, StopReason::kConverged, 1);
  ExpectStop(RunHalving({.count = 0}), 0, StopReason::kCounter, 1);
}

TEST(Predicate, StopsAtItsCap) {
  ExpectStop(RunHalving({.max_iter = 3}), 3, StopReason::kMaxIter, 4);
  const Outcome outcome = RunHalving({.x = NAN, .max_iter = 3});
  ExpectStop(outcome, 3, StopReason::kNonFinite, 4);
  EXPECT_EQ(Site(outcome).nan_margins, 4u);
}

// Both must hold: the deciding test is the one that is further from holding.
TEST(Predicate, OfAConjunctionIsDecidedByTheSmallerMargin) {
  const Outcome outcome = RunHalving({.count = 3, .join = OpCode::kAnd});
  EXPECT_EQ(FinalState(outcome)[0], 0.5);
  ExpectStop(outcome, 4, StopReason::kConverged, 5);
  // At 8, 4 and 2 both are false and the counter is further away than anything; then 1 and 0.5.
  EXPECT_EQ(Site(outcome).margin.absolute, 0.0);
}

// The radius of what a loop carries is that of the test that it came from.
TEST(Predicate, SeesThroughACarriedBoolean) {
  Setting setting;
  setting.states = {{3.0}};
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {});
    WhileOptions options;
    options.site = "halving";
    options.max_iter = 10;
    const Var no = b.Event("never", x, Comparison::kLt, b.Literal(-100.0));
    const LoopResult loop = b.While(
        options, {x, no}, {},
        [&](const Vars& carried, const Vars&) {
          return LoopPredicate{carried[1], {}};
        },
        [&](const Vars& carried, const Vars&, const Vars&) {
          const Var next = 0.5 * carried[0];
          return Vars{next, b.Event("small", next, Comparison::kLt, b.Literal(1.0))};
        });
    b.SetNext({loop.carried[0]});
  });
  EXPECT_EQ(FinalState(outcome)[0], 0.75);
  const TerminationStep& step = Site(outcome);
  EXPECT_EQ(step.iterations_max, 2u);
  EXPECT_EQ(step.reasons[static_cast<size_t>(StopReason::kConverged)], 1u);
  EXPECT_EQ(step.margin.absolute, -0.25);  // 0.75 against 1
}

// max(x - 1, 0)^2 by regions; inside one of them an event.
TEST(Cond, TakesOneRegion) {
  for (const double x : {0.5, 3.0}) {
    Setting setting;
    setting.states = {{x}};
    const Outcome outcome = RunProgram(setting, [&](Builder& b) {
      const Var state = b.State("x", {});
      const Var high = b.Event("high", state, Comparison::kGt, b.Literal(1.0));
      const Vars y = b.Cond(high, {state},
                            {[&](const Vars&) { return Vars{b.Literal(0.0)}; },
                             [&](const Vars& args) {
                               const Var over = args[0] - b.Literal(1.0);
                               b.Event("far", over, Comparison::kGt, b.Literal(1.5));
                               return Vars{over * over};
                             }});
      b.SetNext({y[0]});
    });
    EXPECT_EQ(FinalState(outcome)[0], x > 1.0 ? (x - 1.0) * (x - 1.0) : 0.0);
    ASSERT_EQ(outcome.seen.diagnostics.events.size(), 2u);
    EXPECT_EQ(outcome.seen.diagnostics.events[1][0].checks, x > 1.0 ? 1u : 0u);
    EXPECT_TRUE(outcome.seen.diagnostics.terminations.empty());
  }
}

TEST(Cond, ClampsANumber) {
  for (const int64_t number : {-3, 0, 1, 2, 7}) {
    Setting setting;
    setting.states = {{1.0}};
    const Outcome outcome = RunProgram(setting, [&](Builder& b) {
      const Var x = b.State("x", {});
      const auto times = [&](double factor) {
        return [&b, x, factor](const Vars&) { return Vars{factor * x}; };
      };
      b.SetNext({b.Cond(b.Integer(number), {}, {times(10), times(20), times(30)})[0]});
    });
    const std::vector<double> expected = {10, 20, 30};
    EXPECT_EQ(FinalState(outcome)[0],
              expected[static_cast<size_t>(std::clamp<int64_t>(number, 0, 2))]);
  }
}

// Running totals from either end, of x and of nothing but the index.
TEST(Scan, TakesAndStacksElements) {
  for (const bool reverse : {false, true}) {
    Setting setting;
    setting.states = {{1.0, 2.0, 4.0}};
    const Outcome outcome = RunProgram(setting, [&](Builder& b) {
      const Var x = b.State("x", {3});
      const Vars made = b.Scan(3, {b.Literal(0.0)}, {x}, reverse,
                               [&](Var index, const Vars& carried, const Vars& scanned) {
                                 const Var sum = carried[0] + scanned[0];
                                 const Var number = b.Convert(index, ElementType::kReal);
                                 return Vars{sum, sum + 100.0 * number};
                               });
      b.SetNext({made[1]});
    });
    const std::vector<double> expected =
        reverse ? std::vector<double>{7, 106, 204} : std::vector<double>{1, 103, 207};
    EXPECT_EQ(FinalState(outcome), expected);
  }
}

// x < 1 twice, x > 0 as a guard, and a mask that is a number.
Outcome RunLevel(TestLevel level) {
  Setting setting;
  setting.states = {{0.5}};
  return RunProgram(setting, [&](Builder& b) {
    b.program().level = level;
    const Var x = b.State("x", {});
    const Var small = b.Apply(OpCode::kLt, {x, b.Literal(1.0)});
    const Var again = b.Apply(OpCode::kLt, {x, b.Literal(0.25)});
    const Var safe = Select(b.Apply(OpCode::kGt, {x, b.Literal(0.0)}), x, b.Literal(1.0));
    const Var mask = b.Convert(b.Apply(OpCode::kGe, {x, b.Literal(0.5)}), ElementType::kReal);
    b.SetNext({Select(And(small, Not(again)), safe, x) * mask});
  });
}

std::vector<std::string> Names(const Outcome& outcome) {
  std::vector<std::string> names;
  for (const sim::Site& site : outcome.program->sites)
    names.push_back(site.name + " " + std::string(TestKindName(site.test_kind)));
  return names;
}

TEST(Level, NamesComparisonsByTheirKind) {
  EXPECT_EQ(Names(RunLevel(TestLevel::kLoops)), std::vector<std::string>());
  EXPECT_EQ(Names(RunLevel(TestLevel::kDecisions)),
            (std::vector<std::string>{"lt event", "lt#1 event", "ge weight"}));
  EXPECT_EQ(Names(RunLevel(TestLevel::kAll)),
            (std::vector<std::string>{"lt event", "lt#1 event", "gt guard", "ge weight"}));
}

TEST(Level, CountsOccurrencesInTheSignature) {
  const Outcome outcome = RunLevel(TestLevel::kDecisions);
  const auto changed = [](uint64_t site) { return precision::DecisionHash(site, 0, 0, 0, 1); };
  // The second comparison does not hold, and so does not change.
  EXPECT_EQ(outcome.result.path_signatures[0],
            changed(precision::Fnv1a64("lt")) + changed(precision::Fnv1a64("ge")));
  EXPECT_EQ(HashOfSite("lt#1"), precision::SplitMix64(precision::Fnv1a64("lt") ^ 1));
  EXPECT_EQ(outcome.seen.diagnostics.events[1][0].margin.absolute, 0.25);  // 0.5 against 0.25
  EXPECT_EQ(FinalState(outcome)[0], 0.5);
  EXPECT_NE(outcome.program->text.find("\ntests decisions\n"), std::string::npos);
}

// A name of the author's own, at two comparisons, holds for a policy as one.
TEST(Level, LetsAPolicySpeakOfANamedComparison) {
  Setting setting;
  setting.states = {{0.5}};
  setting.policy.sites = {{"near", {.format = Format::kBf16}}};
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    b.program().level = TestLevel::kDecisions;
    const Var x = b.State("x", {});
    const RoleScope role(b, Role::kEvent);
    Vars truths;
    for (const double bound : {1.0, 2.0}) {
      truths.push_back(b.Apply(OpCode::kLt, {x, b.Literal(bound)}));
      b.program().step.ops.back().attributes.site = "near";
    }
    b.SetNext({Select(And(truths[0], truths[1]), x, 2.0 * x)});
  });
  EXPECT_EQ(Names(outcome), (std::vector<std::string>{"near event", "near#1 event"}));
  for (const char* bound : {"bf16[] = literal 0x1p+0", "bf16[] = literal 0x1p+1"}) {
    EXPECT_NE(outcome.program->text.find(bound), std::string::npos) << outcome.program->text;
  }
}

TEST(Accept, ChoosesTheTrialAtASite) {
  for (const double error : {0.5, 2.0}) {
    Setting setting;
    setting.states = {{error}};
    const Outcome outcome = RunProgram(setting, [&](Builder& b) {
      const Var x = b.State("x", {});
      b.SetNext({b.Accept("step", x, Comparison::kLe, b.Literal(1.0), 10.0 * x, x)});
    });
    EXPECT_EQ(FinalState(outcome)[0], error <= 1.0 ? 10.0 * error : error);
    EXPECT_EQ(outcome.seen.diagnostics.events.at(0).at(0).margin.absolute, error - 1.0);
    EXPECT_EQ(outcome.program->sites.at(0).test_kind, TestKind::kAcceptance);
  }
}

}  // namespace
}  // namespace simgrad::sim
