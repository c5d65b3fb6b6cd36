// Planted flips: one test of a program moves across its threshold by one ulp of its operands, and
// the decisions tell which test it was, in which step. Tests that move by half of the margin that
// was reported do not flip.
//
// Each program has a test that only matters at one step: there its operand is tied to its
// threshold, before and after that step it lies far away. One ulp breaks the tie to one side
// (planted) or to the side on which it stands (a control, which must change nothing).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "precision/rounding.h"
#include "precision/ulp.h"
#include "sim/program/builder.h"
#include "tests/sanitized.h"
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
using tests::SeenRun;

constexpr int64_t kSteps = 5;
constexpr int64_t kInstances = 3;

float Next(float x, float to) { return std::nextafterf(x, to); }

enum class Kind : int {
  kEvent,
  kComparison,
  kBranch,
  kLoop,
  kPredicate,
  kArgmax,
  kArgmin,
  kArgsort,
  kPlace,
  kTruth,
  kPivot,
  kRoot,
};
constexpr int kKinds = 12;

// What is planted: the operand at the tie, and on the other side of it.
struct Plant {
  Kind kind = Kind::kEvent;
  int64_t step = 0;
  size_t instance = 0;
  float tie = 1.0f;
  float beyond = 1.0f;   // one ulp away: the test decides otherwise
  float control = 1.0f;  // one ulp the other way: it does not
  float far = 100.0f;    // at the other steps
  std::string site;
};

Plant MakePlant(Random& random, uint64_t number) {
  Plant plant;
  plant.kind = static_cast<Kind>(number % kKinds);
  plant.step = random.Integer(0, kSteps - 1);
  plant.instance = static_cast<size_t>(random.Integer(0, kInstances - 1));
  const float x = static_cast<float>(random.Uniform(1.0, 3.9));
  plant.tie = x;
  plant.beyond = Next(x, 100.0f);
  plant.control = Next(x, -100.0f);
  const auto upward = [&] { std::swap(plant.beyond, plant.control); };
  switch (plant.kind) {
    case Kind::kEvent:
    case Kind::kComparison:
    case Kind::kBranch:
      plant.far = -100.0f;
      break;
    case Kind::kLoop:
    case Kind::kPredicate:
      plant.far = 0.0f;
      break;
    case Kind::kArgmax:
      plant.far = -100.0f;
      break;
    case Kind::kArgmin:
      upward();
      break;
    case Kind::kArgsort:
      upward();
      break;
    case Kind::kPlace:
      plant.tie = static_cast<float>(random.Integer(1, 3));
      plant.beyond = Next(plant.tie, 0.0f);
      plant.control = Next(plant.tie, 100.0f);
      plant.far = 0.5f;
      break;
    case Kind::kTruth:
      plant.tie = 0.0f;
      plant.beyond = Next(0.0f, random.Chance(0.5) ? 1.0f : -1.0f);
      plant.control = -0.0f;
      plant.far = 1.0f;
      break;
    case Kind::kPivot:
      plant.far = 0.25f;
      break;
    case Kind::kRoot:
      plant.tie = 0.0f;
      plant.beyond = Next(0.0f, 1.0f);
      plant.control = Next(0.0f, -1.0f);
      plant.far = 4.0f;
      break;
  }
  return plant;
}

