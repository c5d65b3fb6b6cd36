// Calls with a vjp of their own, draws and halts, against values computed by hand.
#include <cmath>

#include "precision/philox.h"
#include "sim/engine/random_keys.h"
#include "sim/program/draws.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using tests::FinalState;
using tests::Outcome;
using tests::RunProgram;
using tests::Setting;

double GradientOf(const Outcome& outcome, const std::string& state) {
  const auto& inputs = outcome.program->program.inputs;
  for (const InputGradient& gradient : outcome.result.gradients) {
    if (inputs[static_cast<size_t>(gradient.input)].name == state) return gradient.gradient.Get(0);
  }
  ADD_FAILURE() << "no gradient of " << state;
  return 0;
}

int64_t ConnectedOf(const Outcome& outcome, const std::string& state) {
  const auto& inputs = outcome.program->program.inputs;
  for (const InputGradient& gradient : outcome.result.gradients) {
    if (inputs[static_cast<size_t>(gradient.input)].name == state) return gradient.connected;
  }
  return -1;
}

// One step, whose first state is the objective.
void AddFirstState(Builder& b) {
  b.AddObjective("end", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
}

// x y and x + y; the vjp says 10 g0 x for x, and for y g1 + y0.
Vars Marked(Builder& b, const Vars& args) {
  return b.Call(
      args,
      [](const Vars& x) {
        return Vars{x[0] * x[1], x[0] + x[1]};
      },
      [](const Vars& x, const Vars& y, const Vars& g) {
        return Vars{10.0 * g[0] * x[0], g[1] + y[0]};
      });
}

TEST(Call, GivesWhatItsBodyGives) {
  Setting setting;
  setting.states = {{3.0}, {4.0}};
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {});
    const Var y = b.State("y", {});
    b.SetNext(Marked(b, {x, y}));
  });
  EXPECT_EQ(FinalState(outcome, 0)[0], 12.0);
  EXPECT_EQ(FinalState(outcome, 1)[0], 7.0);
  EXPECT_EQ(outcome.program->text.find("call"), std::string::npos);
  EXPECT_EQ(outcome.program->text.find("own_vjp"), std::string::npos);
}

TEST(Call, IsDifferentiatedByItsOwnVjp) {
  Setting setting;
  setting.objective = "end";
  setting.states = {{3.0}, {4.0}};
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {});
    const Var y = b.State("y", {});
    const Vars made = Marked(b, {x, y});
    b.SetNext({2.0 * made[0], y});
    AddFirstState(b);
  });
  EXPECT_EQ(GradientOf(outcome, "x"), 10.0 * 2.0 * 3.0);
  // The second result has no cotangent, so +0 stands for it; 12 is the first result.
  EXPECT_EQ(GradientOf(outcome, "y"), 0.0 + 12.0);
}

TEST(Call, WithoutAVjpIsItsBody) {
  Setting setting;
  setting.objective = "end";
  setting.states = {{3.0}};
  const auto world = [](bool calls) {
    return [calls](Builder& b) {
      const Var x = b.State("x", {});
      const auto cubed = [&](const Vars& y) { return Vars{y[0] * y[0] * x}; };
      b.SetNext(calls ? b.Call({x}, cubed) : cubed({x}));
      AddFirstState(b);
    };
  };
  const Outcome outcome = RunProgram(setting, world(true));
  EXPECT_EQ(GradientOf(outcome, "x"), 27.0);
  EXPECT_EQ(outcome.program->text, RunProgram(setting, world(false)).program->text);
}

// Only where a cotangent arrives; a select keeps it away here.
TEST(Call, IsConnectedWhereItsResultIs) {
  for (const double x : {-1.0, 2.0}) {
    Setting setting;
    setting.objective = "end";
    setting.states = {{x}, {5.0}};
    const Outcome outcome = RunProgram(setting, [&](Builder& b) {
      const Var state = b.State("x", {});
      const Var other = b.State("y", {});
      const Vars made = b.Call(
          {other}, [](const Vars& y) { return y; },
          [](const Vars&, const Vars&, const Vars& g) { return Vars{7.0 * g[0]}; });
      const Var high = b.Event("high", state, Comparison::kGt, b.Literal(0.0));
      b.SetNext({Select(high, made[0], state), other});
      AddFirstState(b);
    });
    EXPECT_EQ(GradientOf(outcome, "y"), x > 0 ? 7.0 : 0.0);
    EXPECT_EQ(ConnectedOf(outcome, "y"), x > 0 ? 1 : 0);
  }
}

