// Loops differentiated by their last iterations and as fixed points, against values in closed form.
#include "sim/program/loop_choice.h"

#include <cmath>
#include <map>

#include "sim/program/field_error.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using How = LoopChoice::How;
using Solve = LoopChoice::Solver;

LoopChoice Truncated(int64_t last) {
  return {.site = "loop", .how = How::kTruncated, .last = last};
}

LoopChoice ByGmres(int64_t restart, double tol = 1e-13, int64_t max_iter = 1000) {
  return {.site = "loop",
          .how = How::kImplicit,
          .solver = Solve::kGmres,
          .tol = tol,
          .max_iter = max_iter,
          .restart = restart};
}

LoopChoice Implicit(Solve solver, double tol = 1e-12, double damping = 0) {
  return {.site = "loop",
          .how = How::kImplicit,
          .solver = solver,
          .tol = tol,
          .max_iter = 1000,
          .damping = damping};
}

struct Answer {
  std::map<std::string, Tensor> gradients;
  std::map<std::string, int64_t> connected;
  std::vector<Tensor> states;
  std::vector<Unconverged> unconverged;
  std::vector<AdjointSolves> solves;
  std::vector<InstanceHealth> health;
  std::string text;
};

// One step of a world in f64, whose objective is "end".
absl::StatusOr<Answer> Reversed(const std::function<void(Builder&)>& write,
                                const std::vector<LoopChoice>& loops,
                                const std::map<std::string, std::vector<double>>& given = {},
                                const std::string& preset = "f64") {
  Builder b("test");
  write(b);
  const auto world = b.Finish();
  if (!world.ok()) return world.status();
  AdjointSpec spec{.objective = "end"};
  for (const Input& input : world->inputs) spec.wanted.push_back(IsDifferentiable(*world, input));
  spec.loops = loops;
  precision::PolicySpec policy = tests::Preset(preset);
  policy.loss_scale = 1.0;  // f16 does not hold twice that of its preset
  auto program = Lower(*world, tests::PolicyOf(policy), "end", spec);
  if (!program.ok()) return program.status();
  Work work = tests::WorkOf(*std::move(program), 1, 1);
  const Program& lowered = work.batch.program->program;
  for (size_t i = 0; i < lowered.inputs.size(); ++i) {
    const auto found = given.find(lowered.inputs[i].name);
    if (found == given.end()) continue;
    work.batch.inputs[i] =
        tests::Shared(found->second, lowered[lowered.inputs[i].value].type.shape);
  }
  Answer answer;
  answer.text = work.batch.program->text;
  const auto numerical = work.batch.program;
  tests::Seen seen;
  auto result = tests::Execute(std::move(work), seen);
  if (!result.ok()) return result.status();
  for (const InputGradient& gradient : result->gradients) {
    const std::string& name = numerical->program.inputs[static_cast<size_t>(gradient.input)].name;
    answer.gradients[name] = gradient.gradient;
    answer.connected[name] = gradient.connected;
  }
  answer.states = result->final_states;
  answer.unconverged = result->unconverged;
  answer.solves = result->adjoint_solves;
  answer.health = result->health;
  return answer;
}

void AddEnd(Builder& b) {
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return states[0].shape().empty() ? states[0] : b.Reduce(OpCode::kSum, states[0]);
  });
}

// x <- x / 2 + p from x0, `turns` times (or never, where it starts below -1).
std::function<void(Builder&)> Halving(int64_t turns) {
  return [turns](Builder& b) {
    const Var x = b.State("x", {});
    const Var p = b.Param("p", {}, 1.0);
    WhileOptions options;
    options.site = "loop";
    options.max_iter = turns;
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& now, const Vars&) {
          return LoopTest{now[0], b.Literal(-1.0), std::nullopt, {}};
        },
        [&](const Vars& now, const Vars&, const Vars&) { return Vars{0.5 * now[0] + p}; });
    b.SetNext({loop.carried[0]});
    AddEnd(b);
  };
}

