// The system of an implicit derivative, written into a step that runs it, against w + damping w - J' w = g.
#include "sim/program/implicit_solve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "tests/sanitized.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using enum OpCode;
using Solver = LoopChoice::Solver;

LoopChoice By(Solver solver, double damping = 0) {
  return {.how = LoopChoice::How::kImplicit,
          .solver = solver,
          .tol = 1e-14,
          .max_iter = 200,
          .damping = damping};
}

// J' of two values, a number a and two numbers b: J' (a, b) = (0.5 b0, (0.25 a + 0.125 b1, 0.25 b0)).
std::vector<double> TimesJ(const std::vector<double>& v) {
  return {0.5 * v[1], 0.25 * v[0] + 0.125 * v[2], 0.25 * v[1]};
}
// The same as operations.
std::vector<ValueId> WriteTimesJ(AdjointWriter& w, const std::vector<ValueId>& v) {
  const Type number{ElementType::kReal, {}};
  const Type two{ElementType::kReal, {2}};
  const auto scaled = [&](double by, ValueId x) {
    return w.Emit(kMul, {w.Number(by, number), x}, number);
  };
  const auto part = [&](int64_t start) {
    Op slice{.code = kSlice, .operands = {v[1]}};
    slice.attributes.start = {start};
    slice.attributes.shape = {1};
    Op reshape{.code = kReshape, .operands = {w.Emit(std::move(slice), {ElementType::kReal, {1}})}};
    return w.Emit(std::move(reshape), number);
  };
  const auto line = [&](ValueId x) {
    Op reshape{.code = kReshape, .operands = {x}};
    reshape.attributes.shape = {1};
    return w.Emit(std::move(reshape), {ElementType::kReal, {1}});
  };
  const ValueId b0 = part(0);
  const ValueId upper = w.Emit(kAdd, {scaled(0.25, v[0]), scaled(0.125, part(1))}, number);
  Op both{.code = kConcat, .operands = {line(upper), line(scaled(0.25, b0))}};
  both.attributes.axes = {0};
  return {scaled(0.5, b0), w.Emit(std::move(both), two)};
}

ValueId Holds(AdjointWriter& w) { return w.Number(1.0, {ElementType::kBool, {}}); }

struct Written {
  Builder b{"solve"};
  std::vector<ValueId> w;
};

// A step whose next states are w for g, its states.
void WriteSolve(Written& written, const LoopChoice& choice, const std::string& preset = "f64") {
  Builder& b = written.b;
  const Var a = b.State("a", {});
  const Var two = b.State("b", {2});
  Program& program = b.program();
  PassBudget budget;
  AdjointWriter writer(program, std::vector<bool>(program.values.size(), true), budget);
  Region& step = program.step;
  writer.Open(step);
  const std::string site = "fixed";
  written.w = SolveImplicit(writer, choice, site, {a.id, two.id}, Holds(writer),
                            tests::PolicyOf({.preset = preset}),
                            [&](const std::vector<ValueId>& v) { return WriteTimesJ(writer, v); });
  writer.Close(step);
  step.yields = written.w;
}

std::vector<double> Solved(const LoopChoice& choice, const std::vector<double>& g,
                           const std::string& preset = "f64") {
  Written written;
  WriteSolve(written, choice, preset);
  const auto lowered =
      tests::LowerForGradient(written.b.program(), tests::PolicyOf({.preset = preset}), "");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*lowered, 1, 1);
  work.batch.inputs[0] = tests::Shared({g[0]}, {});
  work.batch.inputs[1] = tests::Shared({g[1], g[2]}, {2});
  tests::Outcome outcome;
  auto result = tests::Execute(std::move(work), outcome.seen);
  EXPECT_TRUE(result.ok()) << result.status();
  outcome.result = *std::move(result);
  const std::vector<double> b = tests::FinalState(outcome, 1);
  return {tests::FinalState(outcome, 0)[0], b[0], b[1]};
}

// |J'| < 0.75, so numbers that change by less than 1e-14 are within 4e-14 of the solution.
TEST(ImplicitSolve, EverySolverGivesTheSolution) {
  const std::vector<double> g = {1.0, -2.0, 3.0};
  std::vector<LoopChoice> choices;
  for (const double damping : {0.0, 0.5}) {
    choices.push_back(By(Solver::kLu, damping));
    choices.push_back(By(Solver::kIteration, damping));
    for (const int64_t restart : {0, 1, 2, 3, 4}) {
      choices.push_back(By(Solver::kGmres, damping));
      choices.back().restart = restart;
    }
  }
  for (const LoopChoice& choice : choices) {
    const std::vector<double> w = Solved(choice, g);
    const std::vector<double> moved = TimesJ(w);
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR((1 + choice.damping) * w[k] - moved[k], g[k], 1e-13)
          << k << " " << choice.damping << " " << choice.restart;
    }
  }
}