// The vjp halves its cotangent until it is below 1, in a loop, and takes a branch.
TEST(Call, MayLoopAndBranchInItsVjp) {
  Setting setting;
  setting.objective = "end";
  setting.states = {{12.0}};
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {});
    const Vars made = b.Call(
        {x}, [](const Vars& y) { return y; },
        [&](const Vars& y, const Vars&, const Vars& g) {
          WhileOptions options;
          options.site = "halving";
          options.max_iter = 20;
          const LoopResult loop = b.While(
              options, {g[0] * y[0]}, {},
              [&](const Vars& now, const Vars&) {
                return LoopTest{now[0], b.Literal(1.0), std::nullopt, {}};
              },
              [](const Vars& now, const Vars&, const Vars&) { return Vars{0.5 * now[0]}; });
          const Var small = b.Event("small", loop.carried[0], Comparison::kLt, b.Literal(0.8));
          return b.Cond(
              small, {loop.carried[0]},
              {[](const Vars& z) { return z; }, [](const Vars& z) { return Vars{100.0 * z[0]}; }});
        });
    b.SetNext({made[0]});
    AddFirstState(b);
  });
  EXPECT_EQ(GradientOf(outcome, "x"), 75.0);
  EXPECT_TRUE(outcome.program->sites.empty());
}

// A call in a loop per element reverses each element by itself, as often as it ran.
TEST(Call, IsReversedInLoops) {
  Setting setting;
  setting.objective = "end";
  setting.states = {{1.0}};
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {});
    const Vars made = b.For(3, {x}, [&](Var, const Vars& now) {
      return b.Call(
          {now[0]}, [](const Vars& y) { return Vars{2.0 * y[0]}; },
          [](const Vars& y, const Vars&, const Vars& g) { return Vars{3.0 * g[0] + y[0]}; });
    });
    b.SetNext({made[0]});
    AddFirstState(b);
  });
  // y = 1, 2, 4: 3 (3 (3 + 4) + 2) + 1.
  EXPECT_EQ(GradientOf(outcome, "x"), 70.0);
}

// ---- draws ----

TEST(Draw, HangsOnInstanceStepIterationAndElement) {
  constexpr uint64_t kSeed = 42;
  Setting setting;
  setting.instances = 2;
  setting.steps = 2;
  setting.states = {{0.0, 0.0, 0.0}};
  setting.adjust = [](Work& work) {
    work.batch.instance_ids = {9, 4};
    tests::Bind(work, InputKind::kData, kRandomKey, RandomKeys(kSeed, work.batch.instance_ids));
  };
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {3});
    const auto draw = [&](OpCode code, const Shape& shape) {
      Attributes a;
      a.shape = shape;
      return b.Do(code, {}, std::move(a));
    };
    const Var first = draw(OpCode::kUniform, {});
    const Vars made = b.For(
        2, {x}, [&](Var, const Vars& now) { return Vars{now[0] + draw(OpCode::kNormal, {3})}; });
    const Var last = draw(OpCode::kUniform, {});
    const Var sum = b.Broadcast(first + 2.0 * last, {3}, {});
    b.SetNext({made[0] + sum});
  });
  const std::vector<double> now = FinalState(outcome);
  for (size_t row = 0; row < 2; ++row) {
    const uint64_t key = precision::RandomKey(kSeed, row == 0 ? 9 : 4);
    for (int64_t e = 0; e < 3; ++e) {
      double x = 0;
      for (int64_t t = 0; t < 2; ++t) {
        for (int64_t i = 0; i < 2; ++i) {
          x += precision::NormalOf(precision::Draw(key, 1, t, i, e));
        }
        const auto uniform = [&](int64_t number) {
          return precision::UniformOf(precision::Draw(key, number, t, 0, 0).first, 53);
        };
        x += uniform(0) + 2.0 * uniform(2);
      }
      EXPECT_EQ(now[3 * row + static_cast<size_t>(e)], x) << "row " << row << " element " << e;
    }
  }
}

TEST(StochasticCast, RoundsByTheWordOfItsPlace) {
  constexpr uint64_t kSeed = 42;
  Setting setting;
  setting.instances = 2;
  setting.steps = 2;
  setting.states = {{1.0, 1.5, 3.0}};
  setting.adjust = [](Work& work) {
    work.batch.instance_ids = {9, 4};
    tests::Bind(work, InputKind::kData, kRandomKey, RandomKeys(kSeed, work.batch.instance_ids));
  };
  const auto cast = [](Var x) {
    return x.builder->Cast(x, Format::kBf16, Overflow::kIeee, CastRounding::kStochastic);
  };
  const Outcome outcome = RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {3});
    const Vars made =
        b.For(2, {x}, [&](Var, const Vars& now) { return Vars{cast(now[0] + b.Literal(0.001))}; });
    b.SetNext({made[0]});
  });
  const std::vector<double> now = FinalState(outcome);
  for (size_t row = 0; row < 2; ++row) {
    const uint64_t key = precision::RandomKey(kSeed, row == 0 ? 9 : 4);
    for (int64_t e = 0; e < 3; ++e) {
      double x = setting.states[0][static_cast<size_t>(e)];
      for (int64_t t = 0; t < 2; ++t) {
        for (int64_t i = 0; i < 2; ++i) {
          const uint64_t words = precision::Draw(key, 0, t, i, e).first;
          x = precision::RoundTo(Format::kBf16, x + 0.001, Overflow::kIeee,
                                 CastRounding::kStochastic, static_cast<uint32_t>(words >> 32));
        }
      }
      EXPECT_EQ(now[3 * row + static_cast<size_t>(e)], x) << "row " << row << " element " << e;
    }
  }
}

