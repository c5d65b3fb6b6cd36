// Additions that do nothing: which are counted, and where.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/additions.h"
#include "sim/program/builder.h"
#include "tests/sim/decisions/executors.h"
#include "tests/sim/seen_run.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using tests::Bind;

using Write = std::function<Var(Builder& b, Var x, Var y)>;

// What x becomes; y stays.
NumericalProgram Lowered(const Write& next, const precision::PolicySpec& policy,
                         const Shape& shape) {
  Builder b("additions");
  const Var x = b.State("x", shape);
  const Var y = b.State("y", shape);
  b.SetNext({next(b, x, y), y});
  auto lowered = Lower(*b.Finish(), tests::PolicyOf(policy), "", std::nullopt);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return *std::move(lowered);
}

struct Run {
  int64_t instances = 1;
  int64_t steps = 1;
  int32_t stride = 32;
  int64_t chunk = 0;
  int threads = 1;
  Recording recording = Recording::kSummary;
};

std::vector<AdditionCounts> Counted(const std::shared_ptr<Executor>& executor,
                                    const NumericalProgram& program, std::vector<double> x,
                                    std::vector<double> y, const Run& run) {
  Work work = tests::WorkOf(program, run.instances, run.steps);
  work.options.recording = run.recording;
  work.options.stride = run.stride;
  work.options.threads = run.threads;
  work.chunk_steps = run.chunk;
  const Shape& shape = program.program[program.program.inputs[0].value].type.shape;
  Bind(work, InputKind::kState, "x", tests::Shared(x, shape));
  Bind(work, InputKind::kState, "y", tests::Shared(y, shape));
  tests::JoinedDiagnostics joined;
  const auto result = Engine(executor).Execute(std::move(work), joined);
  EXPECT_TRUE(result.ok()) << result.status();
  return joined.diagnostics.additions;
}

struct Case {
  std::string name;
  Write next;
  double x, y;
  std::vector<std::pair<uint64_t, uint64_t>> counts;  // by site: additions, absorbed
};

// In bf16, whose numbers from 4 on are 1/32 apart.
std::vector<Case> Cases() {
  const auto add = [](Builder&, Var x, Var y) { return x + y; };
  return {
      {"x + y, too small", add, 4.0, 0.01, {{1, 1}}},
      {"x + y, large enough", add, 4.0, 0.02, {{1, 0}}},
      {"x + y, the first is lost", add, 0.01, 4.0, {{1, 1}}},
      {"x + 0", add, 4.0, 0.0, {{0, 0}}},
      {"0 + y", add, 0.0, 0.01, {{0, 0}}},
      {"inf + y", add, std::numeric_limits<double>::infinity(), 1.0, {{0, 0}}},
      {"x - y, too small", [](Builder&, Var x, Var y) { return x - y; }, 4.0, 0.005, {{1, 1}}},
      {"x - y that is y", [](Builder&, Var x, Var y) { return x - y; }, 4.0, 2.0, {{1, 0}}},
      {"y - x, y is lost", [](Builder&, Var x, Var y) { return y - x; }, 4.0, 0.005, {{1, 1}}},
      {"fma, the product is lost",
       [](Builder& b, Var x, Var y) {
         return b.Apply(OpCode::kFma, {y, y, x});
       },
       4.0,
       0.1,
       {{1, 1}}},
      {"fma, the addend is lost",
       [](Builder& b, Var x, Var y) {
         return b.Apply(OpCode::kFma, {x, x, y});
       },
       4.0,
       0.01,
       {{1, 1}}},
      {"fma that moves",
       [](Builder& b, Var x, Var y) {
         return b.Apply(OpCode::kFma, {y, y, x});
       },
       4.0,
       0.5,
       {{1, 0}}},
      {"fma of a product that is zero",
       [](Builder& b, Var x, Var y) {
         return b.Apply(OpCode::kFma, {y, b.Literal(0.0), x});
       },
       4.0,
       0.5,
       {{0, 0}}},
      {"behind select, min, max and stop_gradient",
       [](Builder& b, Var x, Var y) {
         const Var sum = b.Apply(OpCode::kMax, {b.Apply(OpCode::kMin, {x + y, b.Literal(9.0)}), y});
         const Var chosen = Select(b.Event("greater", x, Comparison::kGt, y), sum, x - y);
         return b.Apply(OpCode::kStopGradient, {chosen});
       },
       4.0,
       0.005,
       {{1, 1}, {1, 1}}},
      {"behind a product nothing is looked for",
       [](Builder&, Var x, Var y) { return (x + y) * y; },
       4.0,
       0.01,
       {}},
      {"behind a sum the last addition counts",
       [](Builder&, Var x, Var y) { return (x + y) + x; },
       4.0,
       0.01,
       {{1, 0}}},
      {"in a loop of three",
       [](Builder& b, Var x, Var y) {
         return b.For(3, {x}, [&](Var, const Vars& c) { return Vars{c[0] + y}; })[0];
       },
       4.0,
       0.01,
       {{3, 3}}},
      {"in the branch that is taken",
       [](Builder& b, Var x, Var y) {
         const Var is_greater = b.Event("greater", x, Comparison::kGt, y);
         return b.Cond(is_greater, {x},
                       {[&](const Vars& c) { return Vars{c[0] - y}; },
                        [&](const Vars& c) { return Vars{c[0] + y}; }})[0];
       },
       4.0,
       0.01,
       {{0, 0}, {1, 1}}},
      {"beside a halt",
       [](Builder& b, Var x, Var y) {
         b.Halt("far", b.Event("far", x, Comparison::kGt, b.Literal(100.0)));
         return x + y;
       },
       4.0,
       0.01,
       {{1, 1}}},
      {"beside a halt that has come",
       [](Builder& b, Var x, Var y) {
         b.Halt("far", b.Event("far", x, Comparison::kGt, b.Literal(1.0)));
         return x + y;
       },
       4.0,
       0.01,
       {{1, 1}}},
      {"a while converges",
       [](Builder& b, Var x, Var y) {
         return b
             .While(
                 {.site = "loop", .max_iter = 3}, {x}, {},
                 [&](const Vars& c, const Vars&) {
                   return LoopTest{c[0], b.Literal(1.0), std::nullopt, {}};
                 },
                 [&](const Vars& c, const Vars&, const Vars&) { return Vars{c[0] + y}; })
             .carried[0];
       },
       4.0,
       0.01,
       {}},
  };
}