// The text of a step that solves.
std::string TextOf(const LoopChoice& choice, const std::string& preset) {
  Written written;
  WriteSolve(written, choice, preset);
  const auto lowered =
      tests::LowerForGradient(written.b.program(), tests::PolicyOf({.preset = preset}), "");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return lowered->text;
}

TEST(ImplicitSolve, AToleranceThatIsLeftOpenIsThatOfF64InF64Alone) {
  for (const Solver solver : {Solver::kIteration, Solver::kGmres}) {
    LoopChoice open = By(solver);
    open.tol = 0;
    LoopChoice said = By(solver);
    said.tol = 1e-9;
    EXPECT_EQ(TextOf(open, "f64"), TextOf(said, "f64"));
    EXPECT_NE(TextOf(open, "f32"), TextOf(said, "f32"));
  }
}

// At the end r is what the format can tell from 0: by gmres |r| <= 4 eps |g|; by iteration J' of a
// change below 2 eps of the largest number of w, 3.2 of g's size, so 2 * 0.75 * 3.2 eps < 4 sqrt(14) eps of
// it. Small and large g alike, as both rules are relative.
TEST(ImplicitSolve, AToleranceThatIsLeftOpenIsReachedInEveryFormat) {
  const std::vector<std::pair<std::string, double>> formats = {
      {"f32", 0x1p-23}, {"bf16_unsafe", 0x1p-7}, {"f16_unsafe", 0x1p-10}};
  for (const auto& [preset, eps] : formats) {
    for (const Solver solver : {Solver::kIteration, Solver::kGmres}) {
      for (const double size : {0x1p-8, 1.0, 0x1p8}) {
        LoopChoice open = By(solver);
        open.tol = 0;
        const std::vector<double> g = {size, -2 * size, 3 * size};
        const std::vector<double> w = Solved(open, g, preset);
        const std::vector<double> moved = TimesJ(w);
        for (size_t k = 0; k < 3; ++k) {
          EXPECT_NEAR(w[k] - moved[k], g[k], 4 * eps * std::sqrt(14.0) * size) << preset << size;
        }
      }
    }
  }
}

// w for g, where J' v = by v.
std::vector<double> SolvedDiagonal(const LoopChoice& choice, const std::vector<double>& by,
                                   const std::vector<double>& g,
                                   const precision::PolicySpec& policy) {
  const int64_t count = static_cast<int64_t>(g.size());
  Builder b("diagonal");
  const Var state = b.State("g", {count});
  PassBudget budget;
  AdjointWriter writer(b.program(), std::vector<bool>(1, true), budget);
  Region& step = b.program().step;
  writer.Open(step);
  const Type row{ElementType::kReal, {count}};
  Op factors{.code = kLiteral};
  factors.attributes.literal = by;
  const ValueId diagonal = writer.Emit(std::move(factors), row);
  step.yields =
      SolveImplicit(writer, choice, "fixed", {state.id}, Holds(writer), tests::PolicyOf(policy),
                    [&](const std::vector<ValueId>& v) {
                      return std::vector<ValueId>{writer.Emit(kMul, {diagonal, v[0]}, row)};
                    });
  writer.Close(step);
  const auto lowered = tests::LowerForGradient(b.program(), tests::PolicyOf(policy), "");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*lowered, 1, 1);
  work.batch.inputs[0] = tests::Shared(g, {count});
  tests::Outcome outcome;
  auto result = tests::Execute(std::move(work), outcome.seen);
  EXPECT_TRUE(result.ok()) << result.status();
  outcome.result = *std::move(result);
  return tests::FinalState(outcome, 0);
}

// Rounding leaves more than such a tolerance asks for. Once r is small enough, all further directions are
// rounding, with steps that could spoil what was found.
TEST(ImplicitSolve, GmresThatCannotMeetItsToleranceGivesTheSolution) {
  for (const double tol : {1e-9, 1e-30}) {
    for (int k = 0; k < 400; k += kSanitized ? 19 : 1) {
      const double by = 0.5 - 0.001 * k;
      const double g = 1.0 / (1 + k);
      LoopChoice choice = By(Solver::kGmres);
      choice.max_iter = 100;
      choice.tol = tol;
      const std::vector<double> w =
          SolvedDiagonal(choice, {by, by, by}, {g, g, g}, {.preset = "f32"});
      for (const double number : w) EXPECT_NEAR((1 - by) * number / g, 1.0, 1e-6) << by;
    }
  }
}