Vars TestOf(Builder& b, const Plant& plant, Var operand, Var x) {
  const Var rival = b.Literal(plant.tie);
  SiteScope scope(b, plant.kind == Kind::kLoop || plant.kind == Kind::kPredicate ? "" : plant.site);
  const auto both = [&](Var one, Var other) {
    return b.Concat({b.Reshape(one, {1}), b.Reshape(other, {1})}, 0);
  };
  const auto real = [&](Var n) { return b.Convert(n, ElementType::kReal); };
  const auto along = [](int64_t axis) { return Attributes{.axes = {axis}}; };
  switch (plant.kind) {
    case Kind::kEvent:
      return {Select(b.Event(plant.site, operand, Comparison::kGt, rival), x, 0.5 * x)};
    case Kind::kComparison:
      return {Select(b.Apply(OpCode::kGt, {operand, rival}), x, 0.5 * x)};
    case Kind::kBranch:
      return b.Cond(b.Apply(OpCode::kGt, {operand, rival}), {x},
                    {[](const Vars& args) { return args; },
                     [](const Vars& args) { return Vars{0.5 * args[0]}; }});
    case Kind::kLoop: {
      // 8 tie, 4 tie, 2 tie, tie: the fourth test is at the threshold.
      const WhileOptions options{.site = plant.site, .max_iter = 6};
      return {b.While(
                   options, {b.Literal(8.0 * plant.tie)}, {},
                   [&](const Vars& now, const Vars&) {
                     return LoopTest{now[0], operand, {}, {}};
                   },
                   [](const Vars& now, const Vars&, const Vars&) { return Vars{0.5 * now[0]}; })
                  .carried[0]};
    }
    case Kind::kPredicate: {
      const WhileOptions options{.site = plant.site, .max_iter = 6};
      return {b.While(
                   options, {b.Literal(8.0 * plant.tie)}, {},
                   [&](const Vars& now, const Vars&) {
                     const Var small = b.Apply(OpCode::kLt, {now[0], operand});
                     const Var strange = b.Apply(OpCode::kGt, {now[0], b.Literal(1e4)});
                     return LoopPredicate{b.Apply(OpCode::kOr, {small, strange}), {}};
                   },
                   [](const Vars& now, const Vars&, const Vars&) { return Vars{0.5 * now[0]}; })
                  .carried[0]};
    }
    case Kind::kArgmax:
      return {real(b.Reduce(OpCode::kArgmax, both(rival, operand), {0}))};
    case Kind::kArgmin:
      return {real(b.Reduce(OpCode::kArgmin, both(rival, operand), {0}))};
    case Kind::kArgsort: {
      const Var order = b.Do(OpCode::kArgsort, {both(rival, operand)}, along(0));
      return {real(b.Reshape(b.Slice(order, {0}, {1}), {}))};
    }
    case Kind::kPlace: {
      Attributes how = along(0);
      how.bounds = Bounds::kClip;
      const Var table = b.LiteralArray({1, 2, 4, 8}, {4});
      return {b.Do(OpCode::kGather, {table, b.Convert(operand, ElementType::kI32)}, how)};
    }
    case Kind::kTruth:
      return {Select(b.Convert(operand, ElementType::kBool), x, 0.5 * x)};
    case Kind::kPivot: {
      const Var row = both(rival, b.Literal(1.0));
      const Var other = both(operand, b.Literal(7.0));
      const Var matrix = b.Concat({b.Reshape(row, {1, 2}), b.Reshape(other, {1, 2})}, 0);
      const Var order = b.Apply(OpCode::kLuPermutation, {matrix});
      return {real(b.Reshape(b.Slice(order, {0}, {1}), {}))};
    }
    case Kind::kRoot: {
      const Var factor = b.Apply(OpCode::kCholesky, {b.Reshape(operand, {1, 1})});
      return {b.Reshape(factor, {})};
    }
  }
  return {};
}

// What else the program decides: it has nothing to do with the plant.
void WriteOthers(Builder& b, Random& random, const Vars& x) {
  for (int64_t k = random.Integer(1, 3); k > 0; --k) {
    const Var threshold = b.Literal(random.Uniform(-1.0, 1.0));
    const Var lhs = random.Pick(x);
    const std::string site = absl::StrCat("other_", k);
    if (random.Chance(0.5)) {
      b.Event(site, lhs, Comparison::kLt, threshold);
    } else {
      b.While(
          {.site = site, .max_iter = 4}, {lhs}, {},
          [&](const Vars& now, const Vars&) {
            return LoopTest{now[0], threshold, {}, {}};
          },
          [](const Vars& now, const Vars&, const Vars&) { return Vars{0.25 * now[0]}; });
    }
  }
}