TEST(Absorption, CountsWhatTheDefinitionSays) {
  for (const auto& executor : TestedExecutors()) {
    for (const Case& each : Cases()) {
      const NumericalProgram program = Lowered(each.next, {.preset = "bf16_unsafe"}, {});
      const auto counts = Counted(executor, program, {each.x}, {each.y}, {});
      ASSERT_EQ(counts.size(), each.counts.size()) << each.name;
      for (size_t site = 0; site < counts.size(); ++site) {
        EXPECT_EQ(counts[site].additions, each.counts[site].first)
            << executor->name() << ": " << each.name << ", site " << site;
        EXPECT_EQ(counts[site].absorbed, each.counts[site].second)
            << executor->name() << ": " << each.name << ", site " << site;
      }
    }
  }
}

TEST(Absorption, TheSumIsTakenAsItIsStored) {
  const Write add = [](Builder&, Var x, Var y) { return x + y; };
  for (const auto& executor : TestedExecutors()) {
    const auto share = [&](const precision::PolicySpec& policy) {
      const auto counts = Counted(executor, Lowered(add, policy, {}), {4.0}, {0.01}, {});
      EXPECT_EQ(counts.at(0).additions, 1u);
      EXPECT_EQ(counts.at(0).role, Role::kDynamics);
      return counts.at(0).absorbed;
    };
    EXPECT_EQ(share({.preset = "f32"}), 0u);
    precision::PolicySpec narrow_state{.preset = "f32"};
    narrow_state.roles.push_back({"state", {.format = Format::kBf16}});
    EXPECT_EQ(share(narrow_state), 1u);  // 4.01 in f32 is stored as 4
    precision::PolicySpec narrow_sum{.preset = "f64"};
    narrow_sum.roles.push_back({"dynamics", {.format = Format::kBf16}});
    EXPECT_EQ(share(narrow_sum), 1u);
  }
}

// Arrays through operations of shape: elements count one by one.
TEST(Absorption, CountsElementsBehindOperationsOfShape) {
  const Write next = [](Builder& b, Var x, Var y) {
    const Var lower = b.Slice(x, {0}, {2}) + b.Slice(y, {0}, {2});
    const Var upper = b.Slice(x, {2}, {3}) - b.Slice(y, {2}, {3});
    return b.Reshape(b.Reshape(b.Concat({lower, upper}, 0), {5, 1}), {5});
  };
  const NumericalProgram program = Lowered(next, {.preset = "bf16_unsafe"}, {5});
  for (const auto& executor : TestedExecutors()) {
    const auto counts = Counted(executor, program, {4.0, 4.0, 4.0, 4.0, 0.0},
                                {0.01, 1.0, 0.005, 0.005, 0.005}, {.instances = 3});
    ASSERT_EQ(counts.size(), 2u);
    EXPECT_EQ(counts[0].additions, 6u) << executor->name();
    EXPECT_EQ(counts[0].absorbed, 3u) << executor->name();
    EXPECT_EQ(counts[1].additions, 6u) << executor->name();  // 0 - y is none
    EXPECT_EQ(counts[1].absorbed, 6u) << executor->name();
  }
}