TEST(Truncated, ReversesTheLastIterations) {
  const std::map<std::string, std::vector<double>> start = {{"x", {8.0}}};
  const double by_start[] = {0.0, 0.0, 0.125, 0.125};
  const double by_p[] = {1.0, 1.5, 1.75, 1.75};
  for (int64_t last = 1; last <= 4; ++last) {
    const auto answer = Reversed(Halving(3), {Truncated(last)}, start);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->gradients.at("p").Get(0), by_p[last - 1]) << last;
    EXPECT_EQ(answer->gradients.at("x").Get(0), by_start[last - 1]) << last;
    EXPECT_EQ(answer->connected.at("x"), last >= 3 ? 1 : 0) << last;
    EXPECT_EQ(answer->states[0].Get(0), 8.0 / 8 + 1.75);
    EXPECT_NE(answer->text.find("last=" + std::to_string(last)), std::string::npos);
  }
}

TEST(Truncated, OfALoopPerElementCountsEachByItself) {
  const auto world = [](Builder& b) {
    const Var x = b.State("x", {3});
    WhileOptions options;
    options.site = "loop";
    options.max_iter = 10;
    options.elements = 3;
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& now, const Vars&) {
          return LoopTest{now[0], b.Literal(1.0), std::nullopt, {}};
        },
        [&](const Vars& now, const Vars&, const Vars&) { return Vars{0.5 * now[0]}; });
    b.SetNext({loop.carried[0]});
    AddEnd(b);
  };
  const auto answer = Reversed(world, {Truncated(2)}, {{"x", {0.5, 3.0, 20.0}}});
  ASSERT_TRUE(answer.ok()) << answer.status();
  const Tensor& gradient = answer->gradients.at("x");
  EXPECT_EQ(gradient.Get(0), 1.0);   // no iteration
  EXPECT_EQ(gradient.Get(1), 0.25);  // two
  EXPECT_EQ(gradient.Get(2), 0.0);   // five
}

TEST(Implicit, SolvesForAScalar) {
  const std::map<std::string, std::vector<double>> start = {{"x", {8.0}}};
  const auto by_lu = Reversed(Halving(3), {Implicit(Solve::kLu)}, start);
  ASSERT_TRUE(by_lu.ok()) << by_lu.status();
  EXPECT_EQ(by_lu->gradients.at("p").Get(0), 2.0);
  EXPECT_EQ(by_lu->gradients.at("x").Get(0), 0.0);
  EXPECT_EQ(by_lu->connected.at("x"), 0);
  const auto damped = Reversed(Halving(3), {Implicit(Solve::kLu, 1e-12, 1.5)}, start);
  ASSERT_TRUE(damped.ok()) << damped.status();
  EXPECT_EQ(damped->gradients.at("p").Get(0), 0.5);
  for (const double damping : {0.0, 1.5}) {
    for (const Solve solver : {Solve::kIteration, Solve::kGmres}) {
      const auto solved = Reversed(Halving(3), {Implicit(solver, 1e-12, damping)}, start);
      ASSERT_TRUE(solved.ok()) << solved.status();
      EXPECT_NEAR(solved->gradients.at("p").Get(0), 1.0 / (0.5 + damping), 1e-11);
      EXPECT_EQ(solved->connected.at("x"), 0);
      EXPECT_NE(solved->text.find("site=loop.adjoint"), std::string::npos);
    }
  }
}

// The adjoint's format is narrower than that of the test in two of them, and rounds tol to less.
TEST(Implicit, SolvesUnderEveryPreset) {
  for (const std::string& preset : precision::PresetNames()) {
    for (const Solve solver : {Solve::kIteration, Solve::kLu, Solve::kGmres}) {
      for (const double tol : {1e-9, 1e-3}) {
        LoopChoice choice = Implicit(solver, tol);
        choice.restart = solver == Solve::kGmres ? 4 : choice.restart;
        const auto answer = Reversed(Halving(40), {choice}, {{"x", {8.0}}}, preset);
        ASSERT_TRUE(answer.ok()) << answer.status();
        EXPECT_NEAR(answer->gradients.at("p").Get(0), 2.0, 0.02) << preset << " " << tol;
      }
    }
  }
}

