// Which comparisons become tests, under which names, and of which kinds.
#include "sim/program/name_tests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "sim/program/builder.h"
#include "sim/program/print.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

Program NamedAt(TestLevel level, const Builder& b) {
  Program program = const_cast<Builder&>(b).program();
  program.level = level;
  PassBudget budget;
  return NameTests(std::move(program), {}, budget);
}

void AddTests(const Region& region, std::string& tests) {
  for (const Op& op : region.ops) {
    if (IsTest(op))
      tests += op.attributes.site + ":" + std::string(TestKindName(op.attributes.kind)) + " ";
    if (op.code == kWhile) tests += op.attributes.site + " ";
    for (const Region& nested : op.regions) AddTests(nested, tests);
  }
}

// "name:kind " of every test, and "name " of every loop, in text order.
std::string Tests(TestLevel level, const Builder& b) {
  std::string tests;
  AddTests(NamedAt(level, b).step, tests);
  return tests;
}

Var Less(Builder& b, Var x, double bound, const std::string& site) {
  return b.Do(kLt, {x, b.Literal(bound)}, {.site = site});
}

// One test of each kind that follows from data flow.
void WriteOneOfEach(Builder& b) {
  const Var x = b.State("x", {});
  WhileOptions options{.site = "loop", .max_iter = 4};
  const LoopResult loop = b.While(
      options, {x}, {},
      [&](const Vars& carried, const Vars&) {
        return LoopPredicate{Less(b, carried[0], 2.0, "stop"), {}};
      },
      [&](const Vars& carried, const Vars&, const Vars&) { return Vars{0.5 * carried[0]}; });
  const Var guarded = Select(Less(b, x, 1e-5, "guard"), b.Literal(1.0), x);
  const Var chosen = Select(Less(b, x, 2e-5, "event"), guarded, loop.carried[0]);
  b.SetNext({chosen * b.Convert(Less(b, x, 3.0, "weight"), ElementType::kReal)});
}

TEST(NameTests, TheKindOfATestFollowsFromWhatItReaches) {
  Builder b("kinds");
  WriteOneOfEach(b);
  EXPECT_EQ(Tests(TestLevel::kAll, b),
            "loop stop:termination guard:guard event:event weight:weight ");
}

TEST(NameTests, AGuardComparesWithAnInfinityToo) {
  Builder b("infinities");
  const Var x = b.State("x", {});
  const double infinity = std::numeric_limits<double>::infinity();
  const Var below = Select(Less(b, x, infinity, "below"), x, b.Literal(1.0));
  const Var above = Select(Less(b, x, -infinity, "above"), below, x);
  b.SetNext({Select(Less(b, x, 1e300, "event"), above, x)});
  EXPECT_EQ(Tests(TestLevel::kAll, b), "below:guard above:guard event:event ");
}

TEST(NameTests, AGuardIsATestAtLevelAllAlone) {
  Builder b("levels");
  WriteOneOfEach(b);
  EXPECT_EQ(Tests(TestLevel::kDecisions, b), "loop stop:termination event:event weight:weight ");
  EXPECT_EQ(Tests(TestLevel::kLoops, b), "loop ");
  EXPECT_EQ(Print(NamedAt(TestLevel::kDeclared, b)), Print(b.program()));
}

TEST(NameTests, ASmallNumberGuardsOnlyWhereSelectsAloneReadTheComparison) {
  Builder b("carried");
  const Var x = b.State("x", {});
  b.State("low", {}, "", ElementType::kBool);
  const Var is_low = Less(b, x, 0.0, "low");
  b.SetNext({Select(is_low, x, -x), is_low});
  EXPECT_EQ(Tests(TestLevel::kAll, b), "low:event ");
}

TEST(NameTests, ATestIsCalledByItsNameElseByItsSiteElseByItsOperation) {
  Builder b("names");
  const Var x = b.State("x", {});
  Var y = Select(b.Apply(kGe, {x, b.Literal(1.0)}), x, -x);
  {
    SiteScope site(b, "solver");
    y = Select(b.Apply(kGe, {y, b.Literal(2.0)}), x, y);
    y = Select(b.Do(kGe, {y, b.Literal(3.0)}, {.site = "own"}), x, y);
  }
  b.SetNext({y});
  EXPECT_EQ(Tests(TestLevel::kDecisions, b), "ge:event solver:event own:event ");
}

TEST(NameTests, OfOneNameTheFirstInTheTextKeepsItAndLaterOnesAreNumbered) {
  Builder b("twice");
  const Var x = b.State("x", {});
  const Var first = Select(Less(b, x, 1.0, "near"), x, -x);
  const Var event = b.Event("near", first, Comparison::kGt, x);
  b.SetNext({Select(event, first, Select(Less(b, x, 2.0, "near"), x, first))});
  EXPECT_EQ(Tests(TestLevel::kDecisions, b), "near:event near#1:event near#2:event ");
}

TEST(NameTests, ADeclaredKindComesBeforeDataFlow) {
  Builder b("declared");
  const Var x = b.State("x", {});
  const Var inside =
      b.Do(kLt, {x, b.Literal(1e-6)}, {.site = "pair", .kind = TestKind::kMembership});
  b.SetNext({Select(inside, x, -x)});
  EXPECT_EQ(Tests(TestLevel::kDecisions, b), "pair:membership ");
}