std::shared_ptr<const NumericalProgram> ProgramOf(Random random, const Plant& plant) {
  Builder b("planted");
  b.program().level = TestLevel::kDecisions;
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  const Var planted = b.Param("planted", {});
  const Var step = b.StepIndex();
  const Var is_now = b.Apply(OpCode::kEq, {step, b.Integer(plant.step)});
  const bool before = random.Chance(0.5);
  if (before) WriteOthers(b, random, {x});
  const Var operand = Select(is_now, planted, b.Literal(plant.far));
  const Vars result = TestOf(b, plant, operand, y);
  if (!before) WriteOthers(b, random, {x});
  // Half of the programs hand the outcome on: everything after the step may differ.
  const Var next = 0.9 * x + 0.3 * b.Apply(OpCode::kSin, {3.0 * x});
  const bool hands_on = plant.kind != Kind::kRoot && random.Chance(0.5);
  b.SetNext({hands_on ? next + 0.01 * result[0] : next, 0.5 * y + 0.1 * x});
  b.Export("result", result[0]);
  return tests::InF32(b);
}

// Of all instances, or of one of them by itself.
SeenRun RunPlanted(const std::shared_ptr<Executor>& executor,
                   const std::shared_ptr<const NumericalProgram>& program, const Plant& plant,
                   float operand, std::optional<size_t> alone = std::nullopt) {
  Work work = tests::WorkOf(*program, alone ? 1 : kInstances, kSteps);
  std::vector<double> planted(kInstances, plant.tie);
  planted[plant.instance] = operand;
  const auto bind = [&](InputKind kind, const std::string& name, std::vector<double> numbers) {
    if (alone) numbers = {numbers[*alone]};
    const int64_t count = static_cast<int64_t>(numbers.size());
    Bind(work, kind, name, {tests::Doubles(numbers, {count}), true, false});
  };
  if (alone) work.batch.instance_ids = {*alone};
  bind(InputKind::kParam, "planted", planted);
  bind(InputKind::kState, "x", {0.1, -0.7, 0.4});
  bind(InputKind::kState, "y", {1.0, 2.0, 3.0});
  return RunSeen(executor, std::move(work));
}

struct Flip {
  int64_t step = -1;
  std::string site;
};

// The first step, and in it the first site in text order, whose decisions differ.
std::optional<Flip> FirstFlip(const std::vector<Site>& sites, const StepDiagnostics& a,
                              const StepDiagnostics& b) {
  for (size_t t = 0; t < static_cast<size_t>(a.steps); ++t) {
    for (const Site& site : sites) {
      const size_t k = static_cast<size_t>(site.number);
      const bool same = site.kind == SiteKind::kTermination
                            ? a.terminations[k][t] == b.terminations[k][t]
                            : a.events[k][t] == b.events[k][t];
      if (!same) return Flip{static_cast<int64_t>(t), site.name};
    }
  }
  return std::nullopt;
}