// ---- halts ----

struct Fall {
  std::vector<double> starts = {1.0, 2.5, 10.0};
  bool error = false;
  std::string objective = "cost";
};

// Each step takes 1 and costs x; below 0 it halts, at 1 as "one".
Outcome RunFall(const Fall& fall) {
  Setting setting;
  setting.steps = 4;
  setting.objective = fall.objective;
  setting.instances = static_cast<int64_t>(fall.starts.size());
  setting.adjust = [&](Work& work) {
    work.batch.inputs[0] = {tests::Doubles(fall.starts, {setting.instances}), true, false};
    work.options.record_states = {0};
  };
  return RunProgram(setting, [&](Builder& b) {
    const Var x = b.State("x", {});
    const Var next = x - b.Literal(1.0);
    b.Halt("below", b.Event("below", next, Comparison::kLt, b.Literal(0.0)), fall.error);
    b.Halt("nought", b.Event("nought", next, Comparison::kEq, b.Literal(0.0)));
    b.Export("seen", next, true);
    b.SetNext({next});
    b.AddObjective(
        "cost", [&] { return next * next; },
        [](const Vars& states, const Vars&) { return 100.0 * states[0]; });
  });
}

TEST(Halt, LetsItsStepCompleteAndNoLaterOne) {
  const Outcome outcome = RunFall({});
  EXPECT_EQ(FinalState(outcome), (std::vector<double>{0.0, -0.5, 6.0}));
  const auto& halts = outcome.result.halts;
  ASSERT_EQ(halts.size(), 3u);
  ASSERT_TRUE(halts[0] && halts[1]);
  EXPECT_EQ(outcome.program->halts, (std::vector<std::string>{"below", "nought"}));
  EXPECT_EQ(halts[0]->step, 0);
  EXPECT_EQ(halts[0]->halt, 1);
  EXPECT_EQ(halts[1]->step, 2);
  EXPECT_EQ(halts[1]->halt, 0);
  EXPECT_FALSE(halts[2].has_value());
  // 0; 1.5, 0.5 and -0.5; 9, 8, 7 and 6; and the terminal cost of the standing state.
  EXPECT_EQ(outcome.result.values,
            (std::vector<double>{0.0, 2.25 + 0.25 + 0.25 - 50.0, 81.0 + 64 + 49 + 36 + 600}));
  EXPECT_EQ(outcome.result.final_states.size(), 1u);
}

TEST(Halt, HandsOnTheCotangentsOfTheStepsThatRan) {
  const Outcome outcome = RunFall({});
  const Tensor& gradient = outcome.result.gradients[0].gradient;
  EXPECT_EQ(gradient.Get(0), 2 * 0.0 + 100);
  EXPECT_EQ(gradient.Get(1), 2 * (1.5 + 0.5 - 0.5) + 100);
  EXPECT_EQ(gradient.Get(2), 2 * (9.0 + 8 + 7 + 6) + 100);
}

TEST(Halt, DecidesNothingAfterwards) {
  const Outcome outcome = RunFall({.starts = {1.0}});
  for (const auto& site : outcome.seen.diagnostics.events) {
    for (size_t t = 0; t < 4; ++t) EXPECT_EQ(site[t].checks, t == 0 ? 1u : 0u);
  }
}

TEST(Halt, WithAnErrorLeavesTheStateBeforeAndNoGradient) {
  const Outcome outcome = RunFall({.error = true});
  EXPECT_EQ(FinalState(outcome), (std::vector<double>{0.0, 0.5, 6.0}));
  EXPECT_TRUE(outcome.result.halts[1]->error);
  EXPECT_EQ(outcome.result.halts[1]->step, 2);
  EXPECT_FALSE(outcome.result.halts[0]->error);
  EXPECT_EQ(outcome.result.values, (std::vector<double>{0.0, 2.25 + 0.25, 230.0 + 600}));
  const Tensor& gradient = outcome.result.gradients[0].gradient;
  EXPECT_EQ(gradient.Get(0), 100.0);
  EXPECT_EQ(gradient.Get(1), 0.0);
  EXPECT_EQ(gradient.Get(2), 160.0);
  EXPECT_EQ(outcome.result.gradients[0].connected, 2);
}

TEST(Halt, PlacesAreToldApart) {
  EXPECT_FALSE(HaltOf(0).has_value());
  for (const int64_t step : {0, 1, 70, 100'000}) {
    for (const int32_t halt : {0, 1, kMostHalts - 1}) {
      for (const bool error : {false, true}) {
        const auto place = HaltOf(1 + 2 * (kMostHalts * step + halt) + (error ? 1 : 0));
        ASSERT_TRUE(place.has_value());
        EXPECT_EQ(place->step, step);
        EXPECT_EQ(place->halt, halt);
        EXPECT_EQ(place->error, error);
      }
    }
  }
}

}  // namespace
}  // namespace simgrad::sim