TEST(Implicit, OfNoIterationIsTheIdentity) {
  for (const Solve solver : {Solve::kLu, Solve::kIteration, Solve::kGmres}) {
    const auto answer = Reversed(Halving(3), {Implicit(solver)}, {{"x", {-2.0}}});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->gradients.at("p").Get(0), 0.0);
    EXPECT_EQ(answer->connected.at("p"), 0);
    EXPECT_EQ(answer->gradients.at("x").Get(0), 1.0);
    // There is no system: none is singular, and no solve is told.
    EXPECT_TRUE(answer->health[0].ok);
    EXPECT_TRUE(answer->solves.empty());
  }
}

// x <- 0.25 A x + b y, y <- tanh(sum x) q + 0.125 y, beside a counter, until the change is below tol.
std::function<void(Builder&)> Coupled(double tol) {
  return [tol](Builder& b) {
    const Var out = b.State("out", {3});
    const Var q = b.Param("q", {}, 0.5);
    const Var force = b.Param("force", {3}, 1.0);
    const Var a = b.LiteralArray({0.5, 1, 0.25, -1, 0.5, 0.125, 0.75, -0.25, 1}, {3, 3});
    WhileOptions options;
    options.site = "loop";
    options.max_iter = 200;
    const Var zeros = b.Literal(0.0, {3});
    const LoopResult loop = b.While(
        options, {zeros, b.Literal(0.0), b.Literal(1.0), b.Integer(0)}, {},
        [&](const Vars& now, const Vars&) {
          return LoopTest{now[2], b.Literal(tol), std::nullopt, {}};
        },
        [&](const Vars& now, const Vars&, const Vars&) {
          const Var column = b.Reshape(now[0], {3, 1});
          const Var product = b.Reshape(b.Do(OpCode::kMatmul, {a, column}), {3});
          const Var x = 0.25 * product + force * b.Broadcast(now[1] + b.Literal(0.5), {3}, {});
          const Var sum = b.Reduce(OpCode::kSum, now[0]);
          const Var y = b.Apply(OpCode::kTanh, {sum}) * q + 0.125 * now[1];
          const Var change = b.Reduce(OpCode::kReduceMax, b.Apply(OpCode::kAbs, {x - now[0]}));
          return Vars{x, y, change + b.Apply(OpCode::kAbs, {y - now[1]}),
                      b.Apply(OpCode::kAdd, {now[3], b.Integer(1)})};
        });
    b.SetNext({loop.carried[0] + 0.0 * out});
    AddEnd(b);
  };
}

double OfQ(double tol, const std::vector<LoopChoice>& loops) {
  const auto answer = Reversed(Coupled(tol), loops, {{"out", {0, 0, 0}}});
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? answer->gradients.at("q").Get(0) : NAN;
}

TEST(Implicit, OfALoopAtItsCapIsTold) {
  const std::map<std::string, std::vector<double>> start = {{"x", {8.0}}};
  const auto told = [&](const std::function<void(Builder&)>& world, const LoopChoice& choice) {
    const auto answer = Reversed(world, {choice}, start);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->unconverged : std::vector<Unconverged>();
  };
  for (const Solve solver : {Solve::kLu, Solve::kIteration}) {
    const auto loops = told(Halving(3), Implicit(solver));
    ASSERT_EQ(loops.size(), 1u);
    EXPECT_EQ(loops[0].site, "loop");
    EXPECT_EQ(loops[0].runs, 1u);
  }
  EXPECT_TRUE(told(Halving(3), Truncated(2)).empty());
  const auto answer = Reversed(Coupled(1e-6), {Implicit(Solve::kLu)}, {{"out", {0, 0, 0}}});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->unconverged.empty());
}

TEST(Implicit, SolversAgreeAndAreTheLimitOfUnrolled) {
  const double exact = OfQ(1e-15, {});
  EXPECT_GT(std::abs(exact), 0.1);
  const double by_lu = OfQ(1e-15, {Implicit(Solve::kLu)});
  EXPECT_NEAR(by_lu, exact, 1e-11 * std::abs(exact));
  EXPECT_NEAR(OfQ(1e-15, {Implicit(Solve::kIteration, 1e-14)}), by_lu, 1e-11 * std::abs(exact));
  for (const int64_t restart : {0, 2, 3, 512}) {
    EXPECT_NEAR(OfQ(1e-15, {ByGmres(restart)}), by_lu, 1e-11 * std::abs(exact)) << restart;
  }
  EXPECT_EQ(OfQ(1e-15, {Implicit(Solve::kDefault)}), by_lu);
}

