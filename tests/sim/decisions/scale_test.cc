// At which magnitude the ulp of a margin is taken in programs that state a level.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "precision/ulp.h"
#include "sim/program/builder.h"
#include "sim/program/compared_scale.h"
#include "tests/sim/decisions/executors.h"
#include "tests/sim/decisions/f32_program.h"
#include "tests/sim/seen_run.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using tests::Bind;

using Write = std::function<Var(Builder& b, Var x, Var y, Var z)>;

// Of the event `write` < 0 in f32, at these numbers.
SmallestMargin MarginOf(const std::shared_ptr<Executor>& executor, TestLevel level, double x,
                        double y, double z, const Write& write) {
  Builder b("scale");
  b.program().level = level;
  const Var state_x = b.State("x", {});
  const Var state_y = b.State("y", {});
  const Var state_z = b.State("z", {});
  b.Event("test", write(b, state_x, state_y, state_z), Comparison::kLt, b.Literal(0.0));
  b.SetNext({state_x, state_y, state_z});
  Work work = tests::WorkOf(*tests::InF32(b), 1, 1);
  Bind(work, InputKind::kState, "x", tests::Shared({x}, {}));
  Bind(work, InputKind::kState, "y", tests::Shared({y}, {}));
  Bind(work, InputKind::kState, "z", tests::Shared({z}, {}));
  // The last in text.
  return tests::RunSeen(executor, std::move(work)).diagnostics.events.back().at(0).margin;
}

struct Case {
  std::string name;
  Write write;
  double scale;  // at x = 1000, y = 999, z = 0.25
};

Var Middle(Builder& b, Var a) {  // a, through operations of shape
  const Var wide = b.Broadcast(a, {2, 3}, {});
  return b.Reshape(b.Slice(b.Reshape(wide, {3, 2}), {1, 1}, {1, 1}), {});
}

std::vector<Case> Cases() {
  const auto is_positive = [](Builder& b, Var a) {
    return b.Apply(OpCode::kGt, {a, b.Literal(0.5)});
  };
  return {
      {"x", [](Builder&, Var x, Var, Var) { return x; }, 1000.0},
      {"x - y", [](Builder&, Var x, Var y, Var) { return x - y; }, 1000.0},
      {"-(x - y)", [](Builder&, Var x, Var y, Var) { return -(x - y); }, 1000.0},
      {"|x - y|", [](Builder& b, Var x, Var y, Var) { return b.Apply(OpCode::kAbs, {x - y}); },
       1000.0},
      {"(x - y) z", [](Builder&, Var x, Var y, Var z) { return (x - y) * z; }, 250.0},
      {"z (x - y)", [](Builder&, Var x, Var y, Var z) { return z * (x - y); }, 250.0},
      {"(x - y)(x - y)", [](Builder&, Var x, Var y, Var) { return (x - y) * (x - y); }, 1000.0},
      {"(x - y) / z", [](Builder&, Var x, Var y, Var z) { return (x - y) / z; }, 4000.0},
      {"z / (x - y)", [](Builder&, Var x, Var y, Var z) { return z / (x - y); }, 0.25},
      {"sqrt(x - y)", [](Builder&, Var x, Var y, Var) { return Sqrt(x - y); }, 1000.0},
      {"sqrt(x - x)", [](Builder&, Var x, Var, Var) { return Sqrt(x - x); }, 0.0},
      {"fma(x, z, -y)",
       [](Builder& b, Var x, Var y, Var z) {
         return b.Apply(OpCode::kFma, {x, z, -y});
       },
       999.0},
      {"select(x - y > 0.5, z(x - y), x)",
       [=](Builder& b, Var x, Var y, Var z) {
         return Select(is_positive(b, x - y), z * (x - y), x);
       },
       250.0},
      {"select(x - y > 0.5, z, x)",
       [=](Builder& b, Var x, Var y, Var z) { return Select(is_positive(b, x - y), z, x); }, 0.25},
      {"a part of (x - y) z, repeated",
       [](Builder& b, Var x, Var y, Var z) { return Middle(b, x - y) * z; }, 250.0},
      {"sin(x - y)", [](Builder& b, Var x, Var y, Var) { return b.Apply(OpCode::kSin, {x - y}); },
       0.8414709848078965},
  };
}

TEST(Scale, LooksThroughWhatMadeAValue) {
  for (const auto& executor : TestedExecutors()) {
    for (const Case& each : Cases()) {
      const SmallestMargin margin =
          MarginOf(executor, TestLevel::kDecisions, 1000.0, 999.0, 0.25, each.write);
      const double magnitude = std::max(each.scale, std::abs(margin.absolute));
      const double expected = margin.absolute / precision::Ulp(Format::kF32, magnitude);
      EXPECT_EQ(margin.ulps, expected) << each.name << " on " << executor->name();
    }
  }
}

TEST(Scale, IsThatOfOneAdditionWithoutALevel) {
  for (const auto& executor : TestedExecutors()) {
    for (const Case& each : Cases()) {
      if (each.name != "x - y" && each.name != "(x - y) z") continue;
      const SmallestMargin margin =
          MarginOf(executor, TestLevel::kDeclared, 1000.0, 999.0, 0.25, each.write);
      const double scale = each.name == "x - y" ? 1000.0 : 0.25;
      EXPECT_EQ(margin.ulps, margin.absolute / precision::Ulp(Format::kF32, scale)) << each.name;
    }
  }
}

// A chain of squares has 2^n paths, and is searched once.
TEST(Scale, OfALongChainIsBounded) {
  Builder b("chain");
  const Var x = b.State("x", {});
  Var value = x;
  for (int k = 0; k < 1000; ++k) value = value * value;
  b.SetNext({value});
  const Program program = *b.Finish();
  const auto nodes = ScaleOf(program, value.id, [&](ValueId id) -> const Op* {
    for (const Op& op : program.step.ops) {
      if (op.results[0] == id) return &op;
    }
    return nullptr;
  });
  EXPECT_GT(nodes.size(), kMostScaleNodes / 2);
  EXPECT_LE(nodes.size(), 2 * kMostScaleNodes);
  for (size_t k = 0; k < nodes.size(); ++k) {
    EXPECT_TRUE(nodes[k].rule == ScaleRule::kOwn || (nodes[k].first < k && nodes[k].second < k));
  }
}

}  // namespace
}  // namespace simgrad::sim
