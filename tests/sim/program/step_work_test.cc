// What an operation counts for limits and admission: what it takes, neither less nor much more.
#include "sim/program/step_work.h"

#include <gtest/gtest.h>

#include <functional>

#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// Of the operation that `write` makes last.
int64_t WorkOfLast(const std::function<void(Builder&)>& write) {
  Builder b("work");
  b.State("x", {});
  write(b);
  Region one;
  one.ops.push_back(b.program().step.ops.back());
  return OwnWork(b.program(), one);
}

TEST(StepWork, OfMostOperationsIsTheirLargestValue) {
  EXPECT_EQ(WorkOfLast([](Builder& b) { b.Literal(1.0); }), 1);
  EXPECT_EQ(WorkOfLast([](Builder& b) { b.Reduce(kSum, b.Param("a", {30, 40})); }), 1200);
  EXPECT_EQ(WorkOfLast([](Builder& b) { b.Reduce(kNorm2, b.Param("a", {9000})); }), 9000);
}

TEST(StepWork, OfAProductIsThatOfItsChains) {
  const auto product = [](int64_t m, int64_t k, int64_t n) {
    return WorkOfLast([&](Builder& b) {
      b.Do(kMatmul, {b.Param("a", {m, k}), b.Param("b", {k, n})});
    });
  };
  EXPECT_EQ(product(20, 30, 40), 20 * 30 * 40);
  EXPECT_EQ(product(100, 50, 1), 100 * 50);
  EXPECT_EQ(product(1, 5000, 1), 5000);
  EXPECT_EQ(product(200, 1, 200), 200 * 200);
  EXPECT_EQ(product(4, 0, 4), 16);
}

TEST(StepWork, OfFactorsAndSystemsGrowsWithTheRows) {
  const auto square = [](Builder& b) { return b.Param("a", {20, 20}); };
  const auto side = [](Builder& b) { return b.Param("b", {20, 3}); };
  EXPECT_EQ(WorkOfLast([&](Builder& b) { b.Do(kCholesky, {square(b)}); }), 8000);
  EXPECT_EQ(WorkOfLast([&](Builder& b) { b.Do(kLu, {square(b)}); }), 8000);
  EXPECT_EQ(WorkOfLast([&](Builder& b) { b.Do(kTriangularSolve, {square(b), side(b)}); }), 1200);
  EXPECT_GE(WorkOfLast([&](Builder& b) { b.Do(kSolve, {square(b), side(b)}); }), 8000 + 2400);
}

TEST(StepWork, OfASortGrowsWithTheSquareOfALine) {
  const auto sort = [](const Shape& shape, int64_t axis, int keys) {
    return WorkOfLast([&](Builder& b) {
      const Var a = b.Param("a", shape);
      b.Do(kArgsort, std::vector<Var>(static_cast<size_t>(keys), a), {.axes = {axis}});
    });
  };
  EXPECT_EQ(sort({500}, 0, 1), 250'000);
  EXPECT_EQ(sort({500}, 0, 2), 500'000);
  EXPECT_EQ(sort({500, 4}, 1, 1), 8000);
}

}  // namespace
}  // namespace simgrad::sim