// The error of either is of the order of the error of x. Unrolled from a start that does not hang on q, the error of
// the derivative lags behind by a factor of the iterations; both fall in proportion to tol.
TEST(Implicit, ErrsInProportionToTheToleranceOfTheLoop) {
  const double exact = OfQ(1e-15, {});
  double before = 1e9;
  for (const double tol : {1e-2, 1e-4, 1e-6, 1e-8}) {
    const double error = std::abs(OfQ(tol, {Implicit(Solve::kLu)}) - exact);
    EXPECT_LT(error, 20 * tol) << tol;
    EXPECT_LT(error, before / 10) << tol;
    EXPECT_LT(std::abs(OfQ(tol, {}) - exact), 200 * tol) << tol;
    before = error;
  }
}

// x <- rho x + (1 - rho) p^2 from 0: after K turns x = (1 - rho^K) p^2, and its derivative by p is
// 2 p (1 - rho^K). By the last n turns it is 2 p (1 - rho^n).
std::function<void(Builder&)> Linear(double rho, int64_t turns) {
  return [=](Builder& b) {
    const Var x = b.State("x", {});
    const Var p = b.Param("p", {}, 1.0);
    WhileOptions options;
    options.site = "loop";
    options.max_iter = turns;
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& now, const Vars&) {
          return LoopTest{now[0], b.Literal(-1.0), std::nullopt, {}};
        },
        [&](const Vars& now, const Vars&, const Vars&) {
          return Vars{rho * now[0] + (1.0 - rho) * (p * p)};
        });
    b.SetNext({loop.carried[0]});
    AddEnd(b);
  };
}

// x <- x - rate (x^2 - p) ends at the root of p; near it each turn leaves rho = 1 - 2 rate x of the
// error.
std::function<void(Builder&)> Root(double rate, int64_t turns) {
  return [=](Builder& b) {
    const Var x = b.State("x", {});
    const Var p = b.Param("p", {}, 1.0);
    WhileOptions options;
    options.site = "loop";
    options.max_iter = turns;
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& now, const Vars&) {
          return LoopTest{now[0], b.Literal(-1.0), std::nullopt, {}};
        },
        [&](const Vars& now, const Vars&, const Vars&) {
          return Vars{now[0] - rate * (now[0] * now[0] - p)};
        });
    b.SetNext({loop.carried[0]});
    AddEnd(b);
  };
}

// What the derivative of the root of 1 by 1, one half, misses after so many turns from 1.5.
struct Errors {
  double x = 0, implicit = 0, unrolled = 0;
};

Errors ErrorsAfter(int64_t turns) {
  const std::map<std::string, std::vector<double>> start = {{"x", {1.5}}, {"p", {1.0}}};
  const auto by_lu = Reversed(Root(0.25, turns), {Implicit(Solve::kLu)}, start);
  const auto unrolled = Reversed(Root(0.25, turns), {}, start);
  EXPECT_TRUE(by_lu.ok() && unrolled.ok());
  if (!by_lu.ok() || !unrolled.ok()) return {};
  return {by_lu->states[0].Get(0) - 1.0, by_lu->gradients.at("p").Get(0) - 0.5,
          unrolled->gradients.at("p").Get(0) - 0.5};
}

// Theory: with e = x - x* the error of implicit is of first order in e, with a constant that K does
// not change, and that of unrolled is K rho^K: it lags behind by the number of turns. rho = 1/2.
TEST(Rates, ImplicitFallsWithTheErrorOfXAndUnrolledLagsBehindByTheTurns) {
  const Errors early = ErrorsAfter(12), late = ErrorsAfter(24);
  // dx/dp = 1 / (2 x) at the last executed evaluation, whose error is twice that of x.
  for (const Errors& errors : {early, late}) {
    EXPECT_NEAR(errors.implicit / errors.x, -1.0, 0.01);
  }
  EXPECT_NEAR(late.implicit / early.implicit, 0x1p-12, 0.01 * 0x1p-12);
  // K rho^K, up to terms of rho^K.
  EXPECT_NEAR(late.unrolled / early.unrolled, 2 * 0x1p-12, 0.3 * 0x1p-12);
}

