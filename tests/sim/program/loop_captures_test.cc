// What loops read of the regions around them.
#include "sim/program/loop_captures.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

class Captures {
 public:
  // Of values that `counts` does not name nothing is said.
  explicit Captures(Builder& b, const Vars& counts) {
    std::vector<bool> counted(b.program().values.size(), false);
    for (const Var& value : counts) counted[Index(value.id)] = true;
    captures_.emplace(std::vector<Region*>{&b.program().step}, counted, budget_);
  }
  std::vector<ValueId> Of(const Op& loop) const { return captures_->Of(loop); }

 private:
  PassBudget budget_;
  std::optional<LoopCaptures> captures_;
};

using Ids = std::vector<ValueId>;

TEST(LoopCaptures, StandInTheOrderOfTheirFirstUse) {
  Builder b("order");
  const Var x = b.State("x", {});
  const Var p = b.Apply(OpCode::kSin, {x});
  const Var q = b.Apply(OpCode::kCos, {x});
  b.SetNext(b.For(2, {x}, [&](Var, const Vars& carried) {
    const Var first = carried[0] * q;
    const Var second = p * q;
    return Vars{first + second};
  }));
  EXPECT_EQ(Captures(b, {x, p, q}).Of(b.program().step.ops.back()), (Ids{q.id, p.id}));
}

TEST(LoopCaptures, AreOnlyThoseThatCount) {
  Builder b("counts");
  const Var x = b.State("x", {});
  const Var p = b.Apply(OpCode::kSin, {x});
  const Var q = b.Apply(OpCode::kCos, {x});
  b.SetNext(b.For(2, {x}, [&](Var, const Vars& carried) { return Vars{carried[0] * q * p}; }));
  EXPECT_EQ(Captures(b, {p}).Of(b.program().step.ops.back()), Ids{p.id});
}

TEST(LoopCaptures, AValueIsACaptureOfEveryLoopBetweenItsDefinitionAndItsUse) {
  Builder b("nested");
  const Var x = b.State("x", {});
  Var between;
  b.SetNext(b.For(2, {x}, [&](Var, const Vars& outer) {
    between = b.Apply(OpCode::kSin, outer);
    return b.For(2, outer, [&](Var, const Vars& inner) { return Vars{inner[0] * x * between}; });
  }));
  const Captures captures(b, {x, between});
  const Op& outer = b.program().step.ops.back();
  EXPECT_EQ(captures.Of(outer), Ids{x.id});
  EXPECT_EQ(captures.Of(outer.regions[0].ops.back()), (Ids{x.id, between.id}));
}

TEST(LoopCaptures, ALoopPerElementHasNone) {
  Builder b("mapped");
  const Var x = b.State("x", {3});
  const Var k = b.Param("k", {}, 1.0);
  WhileOptions options;
  options.site = "loop";
  options.elements = 3;
  const LoopResult loop = b.While(
      options, {x}, {},
      [&](const Vars& carried, const Vars&) {
        return LoopTest{carried[0], b.Literal(1.0), std::nullopt, {}};
      },
      [&](const Vars& carried, const Vars&, const Vars&) { return Vars{k * carried[0]}; });
  b.SetNext(loop.carried);
  EXPECT_EQ(Captures(b, {x, k}).Of(b.program().step.ops.back()), Ids{});
}

}  // namespace
}  // namespace simgrad::sim
