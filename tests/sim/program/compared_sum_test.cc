// Which operands count in a margin besides the two that are compared.

#include "sim/program/compared_sum.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

// The code of the addition behind the value that `write` makes of x and y; nothing: there is none.
std::optional<OpCode> Behind(const std::function<Var(Builder&, Var, Var)>& write) {
  Builder b("sum");
  const Var x = b.State("x", {});
  const Var y = b.Param("y", {}, 1.0);
  const Var compared = write(b, x, y);
  b.SetNext({x});
  const Program program = b.program();
  const Op* const sum = ComparedSum(program, compared.id, [&](ValueId id) -> const Op* {
    for (const Op& op : program.step.ops) {
      if (op.results[0] == id) return &op;
    }
    return nullptr;
  });
  if (sum == nullptr) return std::nullopt;
  return sum->code;
}

TEST(ComparedSum, IsTheAdditionSubtractionOrFmaThatMadeTheValue) {
  EXPECT_EQ(Behind([](Builder&, Var x, Var y) { return x + y; }), OpCode::kAdd);
  EXPECT_EQ(Behind([](Builder&, Var x, Var y) { return x - y; }), OpCode::kSub);
  EXPECT_EQ(Behind([](Builder& b, Var x, Var y) {
              return b.Apply(OpCode::kFma, {x, y, x});
            }),
            OpCode::kFma);
}

TEST(ComparedSum, IsSeenThroughCasts) {
  EXPECT_EQ(Behind([](Builder& b, Var x, Var y) { return b.Cast(b.Cast(x - y)); }), OpCode::kSub);
}

TEST(ComparedSum, IsNoneForOtherOperationsInputsAndIntegers) {
  EXPECT_EQ(Behind([](Builder&, Var x, Var y) { return x * y; }), std::nullopt);
  EXPECT_EQ(Behind([](Builder&, Var x, Var) { return x; }), std::nullopt);
  EXPECT_EQ(Behind([](Builder& b, Var x, Var) { return b.Cast(x); }), std::nullopt);
  EXPECT_EQ(Behind([](Builder&, Var x, Var y) { return -(x + y); }), std::nullopt);
  EXPECT_EQ(Behind([](Builder& b, Var, Var) { return b.Integer(1) + b.Integer(2); }), std::nullopt);
}

}  // namespace
}  // namespace simgrad::sim