// However many turns a tolerance asks for, n of them leave the same error.
TEST(Rates, TruncatedMissesThePartOfTheTurnsBeforeByRhoToTheN) {
  const std::map<std::string, std::vector<double>> start = {{"x", {0.0}}, {"p", {1.5}}};
  for (const double rho : {0.5, 0.75}) {
    for (const int64_t last : {1, 4, 16}) {
      const auto answer = Reversed(Linear(rho, 64), {Truncated(last)}, start);
      ASSERT_TRUE(answer.ok()) << answer.status();
      const double missing = 3.0 - answer->gradients.at("p").Get(0);
      EXPECT_NEAR(missing / 3.0, std::pow(rho, last), 1e-12) << rho << " " << last;
    }
    const auto unrolled = Reversed(Linear(rho, 16), {}, start);
    ASSERT_TRUE(unrolled.ok()) << unrolled.status();
    EXPECT_NEAR(1.0 - unrolled->gradients.at("p").Get(0) / 3.0, std::pow(rho, 16), 1e-12);
    const auto exact = Reversed(Linear(rho, 16), {Implicit(Solve::kLu)}, start);
    ASSERT_TRUE(exact.ok()) << exact.status();
    EXPECT_NEAR(exact->gradients.at("p").Get(0), 3.0, 1e-12);
  }
}

// A loose tolerance: each number of turns that tol leaves away costs a factor of 1 / rho. rho = 1/2.
TEST(Rates, ALooseToleranceCostsEachByItsOwnRate) {
  const Errors loose = ErrorsAfter(8), tight = ErrorsAfter(11);
  EXPECT_NEAR(loose.implicit / tight.implicit, 8.0, 0.5);
  EXPECT_NEAR(loose.unrolled / tight.unrolled, 8.0 * 8 / 11, 0.8);
}

// x <- M x + c p, once, from its solution x = 0 at p = 0: by p it changes by (1 - M)^-1 c, however
// large M is. The objective is the sum of x.
std::function<void(Builder&)> Once(const std::vector<double>& m, const std::vector<double>& c) {
  return [=](Builder& b) {
    const int64_t n = static_cast<int64_t>(c.size());
    const Var x = b.State("x", {n});
    const Var p = b.Param("p", {}, 0.0);
    WhileOptions options;
    options.site = "loop";
    options.max_iter = 1;
    options.cap_order = CapOrder::kCapFirst;
    const Var matrix = b.LiteralArray(m, {n, n});
    const Var force = b.LiteralArray(c, {n});
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& now, const Vars&) {
          return LoopTest{b.Reduce(OpCode::kSum, now[0]), b.Literal(-1.0), std::nullopt, {}};
        },
        [&](const Vars& now, const Vars&, const Vars&) {
          const Var column = b.Reshape(now[0], {n, 1});
          const Var product = b.Reshape(b.Do(OpCode::kMatmul, {matrix, column}), {n});
          return Vars{product + force * b.Broadcast(p, {n}, {})};
        });
    b.SetNext({loop.carried[0]});
    AddEnd(b);
  };
}

struct System {
  std::vector<double> m, c;
  std::map<std::string, std::vector<double>> start() const {
    return {{"x", std::vector<double>(c.size(), 0.0)}, {"p", {0.0}}};
  }
};

// Eigenvalues far outside the unit circle, and no symmetry.
const System kGrowing = {
    {3, 1, 0, 0, 0, -2, -4, 1, 0, 0, 1, 0, 5, 2, 0, 0, 1, -1, 2, 1, 2, 0, 0, 3, -6},
    {1, 2, -1, 0.5, 3}};

