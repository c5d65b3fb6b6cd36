// The observables that a program gets for the margins of its tests.
#include "sim/program/record_margins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using Sites = std::vector<std::string>;

// A test of two numbers, one in a loop of three turns, and the loop's own.
NumericalProgram Tested() {
  Builder b("tested");
  const Var x = b.State("x", {2});
  b.Event("high", x, Comparison::kGt, b.Literal(1.0, {2}));
  const Var last = b.While(
                        {.site = "loop", .max_iter = 3}, {b.Reduce(OpCode::kSum, x)}, {},
                        [&](const Vars& now, const Vars&) -> LoopTest {
                          return {now[0], b.Literal(0.25), {}, {}};
                        },
                        [&](const Vars& now, const Vars&, const Vars&) -> Vars {
                          b.Event("inside", now[0], Comparison::kLt, b.Literal(2.0));
                          return {0.5 * now[0]};
                        })
                       .carried[0];
  b.Export("last", last);
  b.SetNext({x});
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = tests::LowerForGradient(*world, tests::PolicyOf({.preset = "f32"}), "");
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

NumericalProgram Recorded(const Sites& sites) {
  PassBudget budget;
  return RecordMargins(Tested(), sites, budget);
}

absl::Status Refused(const Sites& sites) {
  return WithinBudget([&] { Recorded(sites); });
}

TEST(RecordMargins, AddsOneObservableOfF64ForEachSiteThatIsAskedFor) {
  const NumericalProgram plain = Tested();
  const NumericalProgram recorded = Recorded({"loop", "high"});
  const std::vector<Export>& exports = recorded.program.exports;
  ASSERT_EQ(exports.size(), plain.program.exports.size() + 2);
  Sites names;
  for (size_t k = plain.program.exports.size(); k < exports.size(); ++k) {
    names.push_back(exports[k].name);
    EXPECT_EQ(recorded.program[exports[k].value].format, Format::kF64) << exports[k].name;
  }
  EXPECT_EQ(names, (Sites{MarginExport("high"), MarginExport("loop")}));
}

// A loop is tested once more than it turns.
TEST(RecordMargins, HaveTheAxesOfTheLoopsAroundTheTestAndThenItsOwn) {
  const NumericalProgram recorded = Recorded({"high", "inside", "loop"});
  const auto shape = [&](const std::string& site) {
    const std::vector<Export>& exports = recorded.program.exports;
    const auto found = std::find_if(exports.begin(), exports.end(), [&](const Export& one) {
      return one.name == MarginExport(site);
    });
    EXPECT_NE(found, exports.end()) << site;
    return found == exports.end() ? Shape{} : recorded.program[found->value].type.shape;
  };
  EXPECT_EQ(shape("high"), Shape{2});
  EXPECT_EQ(shape("inside"), Shape{3});
  EXPECT_EQ(shape("loop"), Shape{4});
}

TEST(RecordMargins, NoValueThatWasThereChangesAndNoNewRealIsWatched) {
  const NumericalProgram plain = Tested();
  const NumericalProgram recorded = Recorded({"high", "inside", "loop"});
  EXPECT_EQ(recorded.fingerprint, plain.fingerprint);
  EXPECT_EQ(recorded.text, plain.text);
  const size_t before = plain.program.values.size();
  ASSERT_GT(recorded.program.values.size(), before);
  for (size_t i = 0; i < recorded.program.values.size(); ++i) {
    const Value& value = recorded.program.values[i];
    if (i >= before) {
      EXPECT_FALSE(value.watched && value.type.element == ElementType::kReal) << i;
      continue;
    }
    EXPECT_EQ(value.type, plain.program.values[i].type) << i;
    EXPECT_EQ(value.format, plain.program.values[i].format) << i;
    EXPECT_EQ(value.watched, plain.program.values[i].watched) << i;
  }
}

TEST(RecordMargins, WithoutSitesTheProgramStaysAsItIs) {
  const NumericalProgram plain = Tested();
  const NumericalProgram recorded = Recorded({});
  EXPECT_EQ(recorded.program.exports.size(), plain.program.exports.size());
  EXPECT_EQ(recorded.program.values.size(), plain.program.values.size());
}

TEST(RecordMargins, RefusesASiteThatIsNotThereOrStandsTwice) {
  EXPECT_EQ(FieldOf(Refused({"high", "nowhere"})), "diagnostics.margins[1]");
  EXPECT_EQ(FieldOf(Refused({"high", "loop", "high"})), "diagnostics.margins[2]");
  EXPECT_TRUE(Refused({"high", "loop", "inside"}).ok());
}

}  // namespace
}  // namespace simgrad::sim
