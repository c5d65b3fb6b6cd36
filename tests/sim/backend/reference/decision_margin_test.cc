// The margin of a predicate: formulas keep their value while every test moves by less, and turn over
// where some move by as much.
#include <algorithm>
#include <cmath>

#include "tests/sim/backend/reference/one_step.h"
#include "tests/sim/equality/random.h"

namespace simgrad::sim {
namespace {

using tests::Outcome;
using tests::RunProgram;
using tests::Setting;

constexpr double kUlp = 0x1p-52;  // of f64 around 1

// A formula in which every test x[k] < 1 stands once.
Var Formula(Builder& b, equality::Random& random, const Vars& tests, size_t first, size_t count) {
  if (count == 1) return random.Chance(0.3) ? Not(tests[first]) : tests[first];
  if (count >= 3 && random.Chance(0.3)) {
    const Var choice = Formula(b, random, tests, first, 1);
    const size_t left = 1 + (count - 2) / 2;
    return b.Apply(OpCode::kSelect,
                   {choice, Formula(b, random, tests, first + 1, left),
                    Formula(b, random, tests, first + 1 + left, count - 1 - left)});
  }
  const size_t left = static_cast<size_t>(random.Integer(1, static_cast<int64_t>(count) - 1));
  const Var a = Formula(b, random, tests, first, left);
  const Var c = Formula(b, random, tests, first + left, count - left);
  static const std::vector<OpCode> kJoins = {OpCode::kAnd, OpCode::kOr, OpCode::kXor};
  return b.Apply(random.Pick(kJoins), {a, c});
}

struct Evaluated {
  bool stopped = false;  // at once
  double ulps = 0.0;
};

// The formula of `seed` at these numbers, as the predicate of a loop that changes nothing.
Evaluated Evaluate(uint64_t seed, const std::vector<double>& x) {
  Setting setting;
  setting.states = {x};
  const int64_t n = static_cast<int64_t>(x.size());
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    b.program().level = TestLevel::kLoops;
    const Var state = b.State("x", {n});
    WhileOptions options;
    options.site = "formula";
    options.max_iter = 1;
    b.While(
        options, {state}, {},
        [&](const Vars& now, const Vars&) {
          equality::Random random(seed);
          Vars tests;
          for (int64_t k = 0; k < n; ++k) {
            const Var one = b.Reshape(b.Slice(now[0], {k}, {1}), {});
            tests.push_back(b.Apply(OpCode::kLt, {one, b.Literal(1.0)}));
          }
          return LoopPredicate{Formula(b, random, tests, 0, tests.size()), {}};
        },
        [](const Vars& now, const Vars&, const Vars&) { return now; });
    b.SetNext({state});
  });
  const TerminationStep& step = outcome.seen.diagnostics.terminations.at(0).at(0);
  return {step.iterations_max == 0, std::abs(step.margin.ulps)};
}

// x with the tests of `subset` on the other side.
std::vector<double> Across(std::vector<double> x, size_t subset) {
  for (size_t k = 0; k < x.size(); ++k) {
    if ((subset >> k & 1) != 0) x[k] = x[k] < 1.0 ? 1.0 : 1.0 - kUlp;
  }
  return x;
}

// No tests that are nearer than the margin turn the formula over, however many cross; some that are
// not further do.
TEST(DecisionMargin, IsWhatAllTestsMayMoveAndNoMore) {
  int kept = 0, turned = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    equality::Random random(seed + 1000);
    std::vector<double> x;
    for (int64_t k = random.Integer(1, 4); k > 0; --k) {
      x.push_back(1.0 + static_cast<double>(random.Integer(-40, 40)) * kUlp);
    }
    const Evaluated before = Evaluate(seed, x);
    bool turns = false;
    for (size_t subset = 1; subset < size_t{1} << x.size(); ++subset) {
      double furthest = 0.0;
      for (size_t k = 0; k < x.size(); ++k) {
        if ((subset >> k & 1) != 0) furthest = std::max(furthest, std::abs(x[k] - 1.0) / kUlp);
      }
      if (furthest > before.ulps) continue;
      const bool turns_over = Evaluate(seed, Across(x, subset)).stopped != before.stopped;
      turns = turns || turns_over;
      if (furthest == before.ulps) continue;
      EXPECT_FALSE(turns_over) << seed << " " << subset;
      ++kept;
    }
    EXPECT_TRUE(turns) << seed;
    turned += turns ? 1 : 0;
  }
  EXPECT_GT(kept, 100);
  EXPECT_EQ(turned, 200);
}

}  // namespace
}  // namespace simgrad::sim