TEST(PlantedFlips, EachIsFoundAndNamedAndNoOtherIs) {
  int found = 0, named = 0, wrong = 0;
  constexpr int kPrograms = kSanitized ? 40 : 200;
  const auto executors = TestedExecutors();
  for (int seed = 0; seed < kPrograms; ++seed) {
    Random random(static_cast<uint64_t>(seed) + 1);
    Plant plant = MakePlant(random, static_cast<uint64_t>(seed));
    plant.site = absl::StrCat("planted_", seed % 7);
    const auto program = ProgramOf(random, plant);
    for (const auto& executor : executors) {
      const SeenRun before = RunPlanted(executor, program, plant, plant.tie);
      const SeenRun after = RunPlanted(executor, program, plant, plant.beyond);
      const SeenRun control = RunPlanted(executor, program, plant, plant.control);
      std::optional<size_t> who;
      for (size_t i = 0; i < kInstances; ++i) {
        const bool differs = before.result.path_signatures[i] != after.result.path_signatures[i];
        const bool by_itself =
            before.result.path_signatures[i] != control.result.path_signatures[i];
        if (differs) who = i;
        found += differs && i == plant.instance ? 1 : 0;
        wrong += (differs && i != plant.instance ? 1 : 0) + (by_itself ? 1 : 0);
      }
      // Signatures say whose path it is; of it alone diagnostics say where.
      if (!who) continue;
      const SeenRun one = RunPlanted(executor, program, plant, plant.tie, who);
      const SeenRun other = RunPlanted(executor, program, plant, plant.beyond, who);
      EXPECT_EQ(one.result.path_signatures[0], before.result.path_signatures[*who]);
      EXPECT_EQ(other.result.path_signatures[0], after.result.path_signatures[*who]);
      const auto flip = FirstFlip(program->sites, one.diagnostics, other.diagnostics);
      const bool is_named = flip && flip->step == plant.step && flip->site == plant.site;
      named += is_named ? 1 : 0;
      EXPECT_TRUE(is_named) << seed << " on " << executor->name() << ": "
                            << (flip ? absl::StrCat(flip->site, " at ", flip->step) : "none")
                            << "\n"
                            << program->text;
    }
  }
  const int planted = kPrograms * static_cast<int>(executors.size());
  EXPECT_EQ(found, planted);  // recall
  EXPECT_EQ(named, planted);
  EXPECT_EQ(wrong, 0);  // precision
}

// ---- half of the margin ----

// A test of its own operand in a formula.
struct Leaf {
  int kind = 0;  // 0: x < 1, 1: x + c > 1, 2: the index of the largest, 3: a conversion
  double constant = 0.0;
};

Var WriteLeaf(Builder& b, const Leaf& leaf, Var x) {
  const auto is = [&](Var n, int64_t to) { return b.Apply(OpCode::kEq, {n, b.Integer(to)}); };
  switch (leaf.kind) {
    case 0:
      return b.Apply(OpCode::kLt, {x, b.Literal(1.0)});
    case 1:
      return b.Apply(OpCode::kGt, {x + b.Literal(leaf.constant), b.Literal(leaf.constant + 1.0)});
    case 2: {
      const Var rivals = b.Concat({b.Reshape(x, {1}), b.LiteralArray({0.25, 1.0}, {2})}, 0);
      return is(b.Reduce(OpCode::kArgmax, rivals, {0}), 0);
    }
    default:
      return is(b.Convert(x, ElementType::kI32), 1);
  }
}

Var Formula(Builder& b, Random& random, Vars leaves) {
  while (leaves.size() > 1) {
    const Var a = leaves.back();
    leaves.pop_back();
    Var& c =
        leaves[static_cast<size_t>(random.Integer(0, static_cast<int64_t>(leaves.size()) - 1))];
    const Var other = random.Chance(0.3) ? Not(a) : a;
    switch (random.Integer(0, 5)) {
      case 0:
      case 1:
        c = b.Concat({b.Reshape(other, {1}), b.Reshape(c, {1})}, 0);
        c = b.Reduce(random.Chance(0.5) ? OpCode::kAny : OpCode::kAll, c, {0});
        break;
      case 2:
        c = Select(other, c, random.Chance(0.5) ? Not(c) : other);
        break;
      default: {
        static const std::vector<OpCode> kJoins = {OpCode::kAnd, OpCode::kOr, OpCode::kXor};
        c = b.Apply(random.Pick(kJoins), {other, c});
      }
    }
  }
  return leaves[0];
}

std::shared_ptr<const NumericalProgram> FormulaProgram(Random random,
                                                       const std::vector<Leaf>& leaves) {
  Builder b("formula");
  b.program().level = TestLevel::kDecisions;
  Vars inputs;
  for (size_t k = 0; k < leaves.size(); ++k) {
    inputs.push_back(b.Param(absl::StrCat("x", k), {}));
  }
  const Var state = b.State("s", {});
  const WhileOptions options{.site = "formula", .max_iter = 1, .cap_order = CapOrder::kCapFirst};
  b.While(
      options, {state}, {},
      [&](const Vars&, const Vars&) {
        Vars tests;
        for (size_t k = 0; k < leaves.size(); ++k) {
          tests.push_back(WriteLeaf(b, leaves[k], inputs[k]));
        }
        return LoopPredicate{Formula(b, random, tests), {}};
      },
      [](const Vars& now, const Vars&, const Vars&) { return now; });
  b.SetNext({state});
  return tests::InF32(b);
}