TEST(Gmres, SolvesWhatDoesNotContract) {
  const auto by_lu =
      Reversed(Once(kGrowing.m, kGrowing.c), {Implicit(Solve::kLu)}, kGrowing.start());
  ASSERT_TRUE(by_lu.ok()) << by_lu.status();
  const double exact = by_lu->gradients.at("p").Get(0);
  EXPECT_NEAR(exact, 0.08542713567839195, 1e-15);  // (1 - M)^-1 c by NumPy, added up
  for (const int64_t restart : {0, 2, 4, 5, 9}) {
    const auto found = Reversed(Once(kGrowing.m, kGrowing.c), {ByGmres(restart)}, kGrowing.start());
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_NEAR(found->gradients.at("p").Get(0), exact, 1e-11 * std::abs(exact)) << restart;
    ASSERT_EQ(found->solves.size(), 1u);
    EXPECT_EQ(found->solves[0].capped, 0u);
    EXPECT_LE(found->solves[0].residual, 1e-13);
    // Five numbers, five directions, and a look at what is left.
    if (restart == 0) {
      EXPECT_EQ(found->solves[0].turns, 6u);
    }
  }
  const auto iterated =
      Reversed(Once(kGrowing.m, kGrowing.c), {Implicit(Solve::kIteration, 1e-9)}, kGrowing.start());
  ASSERT_TRUE(iterated.ok()) << iterated.status();
  EXPECT_EQ(iterated->solves.at(0).capped, 1u);
}

// 1 - M turns every vector by a right angle: along A r nothing of r is left behind.
TEST(Gmres, GoesOnWhereTheResidualStandsStill) {
  const System turn = {{1, -1, 1, 1}, {1, 3}};
  const auto by_lu = Reversed(Once(turn.m, turn.c), {Implicit(Solve::kLu)}, turn.start());
  const auto found = Reversed(Once(turn.m, turn.c), {ByGmres(2)}, turn.start());
  const auto stuck = Reversed(Once(turn.m, turn.c), {ByGmres(1, 1e-9, 50)}, turn.start());
  ASSERT_TRUE(by_lu.ok() && found.ok() && stuck.ok());
  EXPECT_NEAR(found->gradients.at("p").Get(0), by_lu->gradients.at("p").Get(0), 1e-13);
  EXPECT_EQ(stuck->gradients.at("p").Get(0), 0.0);
  ASSERT_EQ(stuck->solves.size(), 1u);
  EXPECT_EQ(stuck->solves[0].turns, 50u);
  EXPECT_EQ(stuck->solves[0].capped, 1u);
  EXPECT_EQ(stuck->solves[0].residual, 1.0);
}

// A singular system has no solution, and a cotangent that is 0 needs no turn.
TEST(Gmres, OfNoSolutionIsFiniteAndToldAndOfZeroIsZero) {
  const System none = {{1, 0, 0, 1}, {1, 3}};
  const auto found = Reversed(Once(none.m, none.c), {ByGmres(2, 1e-9, 7)}, none.start());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->gradients.at("p").Get(0), 0.0);
  EXPECT_TRUE(found->health[0].ok);
  EXPECT_EQ(found->solves.at(0).capped, 1u);
  const auto unread = [](Builder& b) {
    Once(kGrowing.m, kGrowing.c)(b);
    b.program().objectives.clear();
    b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
      return 0.0 * b.Reduce(OpCode::kSum, states[0]);
    });
  };
  const auto nothing = Reversed(unread, {ByGmres(0)}, kGrowing.start());
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_EQ(nothing->gradients.at("p").Get(0), 0.0);
  EXPECT_EQ(nothing->solves.at(0).solves, 1u);
  EXPECT_EQ(nothing->solves.at(0).turns, 0u);
  EXPECT_EQ(nothing->solves.at(0).residual, 0.0);
}

// The change halves in every turn, from 1/2 on.
TEST(Told, TurnsCapAndResidualOfTheAdjoint) {
  const std::map<std::string, std::vector<double>> start = {{"x", {8.0}}};
  const auto told = [&](double tol, int64_t cap) {
    LoopChoice choice = Implicit(Solve::kIteration, tol);
    choice.max_iter = cap;
    const auto answer = Reversed(Halving(3), {choice}, start);
    EXPECT_TRUE(answer.ok() && answer->solves.size() == 1) << answer.status();
    return answer.ok() && answer->solves.size() == 1 ? answer->solves[0] : AdjointSolves();
  };
  const AdjointSolves within = told(0x1p-10, 100);
  EXPECT_EQ(within.site, "loop.adjoint");
  EXPECT_EQ(within.solves, 1u);
  EXPECT_EQ(within.turns, 11u);
  EXPECT_EQ(within.most_turns, 11u);
  EXPECT_EQ(within.capped, 0u);
  EXPECT_EQ(within.residual, 0x1p-11);
  const AdjointSolves last = told(0x1p-10, 11);  // the cap, and within the tolerance
  EXPECT_EQ(last.turns, 11u);
  EXPECT_EQ(last.capped, 0u);
  const AdjointSolves capped = told(0x1p-10, 10);
  EXPECT_EQ(capped.turns, 10u);
  EXPECT_EQ(capped.capped, 1u);
  EXPECT_EQ(capped.residual, 0x1p-10);
  for (const LoopChoice& quiet : {Implicit(Solve::kLu), Truncated(2)}) {
    const auto answer = Reversed(Halving(3), {quiet}, start);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->solves.empty());
  }
}