TEST(NameTests, AnEventComparesWhatTheComparisonCompared) {
  Builder b("same");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  const Var ge = b.Apply(kGe, {x, y});
  b.SetNext({Select(ge, x, y), y});
  const Program named = NamedAt(TestLevel::kAll, b);
  const Op& event = named.step.ops[0];
  EXPECT_EQ(event.code, kEvent);
  EXPECT_EQ(event.attributes.comparison, Comparison::kGe);
  EXPECT_EQ(event.operands, (std::vector<ValueId>{x.id, y.id}));
  EXPECT_EQ(event.results, std::vector<ValueId>{ge.id});
}

TEST(NameTests, ComparisonsOfIntegersAndThoseOutsideTheStepStay) {
  Builder b("others");
  const Var x = b.State("x", {});
  const Var n = b.State("n", {}, "", ElementType::kI32);
  b.SetNext({Select(b.Apply(kLt, {n, b.Integer(3)}), x, -x), n});
  b.AddObjective("cost", nullptr, [&](const Vars& states, const Vars&) {
    return Select(Less(b, states[0], 1.0, "end"), states[0], b.Literal(1.0));
  });
  const std::string named = Print(NamedAt(TestLevel::kAll, b));
  EXPECT_EQ(named.find("event"), std::string::npos) << named;
}

TEST(NameTests, AComparisonOfIntegersIsNoSiteWhateverItsName) {
  Builder b("named");
  const Var x = b.State("x", {});
  const Var n = b.State("n", {}, "", ElementType::kI32);
  const Var few = b.Do(kLt, {n, b.Integer(3)}, {.site = "near", .kind = TestKind::kMembership});
  b.SetNext({Select(few, Select(Less(b, x, 1.0, "near"), x, -x), x), n});
  EXPECT_EQ(Tests(TestLevel::kDecisions, b), "near:event ");
  for (const Program& program : {b.program(), NamedAt(TestLevel::kDecisions, b)}) {
    const std::vector<Site> sites = SitesOf(program);
    ASSERT_EQ(sites.size(), 1u);
    EXPECT_EQ(sites[0].name, "near");
  }
}

TEST(NameTests, AConversionIsAChoiceWhereItsIntegerChooses) {
  Builder b("conversions");
  const Var x = b.State("x", {4});
  const Var first = b.Reduce(kSum, x);
  const Var weighs = b.Convert(b.Convert(first, ElementType::kI32), ElementType::kReal);
  const Var place = b.Reshape(b.Convert(first, ElementType::kI32), {1});
  const Var taken = b.Do(kGather, {x, place}, {.axes = {0}, .bounds = Bounds::kClip});
  b.SetNext({b.Broadcast(weighs * b.Reshape(taken, {}), {4}, {})});
  EXPECT_EQ(Tests(TestLevel::kDecisions, b), "convert:event ");
  EXPECT_EQ(Tests(TestLevel::kLoops, b), "");
}

// The operation that gives the upper number of the pair of the choice by min(floor(x) - 1, bound).
OpCode UpperOfChoice(double bound) {
  Builder b("bounded");
  const Var x = b.State("x", {1});
  const Var y = b.Broadcast(b.Literal(bound), {1}, {});
  const Var below = b.Apply(kFloor, {x * x}) - b.Broadcast(b.Literal(1.0), {1}, {});
  const Var place = b.Convert(b.Apply(kMin, {y, below}), ElementType::kI32);
  b.SetNext({b.Do(kGather, {x, place}, {.axes = {0}, .bounds = Bounds::kClip})});
  const Program program = NamedAt(TestLevel::kDecisions, b);
  ValueId above{};
  for (const Op& op : program.step.ops) {
    if (op.code == kChoice) above = op.operands[1];
  }
  for (const Op& op : program.step.ops) {
    if (op.results[0] == above) return op.code;
  }
  return kLiteral;
}

TEST(NameTests, WholeNumbersThatBoundOrShiftLeaveTheRoundingToDecide) {
  EXPECT_EQ(UpperOfChoice(4), kMul);
  EXPECT_EQ(UpperOfChoice(4.5), kAbs);
}

// The operations that `moves` reshapes behind a floor add to the program, beside the choice itself.
size_t ReshapesOfChoice(int moves) {
  Builder b("far");
  const Var x = b.State("x", {1});
  Var whole = b.Apply(kFloor, {x});
  for (int k = 0; k < moves; ++k) {
    whole = k % 2 == 0 ? b.Reshape(whole, {1, 1}) : b.Reshape(whole, {1});
  }
  const Var place =
      b.Convert(b.Reduce(kSum, b.Convert(whole, ElementType::kI32)), ElementType::kI32);
  b.SetNext({b.Do(kGather, {x, b.Reshape(place, {1})}, {.axes = {0}, .bounds = Bounds::kClip})});
  const auto count = [](const Program& program) {
    return static_cast<size_t>(std::count_if(program.step.ops.begin(), program.step.ops.end(),
                                             [](const Op& op) { return op.code == kReshape; }));
  };
  return count(NamedAt(TestLevel::kDecisions, b)) - count(b.program());
}

TEST(NameTests, MovesBehindARoundingAreRepeatedUpToABound) {
  EXPECT_EQ(ReshapesOfChoice(2), 2u);
  EXPECT_EQ(ReshapesOfChoice(16), 16u);
  EXPECT_EQ(ReshapesOfChoice(17), 0u);
}

}  // namespace
}  // namespace simgrad::sim
