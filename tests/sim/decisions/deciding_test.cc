// The test that decided a predicate is told by its name, with its own margin.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/program/builder.h"
#include "tests/sim/decisions/executors.h"
#include "tests/sim/equality/random.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using equality::Random;
using tests::Bind;

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

// x_k < 1, by name, for each of n numbers, joined by a formula, as the predicate of a loop.
std::shared_ptr<const NumericalProgram> ProgramOf(Random random, int64_t n, TestLevel level) {
  Builder b("deciding");
  b.program().level = level;
  const Var x = b.State("x", {n});
  const WhileOptions options{.site = "loop", .max_iter = 1, .cap_order = CapOrder::kCapFirst};
  b.While(
      options, {x}, {},
      [&](const Vars& now, const Vars&) {
        Vars tests;
        for (int64_t k = 0; k < n; ++k) {
          SiteScope scope(b, absl::StrCat("test_", k));
          const Var one = b.Reshape(b.Slice(now[0], {k}, {1}), {});
          tests.push_back(b.Apply(OpCode::kLt, {one, b.Literal(1.0)}));
        }
        return LoopPredicate{Formula(b, random, tests), {}};
      },
      [](const Vars& now, const Vars&, const Vars&) { return now; });
  b.SetNext({x});
  const absl::StatusOr<Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  auto lowered = Lower(*program, tests::PolicyOf({.preset = "f32"}), "", std::nullopt);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return std::make_shared<const NumericalProgram>(*std::move(lowered));
}

class Kept : public Observer {
 public:
  void OnForward(const ForwardChunk& chunk) override { diagnostics = chunk.diagnostics; }
  StepDiagnostics diagnostics;
};

SmallestMargin MarginOn(const std::shared_ptr<Executor>& executor,
                        const std::shared_ptr<const NumericalProgram>& program,
                        const std::vector<std::vector<double>>& x) {
  const int64_t n = static_cast<int64_t>(x[0].size());
  const int64_t instances = static_cast<int64_t>(x.size());
  Work work = tests::WorkOf(*program, instances, 1);
  std::vector<double> numbers;
  for (const auto& row : x) numbers.insert(numbers.end(), row.begin(), row.end());
  Bind(work, InputKind::kState, "x", {tests::Doubles(numbers, {instances, n}), true, false});
  Kept kept;
  const auto result = Engine(executor).Execute(std::move(work), kept);
  EXPECT_TRUE(result.ok()) << result.status();
  return kept.diagnostics.terminations.at(0).at(0).margin;
}

std::string NameOf(const NumericalProgram& program, uint32_t number) {
  if (number == 0) return "";
  if (number <= program.sites.size()) return program.sites[number - 1].name;
  return program.unlisted_tests.at(number - 1 - program.sites.size());
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

}  // namespace
}  // namespace simgrad::sim