// In f16 the norm of g would be 0, or infinite.
TEST(ImplicitSolve, GmresEndsInTheFormatOfTheAdjoint) {
  precision::PolicySpec policy{.preset = "f64"};
  policy.roles.push_back({"termination", {.format = Format::kF16}});
  for (const double g : {1e-9, 1.0, 1e6}) {
    const std::vector<double> w = SolvedDiagonal(By(Solver::kGmres), {0.5, -0.25}, {g, g}, policy);
    EXPECT_NEAR(0.5 * w[0] / g, 1.0, 1e-12) << g;
    EXPECT_NEAR(1.25 * w[1] / g, 1.0, 1e-12) << g;
  }
}

// w of none of them would be 0, and so would be a gradient that is not finite.
TEST(ImplicitSolve, GmresHandsOnWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(
      std::isnan(SolvedDiagonal(By(Solver::kGmres), {0.5, nan}, {1.0, 1.0}, {.preset = "f64"})[1]));
  EXPECT_TRUE(
      std::isnan(SolvedDiagonal(By(Solver::kGmres), {0.5, 0.5}, {nan, 1.0}, {.preset = "f64"})[0]));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(std::isfinite(
      SolvedDiagonal(By(Solver::kGmres), {0.5, 0.5}, {infinity, 1.0}, {.preset = "f64"})[0]));
  // In f16 the norm of g overflows.
  EXPECT_FALSE(std::isfinite(
      SolvedDiagonal(By(Solver::kGmres), {0.5, 0.5}, {6e4, 6e4}, {.preset = "f16_unsafe"})[0]));
}

// The loops that a choice writes for `numbers` numbers: their codes and sites.
std::string LoopsFor(const LoopChoice& choice, int64_t numbers) {
  Builder b("many");
  const Var g = b.State("g", {numbers});
  PassBudget budget;
  AdjointWriter writer(b.program(), std::vector<bool>(1, true), budget);
  Region region;
  writer.Open(region);
  const std::string site = "fixed";
  const absl::Status status = WithinBudget([&] {
    SolveImplicit(writer, choice, site, {g.id}, Holds(writer), tests::PolicyOf({.preset = "f64"}),
                  [](const std::vector<ValueId>& v) { return v; });
  });
  if (!status.ok()) return IsLimit(status) ? "limit" : "error";
  std::string loops;
  for (const Op& op : region.ops) {
    if (op.code == kFor) loops += "for " + std::to_string(op.attributes.max_iter);
    if (op.code == kWhile) loops += "while " + op.attributes.site;
  }
  return loops;
}

TEST(ImplicitSolve, ByItselfItTakesLuForFewNumbersAndIterationForMany) {
  EXPECT_EQ(LoopsFor(By(Solver::kDefault), kUsualLu), "for 64");
  EXPECT_EQ(LoopsFor(By(Solver::kDefault), kUsualLu + 1), "while fixed.adjoint");
}

TEST(ImplicitSolve, AChosenSolverIsTakenUpToItsLimit) {
  EXPECT_EQ(LoopsFor(By(Solver::kLu), kMostLu), "for 512");
  EXPECT_EQ(LoopsFor(By(Solver::kLu), kMostLu + 1), "limit");
  EXPECT_EQ(LoopsFor(By(Solver::kIteration), 1), "while fixed.adjoint");
  LoopChoice gmres = By(Solver::kGmres);
  EXPECT_EQ(LoopsFor(gmres, 1), "while fixed.adjoint");
  EXPECT_EQ(LoopsFor(gmres, kMostBasis), "while fixed.adjoint");  // one row
  EXPECT_EQ(LoopsFor(gmres, kMostBasis + 1), "limit");            // not even one
  gmres.restart = 3;
  EXPECT_EQ(LoopsFor(gmres, kMostBasis / 3), "while fixed.adjoint");
  EXPECT_EQ(LoopsFor(gmres, kMostBasis / 3 + 1), "limit");
}

TEST(ImplicitSolve, OfNoNumbersNothingIsWritten) {
  EXPECT_EQ(LoopsFor(By(Solver::kDefault), 0), "");
}

}  // namespace
}  // namespace simgrad::sim
