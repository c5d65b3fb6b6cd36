// What decisions hang on, and the numbers of the tests that may decide.
#include "sim/program/decision_margin.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/op/expansion.h"
#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// The named values that are marked, in the order in which they were made.
std::string Names(const Builder& b, const std::vector<bool>& marked) {
  const Program& program = const_cast<Builder&>(b).program();
  std::string names;
  for (size_t i = 0; i < marked.size(); ++i) {
    if (marked[i] && !program.values[i].name.empty()) names += program.values[i].name + " ";
  }
  return names;
}

Var Below(Builder& b, Var x, double bound, const std::string& name) {
  return b.Named(b.Apply(kLt, {x, b.Literal(bound)}), name);
}

// A loop that stops where a number is small or a bool that it carries holds; `aside` selects reals.
void WriteLoop(Builder& b) {
  const Var x = b.State("x", {});
  const Var flag = Below(b, x, 5.0, "entering");
  const Var aside = Below(b, x, 6.0, "aside");
  const LoopResult loop = b.While(
      WhileOptions{.site = "loop", .max_iter = 4}, {x, flag}, {},
      [&](const Vars& carried, const Vars&) {
        const Var small = Below(b, carried[0], 1.0, "small");
        const Var event = b.Event("event", carried[0], Comparison::kGt, b.Literal(9.0));
        const Var either = b.Apply(kOr, {small, b.Apply(kOr, {event, carried[1]})});
        return LoopPredicate{b.Named(either, "stop"), {}};
      },
      [&](const Vars& carried, const Vars&, const Vars&) {
        return Vars{0.5 * carried[0], Below(b, carried[0], 2.0, "turning")};
      });
  b.SetNext({Select(aside, loop.carried[0], x)});
}

TEST(DecisionMargin, APredicateHangsOnWhatItsBooleansAreMadeOfThroughWhatTheLoopCarries) {
  Builder b("behind");
  WriteLoop(b);
  // `entering` twice: the comparison, and the argument that carries it.
  EXPECT_EQ(Names(b, BehindPredicates(b.program())), "entering entering small stop turning ");
}

TEST(DecisionMargin, WithoutAPredicateNothingIsBehindOneAndNoTestIsNumbered) {
  Builder b("none");
  const Var x = b.State("x", {});
  b.SetNext({Select(b.Event("event", x, Comparison::kLt, b.Literal(1.0)), x, -x)});
  EXPECT_TRUE(BehindPredicates(b.program()).empty());
  const DecidingTests tests = DecidingTestsOf(b.program(), SitesOf(b.program()));
  EXPECT_EQ(tests.names, std::vector<std::string>{"event"});
  EXPECT_EQ(tests.Of(x.id), 0u);
}

TEST(DecisionMargin, TestsWithAndWithoutASiteAreNumberedInTextOrder) {
  Builder b("numbers");
  b.Label("line 7");
  WriteLoop(b);
  const DecidingTests tests = DecidingTestsOf(b.program(), SitesOf(b.program()));
  // `small` is computed for the site of the loop; `aside` decides nothing.
  EXPECT_EQ(tests.names, (std::vector<std::string>{"line 7", "loop", "loop", "event", "line 7"}));
  std::string numbered;
  for (size_t i = 0; i < tests.of_value.size(); ++i) {
    const std::string& name = b.program().values[i].name;
    if (tests.of_value[i] == 0) continue;
    numbered += (name.empty() ? "event" : name) + std::to_string(tests.of_value[i]) + " ";
  }
  EXPECT_EQ(numbered, "entering1 small3 event4 turning5 ");
  EXPECT_EQ(tests.Of("loop"), 2u);
  EXPECT_EQ(tests.Of("event"), 4u);
  EXPECT_EQ(tests.Of("aside"), 0u);
}

TEST(DecisionMargin, AnUnlistedTestWithoutSiteAndLineIsCalledByItsOperation) {
  Builder b("called");
  WriteLoop(b);
  EXPECT_EQ(DecidingTestsOf(b.program(), SitesOf(b.program())).names,
            (std::vector<std::string>{"lt", "loop", "loop", "event", "lt"}));
}

TEST(DecisionMargin, AChoiceHangsOnItsPairAndNotOnWhatWasChosen) {
  for (const bool is_choice : {false, true}) {
    Builder b("choice");
    const Var x = b.State("x", {});
    const Var chosen = b.Named(b.Convert(x, ElementType::kI32), "chosen");
    const Var given = is_choice ? b.Choice("choice", chosen, x, b.Literal(1.0)) : chosen;
    const Var zero = b.Apply(kEq, {given, b.Integer(0)});
    b.SetNext({Select(zero, x, -x)});
    EXPECT_EQ(Names(b, BehindChoices(b.program())), is_choice ? "" : "chosen ");
  }
}

TEST(DecisionMargin, ChoicesAreSelectsBranchesAndWhatIsCarriedOrYielded) {
  Builder b("choices");
  const Var x = b.State("x", {});
  b.State("seen", {}, "", ElementType::kBool);
  const Var weighs = b.Convert(Below(b, x, 1.0, "weighs"), ElementType::kReal);
  const Var selected = Select(Below(b, x, 2.0, "selects"), x, weighs);
  const auto same = [](const Vars& args) { return args; };
  const auto negated = [](const Vars& args) { return Vars{-args[0]}; };
  const Var branch = b.Cond(Below(b, x, 3.0, "branches"), {selected}, {same, negated})[0];
  const Vars turned = b.For(2, {branch, Below(b, x, 4.0, "enters")}, [&](Var, const Vars& carried) {
    return Vars{carried[0], Below(b, carried[0], 5.0, "carried")};
  });
  b.SetNext({turned[0], Below(b, x, 6.0, "yielded")});
  PassBudget budget;
  b.program() = ExpandComposites(b.program(), budget);
  EXPECT_EQ(Names(b, BehindChoices(b.program())), "selects branches carried yielded ");
}

TEST(DecisionMargin, PlacesAreTheIndicesOfAnOperationAndNotWhatTheyIndex) {
  Builder b("places");
  const Var x = b.State("x", {3});
  const Var n = b.State("n", {3}, "", ElementType::kI32);
  const Var index = b.Named(b.Reshape(b.Do(kArgmax, {x}, {.axes = {0}}), {1}), "index");
  const Var from = b.Named(b.Apply(kAdd, {n, n}), "from");
  const Var taken = b.Do(kGather, {from, index}, {.axes = {0}, .bounds = Bounds::kClip});
  b.SetNext({x, b.Broadcast(b.Reshape(taken, {}), {3}, {})});
  EXPECT_EQ(Names(b, BehindPlaces(b.program())), "index ");
}

}  // namespace
}  // namespace simgrad::sim