// Where counts would stand still or overflow, there are none, and no inputs for them.
TEST(Told, NothingWhereTheRoleOfGradientsIsNarrow) {
  Builder b("test");
  Halving(3)(b);
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  const auto told = [&](Format format) {
    precision::PolicySpec policy = tests::Preset("f64");
    policy.roles.push_back({"gradient", {.format = format}});
    AdjointSpec spec{.objective = "end", .wanted = {true, true}};
    spec.loops = {Implicit(Solve::kIteration)};
    const auto program = Lower(*world, tests::PolicyOf(policy), "end", spec);
    EXPECT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(program->program.inputs.size(), 2 + 2 * program->adjoint->told.size());
    return program->adjoint->told.size();
  };
  EXPECT_EQ(told(Format::kF64), 1u);
  EXPECT_EQ(told(Format::kF32), 1u);
  EXPECT_EQ(told(Format::kBf16), 0u);
  EXPECT_EQ(told(Format::kF16), 0u);
}

// Forward programs know nothing of it.
TEST(Told, ChangesNoForwardProgram) {
  Builder b("test");
  Halving(3)(b);
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  const auto lowered = [&](const std::vector<LoopChoice>& loops) {
    AdjointSpec spec{.objective = "end", .wanted = {true, true}};
    spec.loops = loops;
    auto program = Lower(*world, tests::PolicyOf(tests::Preset("f32")), "end", spec);
    EXPECT_TRUE(program.ok()) << program.status();
    return *std::move(program);
  };
  const NumericalProgram plain = lowered({});
  const NumericalProgram tells = lowered({ByGmres(2)});
  EXPECT_EQ(plain.forward_fingerprint, tells.forward_fingerprint);
  EXPECT_NE(plain.fingerprint, tells.fingerprint);
  EXPECT_NE(tells.text.find(" into data.loop.adjoint largest max"), std::string::npos);
  EXPECT_EQ(plain.text.find("loop.adjoint"), std::string::npos);
}

// One accumulation per parameter, however often the solver reverses the iteration.
TEST(Implicit, OnASiteInALoopSolvesInEveryTurn) {
  const auto world = [](Builder& b) {
    const Var x = b.State("x", {});
    const Var p = b.Param("p", {}, 1.0);
    WhileOptions options;
    options.site = "loop";
    options.max_iter = 40;
    const auto solved = [&](Var start, Var force) {
      return b
          .While(
              options, {start}, {},
              [&](const Vars& now, const Vars&) {
                return LoopTest{now[0], b.Literal(-1e9), std::nullopt, {}};
              },
              [&](const Vars& now, const Vars&, const Vars&) {
                return Vars{0.5 * now[0] + force * p};
              })
          .carried[0];
    };
    const Vars made =
        b.For(2, {x}, [&](Var, const Vars& now) { return Vars{solved(b.Literal(0.0), now[0])}; });
    b.SetNext({made[0]});
    AddEnd(b);
  };
  // 2 p x twice: 4 p^2 x.
  for (const Solve solver : {Solve::kLu, Solve::kIteration, Solve::kGmres}) {
    const auto answer = Reversed(world, {Implicit(solver)}, {{"x", {3.0}}, {"p", {1.5}}});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_NEAR(answer->gradients.at("p").Get(0), 8 * 1.5 * 3.0, 1e-9);
    EXPECT_NEAR(answer->gradients.at("x").Get(0), 4 * 1.5 * 1.5, 1e-9);
    if (solver == Solve::kLu) continue;
    const AdjointSolves& solves = answer->solves.at(0);
    EXPECT_EQ(solves.solves, 2u);
    EXPECT_GT(solves.most_turns, 0u);
    EXPECT_LT(solves.most_turns, solves.turns);
  }
}

