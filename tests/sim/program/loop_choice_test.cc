// Which loops of a world a request may choose for, and which choice is a loop's.
#include "sim/program/loop_choice.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/field_error.h"

namespace simgrad::sim {
namespace {

using How = LoopChoice::How;
using Solver = LoopChoice::Solver;

Var Loop(Builder& b, const std::string& site, Var x, int64_t elements = 0) {
  return b
      .While(
          {.site = site, .max_iter = 3, .elements = elements}, {x}, {},
          [&](const Vars& now, const Vars&) -> LoopTest {
            return {now[0], b.Literal(0.5), {}, {}};
          },
          [&](const Vars& now, const Vars&, const Vars&) -> Vars { return {0.5 * now[0]}; })
      .carried[0];
}

// Loops `outer`, `inner` in it, and `each` per element; an event `test`.
Program Loops() {
  Builder b("loops");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {2});
  const Var outer = b.While(
                         {.site = "outer", .max_iter = 2}, {x}, {},
                         [&](const Vars& now, const Vars&) -> LoopTest {
                           return {now[0], b.Literal(0.25), {}, {}};
                         },
                         [&](const Vars& now, const Vars&, const Vars&) -> Vars {
                           return {Loop(b, "inner", now[0])};
                         })
                        .carried[0];
  b.Event("test", x, Comparison::kGt, b.Literal(1.0));
  b.SetNext({outer, Loop(b, "each", y, 2)});
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *program;
}

LoopChoice Truncated(const std::string& site, int64_t last = 1) {
  LoopChoice choice;
  choice.site = site;
  choice.last = last;
  return choice;
}

LoopChoice Implicit(Solver solver = Solver::kDefault, const std::string& site = "outer") {
  LoopChoice choice;
  choice.site = site;
  choice.how = How::kImplicit;
  choice.solver = solver;
  choice.max_iter = 10;
  return choice;
}

std::string Refused(const std::vector<LoopChoice>& loops) {
  return FieldOf(CheckChoices(Loops(), loops));
}

TEST(CheckChoices, AcceptsLoopsOfTheStepInLoopsToo) {
  const absl::Status checked =
      CheckChoices(Loops(), {Implicit(), Truncated("inner"), Truncated("each", 1000)});
  EXPECT_TRUE(checked.ok()) << checked;
  EXPECT_TRUE(CheckChoices(Loops(), {}).ok());
}

TEST(CheckChoices, RefusesASiteThatIsNoLoopOfTheStep) {
  EXPECT_EQ(Refused({Truncated("nowhere")}), "loops[0].site");
  EXPECT_EQ(Refused({Truncated("outer"), Truncated("test")}), "loops[1].site");
  const absl::Status unknown = CheckChoices(Loops(), {Truncated("nowhere")});
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("world 'loops' has no loop 'nowhere'"), std::string::npos)
      << unknown;
}

TEST(CheckChoices, RefusesTwoChoicesForOneSite) {
  EXPECT_EQ(Refused({Truncated("outer"), Truncated("inner"), Implicit()}), "loops[2].site");
}

TEST(CheckChoices, RefusesALoopPerElementAsAFixedPoint) {
  EXPECT_EQ(Refused({Implicit(Solver::kDefault, "each")}), "loops[0]");
}

TEST(CheckChoices, ATruncatedLoopKeepsAnIteration) {
  EXPECT_EQ(Refused({Truncated("outer", 0)}), "loops[0].truncated");
  EXPECT_EQ(Refused({Truncated("outer", 1)}), "");
}

TEST(CheckChoices, ToleranceAndDampingAreFiniteAndNotNegative) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto with_tol = [](double tol) {
    LoopChoice choice = Implicit();
    choice.tol = tol;
    return Refused({choice});
  };
  const auto with_damping = [](double damping) {
    LoopChoice choice = Implicit();
    choice.damping = damping;
    return Refused({choice});
  };
  for (const double number : {-1e-9, kNaN, kInfinity}) {
    EXPECT_EQ(with_tol(number), "loops[0].implicit.tol") << number;
    EXPECT_EQ(with_damping(number), "loops[0].implicit.damping") << number;
  }
  for (const double number : {0.0, 1e-9}) {
    EXPECT_EQ(with_tol(number), "") << number;
    EXPECT_EQ(with_damping(number), "") << number;
  }
}

TEST(CheckChoices, IterationsAndRestartsLieInTheirRanges) {
  const auto refused = [](Solver solver, int64_t max_iter, int64_t restart) {
    LoopChoice choice = Implicit(solver);
    choice.max_iter = max_iter;
    choice.restart = restart;
    return Refused({choice});
  };
  EXPECT_EQ(refused(Solver::kIteration, 0, 0), "loops[0].implicit.max_iter");
  EXPECT_EQ(refused(Solver::kIteration, 100'001, 0), "loops[0].implicit.max_iter");
  EXPECT_EQ(refused(Solver::kIteration, 1, 0), "");
  EXPECT_EQ(refused(Solver::kIteration, 100'000, 0), "");
  // The last turn of gmres looks at the residual.
  EXPECT_EQ(refused(Solver::kGmres, 1, 0), "loops[0].implicit.max_iter");
  EXPECT_EQ(refused(Solver::kGmres, 2, 0), "");
  EXPECT_EQ(refused(Solver::kGmres, 2, -1), "loops[0].implicit.restart");
  EXPECT_EQ(refused(Solver::kGmres, 2, 513), "loops[0].implicit.restart");
  EXPECT_EQ(refused(Solver::kGmres, 2, 512), "");
  EXPECT_EQ(refused(Solver::kLu, 2, 1), "loops[0].implicit.restart");
}

// By site: the loops of a region and of those in it.
void Collect(const Region& region, std::vector<const Op*>& loops) {
  for (const Op& op : region.ops) {
    if (op.code == OpCode::kWhile) loops.push_back(&op);
    for (const Region& nested : op.regions) Collect(nested, loops);
  }
}

TEST(MarkChoices, ALoopFindsItsChoiceAndOthersNone) {
  const std::vector<LoopChoice> choices = {Truncated("inner", 2), Implicit()};
  PassBudget budget;
  const Program marked = MarkChoices(Loops(), choices, budget);
  std::vector<const Op*> loops;
  Collect(marked.step, loops);
  ASSERT_EQ(loops.size(), 3u);
  for (const Op* loop : loops) {
    const std::string& site = loop->attributes.site;
    const LoopChoice* expected = site == "inner" ? &choices[0] : nullptr;
    if (site == "outer") expected = &choices[1];
    EXPECT_EQ(ChoiceOf(*loop, choices), expected) << site;
  }
}

}  // namespace
}  // namespace simgrad::sim