struct Evaluated {
  bool held = false;
  double ulps = 0.0;
};

Evaluated Evaluate(const std::shared_ptr<Executor>& executor,
                   const std::shared_ptr<const NumericalProgram>& program,
                   const std::vector<double>& x) {
  Work work = tests::WorkOf(*program, 1, 1);
  for (size_t k = 0; k < x.size(); ++k) {
    Bind(work, InputKind::kParam, absl::StrCat("x", k), tests::Shared({x[k]}, {}));
  }
  Bind(work, InputKind::kState, "s", tests::Shared({1.0}, {}));
  const SeenRun seen = RunSeen(executor, std::move(work));
  const TerminationStep& step = seen.diagnostics.terminations.at(0).at(0);
  return {step.iterations_max == 0, std::abs(step.margin.ulps)};
}

// x moved by up to `ulps` of the scale of its test.
double Moved(const Leaf& leaf, double x, double ulps) {
  const double largest = leaf.kind == 1 ? leaf.constant + 1.0 : std::max(std::abs(x), 1.0);
  const double reach = std::abs(ulps) * precision::Ulp(Format::kF32, largest);
  double moved = precision::RoundTo(Format::kF32, x + std::copysign(reach, ulps));
  while (std::abs(moved - x) > reach) {
    moved = std::nextafterf(static_cast<float>(moved), static_cast<float>(x));
  }
  return moved;
}

TEST(PlantedFlips, HalfOfTheMarginFlipsNoFormula) {
  constexpr int kPrograms = kSanitized ? 40 : 200;
  int programs = 0, moved = 0, flipped = 0;
  const auto executors = TestedExecutors();
  for (uint64_t seed = 1; programs < kPrograms; ++seed) {
    ASSERT_LE(seed, 2 * kPrograms);
    Random random(seed);
    std::vector<Leaf> leaves(static_cast<size_t>(random.Integer(1, 4)));
    std::vector<double> x;
    for (Leaf& leaf : leaves) {
      leaf = {static_cast<int>(random.Integer(0, 3)), random.Uniform(1.0, 900.0)};
      leaf.constant = precision::RoundTo(Format::kF32, leaf.constant);
      // Near 1, by some tens of its own ulps.
      x.push_back(Moved(leaf, 1.0, random.Uniform(-60.0, 60.0)));
    }
    const auto program = FormulaProgram(random, leaves);
    // Half a margin of less than four ulps is lost in the rounding of a sum: another program.
    if (Evaluate(executors.front(), program, x).ulps < 4.0) continue;
    ++programs;
    for (const auto& executor : executors) {
      const Evaluated before = Evaluate(executor, program, x);
      ASSERT_TRUE(std::isfinite(before.ulps)) << seed;
      ASSERT_GE(before.ulps, 4.0) << seed;
      for (int turn = 0; turn < 3; ++turn) {
        std::vector<double> to;
        for (size_t k = 0; k < x.size(); ++k) {
          const double half = 0.5 * before.ulps;
          to.push_back(Moved(leaves[k], x[k], random.Chance(0.5) ? half : -half));
        }
        const Evaluated after = Evaluate(executor, program, to);
        EXPECT_EQ(after.held, before.held) << seed << " on " << executor->name();
        flipped += after.held != before.held ? 1 : 0;
        ++moved;
      }
    }
  }
  EXPECT_EQ(moved, 3 * kPrograms * static_cast<int>(executors.size()));
  EXPECT_EQ(flipped, 0);
}

}  // namespace
}  // namespace simgrad::sim