// y <- y / 2 + q x from 0 inside of x <- y / 4 + p: x = p / (1 - q / 2).
TEST(Implicit, InsideAnotherAccumulatesOnce) {
  const auto world = [](Builder& b) {
    const Var x = b.State("x", {});
    const Var p = b.Param("p", {}, 3.0);
    const Var q = b.Param("q", {}, 0.5);
    const auto turns = [&](const char* site, Var start, const std::function<Var(Var)>& next) {
      WhileOptions options;
      options.site = site;
      options.max_iter = 60;
      return b
          .While(
              options, {start}, {},
              [&](const Vars& now, const Vars&) {
                return LoopTest{now[0], b.Literal(-1e9), std::nullopt, {}};
              },
              [&](const Vars& now, const Vars&, const Vars&) { return Vars{next(now[0])}; })
          .carried[0];
    };
    b.SetNext({turns("outer", x, [&](Var now) {
      const Var pushed = q * now;
      return 0.25 * turns("inner", b.Literal(0.0), [&](Var y) { return 0.5 * y + pushed; }) + p;
    })});
    AddEnd(b);
  };
  for (const Solve solver : {Solve::kLu, Solve::kIteration, Solve::kGmres}) {
    LoopChoice outer = Implicit(solver, 1e-13);
    outer.site = "outer";
    LoopChoice inner = outer;
    inner.site = "inner";
    const auto answer = Reversed(world, {outer, inner}, {{"x", {0.0}}});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_NEAR(answer->gradients.at("p").Get(0), 1 / 0.75, 1e-11);
    EXPECT_NEAR(answer->gradients.at("q").Get(0), 1.5 / (0.75 * 0.75), 1e-11);
  }
}

TEST(Choices, ThatDoNotFitAreRefused) {
  const auto field = [](const std::function<void(Builder&)>& world,
                        const std::vector<LoopChoice>& loops) {
    return FieldOf(Reversed(world, loops, {{"x", {8.0}}}).status());
  };
  LoopChoice other = Truncated(1);
  other.site = "other";
  EXPECT_EQ(field(Halving(3), {other}), "loops[0].site");
  EXPECT_EQ(field(Halving(3), {Truncated(1), Truncated(2)}), "loops[1].site");
  EXPECT_EQ(field(Halving(3), {Truncated(0)}), "loops[0].truncated");
  EXPECT_EQ(field(Halving(3), {Implicit(Solve::kLu, -1.0)}), "loops[0].implicit.tol");
  EXPECT_EQ(field(Halving(3), {Implicit(Solve::kLu, 1e-9, -1.0)}), "loops[0].implicit.damping");
  EXPECT_EQ(field(Halving(3), {ByGmres(-1)}), "loops[0].implicit.restart");
  EXPECT_EQ(field(Halving(3), {ByGmres(513)}), "loops[0].implicit.restart");
  EXPECT_EQ(field(Halving(3), {ByGmres(2, 1e-9, 1)}), "loops[0].implicit.max_iter");
  LoopChoice restarted = ByGmres(2);
  restarted.solver = Solve::kIteration;
  EXPECT_EQ(field(Halving(3), {restarted}), "loops[0].implicit.restart");
  LoopChoice endless = Implicit(Solve::kLu);
  endless.max_iter = 0;
  EXPECT_EQ(field(Halving(3), {endless}), "loops[0].implicit.max_iter");
  const auto exporting = [](Builder& b) {
    const Var x = b.State("x", {});
    WhileOptions options;
    options.site = "loop";
    options.max_iter = 3;
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& now, const Vars&) {
          return LoopTest{now[0], b.Literal(1.0), std::nullopt, {now[0] * now[0]}};
        },
        [](const Vars& now, const Vars&, const Vars&) { return Vars{0.5 * now[0]}; });
    b.SetNext({loop.exports[0]});
    AddEnd(b);
  };
  EXPECT_EQ(field(exporting, {Implicit(Solve::kLu)}), "loops[0]");
  EXPECT_EQ(field(exporting, {Truncated(1)}), "");
}

}  // namespace
}  // namespace simgrad::sim