// A sum that is the same for all elements is computed once.
TEST(Absorption, CountsASplatForEachElement) {
  const Write next = [](Builder& b, Var, Var) {
    return b.Literal(4.0, {7}) + b.Literal(0.01, {7});
  };
  const NumericalProgram program = Lowered(next, {.preset = "bf16_unsafe"}, {7});
  for (const auto& executor : TestedExecutors()) {
    const auto counts =
        Counted(executor, program, std::vector<double>(7, 0.0), std::vector<double>(7, 0.0), {});
    ASSERT_EQ(counts.size(), 1u);
    EXPECT_EQ(counts[0].additions, 7u) << executor->name();
    EXPECT_EQ(counts[0].absorbed, 7u) << executor->name();
  }
}

TEST(Absorption, IsCountedAtTheStridesOfRanges) {
  const Write next = [](Builder&, Var x, Var y) { return x + y; };
  const NumericalProgram program = Lowered(next, {.preset = "bf16_unsafe"}, {300});
  const std::vector<double> x(300, 4.0);
  const std::vector<double> y(300, 0.01);
  for (const auto& executor : TestedExecutors()) {
    for (Recording recording : {Recording::kCounts, Recording::kSummary, Recording::kInstances}) {
      for (int64_t chunk : {1, 3, 20, 43}) {
        // Steps 7, 15, 23, 31, 39 and the last.
        const auto counts = Counted(executor, program, x, y,
                                    {.instances = 37,
                                     .steps = 43,
                                     .stride = 8,
                                     .chunk = chunk,
                                     .threads = 2,
                                     .recording = recording});
        ASSERT_EQ(counts.size(), 1u);
        EXPECT_EQ(counts[0].additions, 300u * 37u * 6u) << executor->name() << " " << chunk;
        EXPECT_EQ(counts[0].absorbed, 300u * 37u * 6u) << executor->name() << " " << chunk;
      }
    }
  }
}

TEST(Absorption, SitesHaveTheStateAndTheLabelAndEndInOthers) {
  Builder b("sites");
  const Var x = b.State("x", {});
  const Var v = b.State("v", {100});
  b.Label("step.py:7");
  const Var next_x = x + b.Literal(1.0);
  b.Label("");
  Vars parts;
  for (int64_t k = 0; k < 100; ++k) {
    const Var part = b.Slice(v, {k}, {1});
    parts.push_back(k == 0 ? part - part : part + part);
  }
  b.SetNext({next_x, b.Concat(parts, 0)});
  const auto program = Lower(*b.Finish(), tests::PolicyOf({.preset = "f32"}), "", std::nullopt);
  ASSERT_TRUE(program.ok()) << program.status();
  const Additions additions = AdditionsOf(*program);
  EXPECT_EQ(additions.by_sum.size(), 101u);
  ASSERT_EQ(additions.sites.size(), kMostAdditionSites + 1);
  EXPECT_EQ(additions.sites.front().state, "x");
  EXPECT_EQ(additions.sites.front().label, "step.py:7");
  EXPECT_EQ(additions.sites[1].state, "v");
  EXPECT_EQ(additions.sites[1].label, "");
  EXPECT_EQ(additions.sites.back().state, kOtherAdditions);
}

// Each sum has the casts of all sums in front of it: without a bound a program of n operations has n^2.
TEST(Absorption, IsCountedBehindFewCasts) {
  Builder b("casts");
  const Var x = b.State("x", {});
  const Var is_above = b.Event("above", x, Comparison::kGt, b.Literal(0.0));
  Var next = x;
  for (int k = 0; k < 1000; ++k) {
    // A cast into bf16, and one of the policy out of it.
    const Var narrow = b.Cast(next, Format::kBf16, Overflow::kIeee);
    next = Select(is_above, narrow, x + b.Literal(k + 1.0));
  }
  b.SetNext({next});
  const auto program = Lower(*b.Finish(), tests::PolicyOf({.preset = "f32"}), "", std::nullopt);
  ASSERT_TRUE(program.ok()) << program.status();
  const Additions additions = AdditionsOf(*program);
  EXPECT_EQ(additions.by_sum.size(), kMostAdditionCasts / 2 + 1);
  for (const auto& [sum, addition] : additions.by_sum) {
    EXPECT_LE(addition.casts.size(), kMostAdditionCasts);
  }
}

}  // namespace
}  // namespace simgrad::sim
