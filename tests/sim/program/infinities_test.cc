// Which values may be infinite because a literal is.
#include "sim/program/infinities.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

NumericalProgram Marked(Builder& b) {
  NumericalProgram numerical;
  numerical.program = b.program();
  PassBudget budget;
  return MarkInfinities(std::move(numerical), budget);
}

// The names of values that may be.
std::string Infinite(Builder& b) {
  const NumericalProgram numerical = Marked(b);
  std::string names;
  for (size_t i = 0; i < numerical.infinite.size(); ++i) {
    if (numerical.infinite[i]) names += numerical.program.values[i].name + " ";
  }
  return names;
}

TEST(MarkInfinities, WithoutAnInfiniteLiteralThereIsNothing) {
  Builder b("finite");
  const Var x = b.State("x", {});
  b.SetNext({x / b.Literal(0.0)});
  EXPECT_TRUE(Marked(b).infinite.empty());
}

TEST(MarkInfinities, AClipToInfiniteBoundsIsFinite) {
  Builder b("clip");
  const Var x = b.State("x", {});
  const Var low = b.Named(b.Literal(-kInf), "low"), high = b.Named(b.Literal(kInf), "high");
  b.SetNext({b.Named(Min(b.Named(Max(x, low), "raised"), high), "clipped")});
  EXPECT_EQ(Infinite(b), "low high ");
}

TEST(MarkInfinities, AnExtremumOfInfinitiesIsInfinite) {
  Builder b("both");
  const Var x = b.State("x", {});
  const Var low = b.Named(b.Literal(-kInf), "low"), high = b.Named(b.Literal(kInf), "high");
  b.Named(Max(x, high), "above");
  b.Named(Max(low, low), "below");
  b.Named(Min(low, high), "least");
  b.SetNext({x});
  EXPECT_EQ(Infinite(b), "low high above below least ");
}

TEST(MarkInfinities, ArithmeticPassesItOnWithAnySign) {
  Builder b("arithmetic");
  const Var x = b.State("x", {});
  const Var high = b.Named(b.Literal(kInf), "high");
  const Var product = b.Named(x * high, "product");
  b.Named(Max(product, x), "from_plus");
  b.Named(Min(product, x), "from_minus");
  b.Named(x + x, "apart");
  b.SetNext({x});
  EXPECT_EQ(Infinite(b), "high product from_plus from_minus ");
}

}  // namespace
}  // namespace simgrad::sim
