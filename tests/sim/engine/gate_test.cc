// Which site gates an input, and what it costs to find out.
#include "sim/engine/gate.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// `for` in `for`, each carrying values that move on by one; one parameter is read by nothing.
Program NestedShifts(int depth, int carried) {
  Builder b("nested_shifts");
  const Var x = b.State("x", {});
  b.Param("unused", {}, 1.0);
  Vars values(static_cast<size_t>(carried), b.Param("k", {}, 0.5));
  values[0] = x;
  const std::function<Vars(const Vars&, int)> nest = [&](const Vars& outer, int left) {
    return b.For(1, outer, [&](Var, const Vars& inside) {
      const Vars inner = left > 1 ? nest(inside, left - 1) : inside;
      Vars next(inner.begin() + 1, inner.end());
      next.push_back(b.Apply(kSin, {inner[0]}));
      return next;
    });
  };
  b.SetNext({nest(values, depth)[0]});
  return *b.Finish();
}

int64_t VisitsOf(const Program& program) {
  PassBudget budget;
  EXPECT_TRUE(Gates::Find(program, {}, &budget).ok());
  return budget.visits();
}

TEST(Gates, CostIsLinearInDepthAndInCarriedValues) {
  EXPECT_LE(VisitsOf(NestedShifts(8, 30)), 20'000);
  EXPECT_LE(VisitsOf(NestedShifts(8, 30)), 3 * VisitsOf(NestedShifts(4, 30)));
  EXPECT_LE(VisitsOf(NestedShifts(8, 240)), 10 * VisitsOf(NestedShifts(8, 30)));
}

TEST(Gates, AreFoundForAllInputsAtOnce) {
  const auto visits = [](int params) {
    Builder b("many");
    const Var x = b.State("x", {});
    Var unused = x;
    for (int i = 0; i < params; ++i) unused = unused * b.Param("p" + std::to_string(i), {}, 1.0);
    const Var never = b.Event("event", x, Comparison::kLt, x);
    b.SetNext({Select(never, unused, x)});
    const Program program = *b.Finish();
    Decided decided;
    decided.events["event"] = {10, 0};
    PassBudget budget;
    const Gates gates = *Gates::Find(program, decided, &budget);
    for (int i = 1; i <= params; ++i) EXPECT_EQ(gates.Of(i), "event");
    EXPECT_EQ(gates.Of(0), "");
    return budget.visits();
  };
  EXPECT_LE(visits(4'000), 10 * visits(500));
}

// What a select on one event or the other, not both, blocks, given how often of ten each was true.
std::string GateBehindXor(uint64_t first, uint64_t second) {
  Builder b("xor");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 1.0);
  const Var either = b.Apply(kXor, {b.Event("first", x, Comparison::kLt, b.Literal(0.0)),
                                    b.Event("second", x, Comparison::kLt, b.Literal(1.0))});
  b.SetNext({Select(either, k, x)});
  Decided decided;
  decided.events["first"] = {10, first};
  decided.events["second"] = {10, second};
  return (*Gates::Find(*b.Finish(), decided)).Of(1);
}

TEST(Gates, XorIsSettledWhereBothEventsAre) {
  EXPECT_EQ(GateBehindXor(0, 0), "first");
  EXPECT_EQ(GateBehindXor(10, 10), "first");
  EXPECT_EQ(GateBehindXor(10, 0), "");
  EXPECT_EQ(GateBehindXor(0, 10), "");
  EXPECT_EQ(GateBehindXor(0, 4), "");
  EXPECT_EQ(GateBehindXor(4, 10), "");
}

TEST(Gates, EndWhereTheyAreTold) {
  PassBudget budget([] { return true; });
  const auto gates = Gates::Find(NestedShifts(8, 240), {}, &budget);
  EXPECT_EQ(gates.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(budget.polls(), 1);
}

// The value meets the second event at once and the first only in the next iteration of the loop.
TEST(Gates, NameTheFirstSiteInTextOrder) {
  Builder b("rounds");
  const Var x = b.State("x", {});
  const Var p = b.Param("p", {}, 1.0);
  const Var zero = b.Literal(0.0);
  b.For(3, {zero, p}, [&](Var, const Vars& carried) {
    const Var first = Select(b.Event("first", x, Comparison::kLt, zero), carried[0], zero);
    const Var second = Select(b.Event("second", x, Comparison::kLt, zero), carried[1], zero);
    return Vars{carried[1], first + second};
  });
  b.SetNext({x});
  const Program program = *b.Finish();
  Decided decided;
  decided.events["first"] = {10, 0};
  decided.events["second"] = {10, 0};
  EXPECT_EQ(Gates::Find(program, decided)->Of(1), "first");
}

}  // namespace
}  // namespace simgrad::sim
