// Counts of what rounding did: by operation, role and line, forward and in reverse.
#include "sim/backend/reference/count_arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/kept_run.h"
#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "tests/sanitized.h"
#include "tests/sim/work_maker.h"
#include "tests/thread_time.h"

namespace simgrad::sim {
namespace {

using enum OpCode;
using tests::Bind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Write = std::function<Var(Builder& b, Var x, Var y)>;

// States and dynamics in one format, and sums in an order and an accumulator.
precision::PolicySpec In(Format format, SumOrder order = {Order::kSequential},
                         std::optional<Format> accumulator = {}) {
  return {
      .preset = "f64",
      .roles = {{"state", {.format = format}},
                {"dynamics",
                 {.format = format, .order = order, .accumulator = accumulator.value_or(format)}}}};
}

// y becomes what `write` says of x and y; x stays. The operations of `write` have the label "here".
Work Counted(const Write& write, const precision::PolicySpec& policy, std::vector<double> x,
             std::vector<double> y, int64_t steps = 1) {
  const auto n = static_cast<int64_t>(x.size());
  Builder b("arithmetic");
  const Var a = b.State("x", {n});
  const Var c = b.State("y", {static_cast<int64_t>(y.size())});
  b.Label("here");
  const Var next = write(b, a, c);
  b.Label("");
  b.SetNext({a, next});
  auto lowered = Lower(*b.Finish(), tests::PolicyOf(policy), "", std::nullopt);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*std::move(lowered), 1, steps);
  const Shape shape = {static_cast<int64_t>(y.size())};
  Bind(work, InputKind::kState, "x", tests::Shared(x, {n}));
  Bind(work, InputKind::kState, "y", tests::Shared(y, shape));
  return work;
}

Arithmetic Count(const Work& work, ArithmeticOptions options = {}) {
  options.instances = work.batch.instances;
  options.adjoint = work.gradient.has_value();
  auto counted = CountArithmetic(work.batch, options);
  EXPECT_TRUE(counted.ok()) << counted.status();
  return *std::move(counted);
}

// The counts of one operation.
ArithmeticCounts Of(const std::vector<OperationArithmetic>& rows, const std::string& operation,
                    const std::string& label = "here") {
  for (const OperationArithmetic& row : rows) {
    if (row.operation == operation && row.label == label) return row.counts;
  }
  return {};
}

// The counts of a role as a whole.
ArithmeticCounts Of(const std::vector<OperationArithmetic>& rows, Role role) {
  for (const OperationArithmetic& row : rows) {
    if (row.operation.empty() && row.role == role) return row.counts;
  }
  return {};
}

struct Case {
  std::string name;
  Format format;
  OpCode code;
  double x, y;
  ArithmeticCounts counts;
};

// f16: the smallest normal is 2^-14, the smallest subnormal 2^-24, the largest number 65504.
std::vector<Case> Cases() {
  constexpr Format kH = Format::kF16, kB = Format::kBf16, kD = Format::kF64;
  const double tiny = 0x1p-20, small = 0x1p-10;
  return {
      {"a product that fits", kH, kMul, small, 0.5, {1, 0, 0, 0, 0}},
      {"a product that is subnormal and exact", kH, kMul, small, small, {1, 0, 0, 0, 0}},
      {"a product that is subnormal", kH, kMul, 0x1.004p-10, 0x1.004p-10, {1, 1, 0, 0, 0}},
      {"a product that is zero", kH, kMul, tiny, small, {1, 1, 0, 0, 0}},
      {"a product with zero", kH, kMul, 0.0, small, {1, 0, 0, 0, 0}},
      {"a product that is too large", kH, kMul, 512.0, 256.0, {1, 0, 1, 0, 0}},
      {"infinity times a number", kH, kMul, kInfinity, 256.0, {1, 0, 0, 0, 0}},
      {"a quotient that is zero", kH, kDiv, tiny, 1024.0, {1, 1, 0, 0, 0}},
      {"a number by infinity", kH, kDiv, 1.0, kInfinity, {1, 0, 0, 0, 0}},
      {"a quotient by zero", kH, kDiv, 1.0, 0.0, {1, 0, 0, 0, 0}},
      {"a power that is zero", kH, kPow, small, 4.0, {1, 1, 0, 0, 0}},
      {"a power of zero", kH, kPow, 0.0, 4.0, {1, 0, 0, 0, 0}},
      {"an angle that is zero", kH, kAtan2, tiny, 1024.0, {1, 1, 0, 0, 0}},
      {"a difference that is zero", kH, kSub, 1.0, 1.0, {1, 0, 0, 1, 0}},
      {"a difference that is subnormal", kH, kSub, 0x1.004p-14, 0x1p-14, {1, 0, 0, 1, 0}},
      {"a difference that is one operand", kH, kSub, 2.0, 1.0, {1, 0, 0, 1, 0}},
      {"a sum that is too large", kH, kAdd, 65504.0, 65504.0, {1, 0, 1, 1, 0}},
      {"a sum that is lost", kB, kAdd, 4.0, 0.01, {1, 0, 0, 1, 1}},
      {"a sum with zero", kB, kAdd, 4.0, 0.0, {1, 0, 0, 0, 0}},
      {"an f64 product that is subnormal", kD, kMul, 0x1p-600, 0x1p-440, {1, 1, 0, 0, 0}},
      {"an f64 product that is zero", kD, kMul, 0x1p-600, 0x1p-600, {1, 1, 0, 0, 0}},
      {"an f64 sum that is lost", kD, kAdd, 1.0, 0x1p-60, {1, 0, 0, 1, 1}},
      {"an f64 product that is too large", kD, kMul, 0x1p600, 0x1p600, {1, 0, 1, 0, 0}},
  };
}

TEST(CountArithmetic, CountsOperationsOfTwoNumbers) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const Work work = Counted(
        [&](Builder& b, Var x, Var y) {
          return b.Apply(c.code, {x, y});
        },
        In(c.format), {c.x}, {c.y});
    const Arithmetic counted = Count(work);
    EXPECT_EQ(Of(counted.forward, Role::kDynamics), c.counts);
    const std::string name(InfoOf(c.code).name);
    EXPECT_EQ(Of(counted.forward, name), c.counts);
    EXPECT_TRUE(counted.adjoint.empty());
  }
}

TEST(CountArithmetic, CountsOperationsOfOneNumber) {
  struct Of1 {
    OpCode code;
    double x;
    uint64_t underflows, overflows;
  };
  for (const Of1& c : std::vector<Of1>{{kExp, -20.0, 1, 0},
                                       {kExp, -5.0, 0, 0},
                                       {kExp, -kInfinity, 0, 0},
                                       {kExp, 20.0, 0, 1},
                                       {kExp2, -30.0, 1, 0},
                                       {kExp2, -20.0, 0, 0},  // exact
                                       {kSigmoid, -20.0, 1, 0},
                                       {kSoftplus, -20.0, 1, 0},
                                       {kErfc, 4.0, 1, 0},
                                       {kLog, 1.0, 0, 0},
                                       {kLog, 0.0, 0, 0},
                                       {kSin, 0.0, 0, 0},
                                       {kSqrt, 0.0, 0, 0},
                                       {kNeg, 0x1p-24, 0, 0}}) {
    SCOPED_TRACE(InfoOf(c.code).name);
    SCOPED_TRACE(c.x);
    const Work work = Counted([&](Builder& b, Var x, Var) { return b.Apply(c.code, {x}); },
                              In(Format::kF16), {c.x}, {0.0});
    const ArithmeticCounts counts = Of(Count(work).forward, Role::kDynamics);
    EXPECT_EQ(counts, (ArithmeticCounts{1, c.underflows, c.overflows, 0, 0}));
  }
}

TEST(CountArithmetic, AFusedProductIsAnAddition) {
  const auto fma = [](Builder& b, Var x, Var y) { return b.Apply(kFma, {x, x, y}); };
  const auto of = [&](Format format, double x, double y) {
    return Of(Count(Counted(fma, In(format), {x}, {y})).forward, Role::kDynamics);
  };
  EXPECT_EQ(of(Format::kBf16, 0.1, 4.0), (ArithmeticCounts{1, 0, 0, 1, 1}));
  EXPECT_EQ(of(Format::kBf16, 1.0, 4.0), (ArithmeticCounts{1, 0, 0, 1, 0}));
  EXPECT_EQ(of(Format::kF16, 0x1.8p-13, 0.0), (ArithmeticCounts{1, 1, 0, 0, 0}));
  // What cancels is exact.
  EXPECT_EQ(of(Format::kF64, 2.0, -4.0), (ArithmeticCounts{1, 0, 0, 1, 0}));
}

TEST(CountArithmetic, CastsUnderflowAndOverflowWhereTheyNarrow) {
  const auto cast = [](Format format, std::optional<Overflow> overflow) {
    return
        [=](Builder& b, Var x, Var) { return b.Cast(b.Cast(x, format, overflow), Format::kF64); };
  };
  const auto of = [&](double x, std::optional<Overflow> overflow) {
    const Work work = Counted(cast(Format::kF16, overflow), In(Format::kF64), {x}, {0.0});
    return Of(Count(work).forward, Role::kDynamics);
  };
  EXPECT_EQ(of(1e-9, {}), (ArithmeticCounts{2, 1, 0, 0, 0}));
  EXPECT_EQ(of(0x1p-20, {}), (ArithmeticCounts{2, 0, 0, 0, 0}));  // exact
  EXPECT_EQ(of(1e6, Overflow::kIeee), (ArithmeticCounts{2, 0, 1, 0, 0}));
  EXPECT_EQ(of(1e6, Overflow::kSaturate), (ArithmeticCounts{2, 0, 1, 0, 0}));
  EXPECT_EQ(of(1.0, {}), (ArithmeticCounts{2, 0, 0, 0, 0}));
}

// 4 + 0.01 + ... in bf16, whose numbers from 4 on are 1/32 apart.
TEST(CountArithmetic, TermsOfASumAreLost) {
  std::vector<double> terms = {4.0};
  for (int i = 0; i < 15; ++i) terms.push_back(0x1p-7);
  const auto of = [&](Order order) {
    const Work work =
        Counted([](Builder& b, Var x, Var) { return b.Reshape(b.Reduce(kSum, x), {1}); },
                In(Format::kBf16, {order}), terms, {0.0});
    return Of(Count(work).forward, Role::kDynamics);
  };
  // Each of the 15 is lost in 4.
  EXPECT_EQ(of(Order::kSequential), (ArithmeticCounts{1, 0, 0, 15, 15}));
  // From the other end they gather 15/128, and 4 comes last.
  EXPECT_EQ(of(Order::kReversed), (ArithmeticCounts{1, 0, 0, 15, 0}));
  // 4 + 1/128 is lost, 4 + 2/128 is half a place and goes to even; 4 + 4/128 and 4 + 8/128 are not.
  EXPECT_EQ(of(Order::kPairwise), (ArithmeticCounts{1, 0, 0, 15, 2}));
  // The correction has what the sum has not.
  EXPECT_EQ(of(Order::kCompensated), (ArithmeticCounts{1, 0, 0, 15, 0}));
  EXPECT_EQ(of(Order::kExact), (ArithmeticCounts{1, 0, 0, 0, 0}));
}

TEST(CountArithmetic, ACumulativeSumAddsEachTermOnce) {
  const Work work = Counted([](Builder& b, Var x, Var) { return b.Cumsum(x, 0); },
                            In(Format::kBf16), {4.0, 0.001, 0.001, 1.0}, {0, 0, 0, 0});
  EXPECT_EQ(Of(Count(work).forward, Role::kDynamics), (ArithmeticCounts{4, 0, 0, 3, 2}));
}

// [a b][c; d] in the accumulator of the role, as a chain.
TEST(CountArithmetic, ProductsOfMatricesAddTheirTerms) {
  const auto of = [](std::vector<double> x, std::vector<double> y, Format accumulator) {
    const Work work = Counted(
        [](Builder& b, Var row, Var column) {
          const Var product = b.Do(kMatmul, {b.Reshape(row, {1, 2}), b.Reshape(column, {2, 1})});
          return b.Concat({b.Reshape(product, {1}), b.Reshape(product, {1})}, 0);
        },
        In(Format::kF16, {Order::kSequential}, accumulator), x, y);
    return Of(Count(work).forward, Role::kDynamics);
  };
  EXPECT_EQ(of({1, 1}, {1, 1}, Format::kF32), (ArithmeticCounts{1, 0, 0, 1, 0}));
  EXPECT_EQ(of({2048, 1}, {1, 0.5}, Format::kF16), (ArithmeticCounts{1, 0, 0, 1, 1}));
  EXPECT_EQ(of({2048, 1}, {1, 0.5}, Format::kF32), (ArithmeticCounts{1, 0, 0, 1, 0}));
  EXPECT_EQ(of({0x1p-13, 1}, {0x1p-13, 1}, Format::kF16), (ArithmeticCounts{1, 1, 0, 0, 0}));
  // Fused, the small product is not rounded, but the sum forgets it.
  EXPECT_EQ(of({1, 0x1p-13}, {1, 0x1p-13}, Format::kF32), (ArithmeticCounts{1, 0, 0, 1, 1}));
  EXPECT_EQ(of({256, 256}, {256, 256}, Format::kF32), (ArithmeticCounts{1, 0, 1, 1, 0}));
}

// y becomes what `write` says of x, one number; the operation reads many.
ArithmeticCounts OfMany(const Write& write, Format format, std::vector<double> x,
                        Order order = Order::kSequential, std::optional<Format> accumulator = {}) {
  const Work work = Counted(write, In(format, {order}, accumulator), std::move(x), {0.0});
  return Of(Count(work).forward, Role::kDynamics);
}

TEST(CountArithmetic, WhatANarrowAccumulatorCannotHoldIsAnUnderflow) {
  const auto sum = [](Builder& b, Var x, Var) { return b.Reshape(b.Reduce(kSum, x), {1}); };
  const auto f32_in_f16 = [&](std::vector<double> x, Order order) {
    return OfMany(sum, Format::kF32, std::move(x), order, Format::kF16);
  };
  EXPECT_EQ(f32_in_f16({1e-9, 1e-9}, Order::kSequential), (ArithmeticCounts{1, 2, 0, 0, 0}));
  EXPECT_EQ(f32_in_f16({1e-9, 1.0}, Order::kSequential), (ArithmeticCounts{1, 1, 0, 0, 0}));
  EXPECT_EQ(f32_in_f16({1e-9, 1e-9}, Order::kExact), (ArithmeticCounts{1, 0, 0, 0, 0}));
  // Two numbers of f32 may give a subnormal one of f16 that is not exact.
  const double part = static_cast<float>(1.3 * 0x1p-24);
  EXPECT_EQ(f32_in_f16({part, part}, Order::kPairwise), (ArithmeticCounts{1, 1, 0, 1, 0}));
  EXPECT_EQ(f32_in_f16({part}, Order::kCompensated), (ArithmeticCounts{1, 1, 0, 0, 0}));
  // Exact in f32, and too small for bf16.
  EXPECT_EQ(OfMany(sum, Format::kF32, {0x1p-130, 0x1p-149}, Order::kExact, Format::kBf16),
            (ArithmeticCounts{1, 0, 0, 0, 0}));
  const auto square = [](Builder& b, Var x, Var) {
    const Var product = b.Do(kMatmul, {b.Reshape(x, {1, 2}), b.Reshape(x, {2, 1})});
    return b.Reshape(product, {1});
  };
  EXPECT_EQ(OfMany(square, Format::kF32, {1e-9, 1.0}, Order::kSequential, Format::kF16),
            (ArithmeticCounts{1, 2, 0, 0, 0}));
}

TEST(CountArithmetic, ACompensatedSumThatForgetsItsCorrection) {
  const auto sum = [](Builder& b, Var x, Var) { return b.Reshape(b.Reduce(kSum, x), {1}); };
  // 256 + 1 is corrected; 0 has no part of it; 2^-10 + 512 gives 512, and the correction stays 1.
  EXPECT_EQ(OfMany(sum, Format::kBf16, {256, 1, -256, 0x1p-10, 512, 0}, Order::kCompensated),
            (ArithmeticCounts{1, 0, 0, 3, 1}));
}

TEST(CountArithmetic, OverflowsOfWhatReadsManyElementsNeedFiniteOnes) {
  const auto sum = [](Builder& b, Var x, Var) { return b.Reshape(b.Reduce(kSum, x), {1}); };
  EXPECT_EQ(OfMany(sum, Format::kF16, {60000, 60000}).overflows, 1u);
  EXPECT_EQ(OfMany(sum, Format::kF16, {kInfinity, 1}).overflows, 0u);
  EXPECT_EQ(OfMany(sum, Format::kF16, {std::nan(""), 60000}).overflows, 0u);
  const auto lu = [](Builder& b, Var x, Var) {
    return b.Slice(b.Reshape(b.Do(kLu, {b.Reshape(x, {2, 2})}), {4}), {0}, {1});
  };
  EXPECT_EQ(OfMany(lu, Format::kF16, {1, 60000, -1, 60000}).overflows, 1u);
  EXPECT_EQ(OfMany(lu, Format::kF16, {2, kInfinity, 1, 1}).overflows, 0u);
  const auto product = [](Builder& b, Var x, Var) { return b.Reshape(b.Reduce(kProd, x), {1}); };
  EXPECT_EQ(OfMany(product, Format::kF16, {256, 256}).overflows, 1u);
  EXPECT_EQ(OfMany(product, Format::kF16, {0x1.8p-13, 0x1p-13}).underflows, 1u);
}

// The counts of role dynamics, of work on 2^17 numbers that is linear in them: the meter asks whether
// to stop by the work that it is told, and the clock sees the rest.
ArithmeticCounts CountedInLinearTime(const Work& work) {
  int64_t asked = 0;
  const Milliseconds begin = ThreadTime();
  const auto counted = CountArithmetic(work.batch, {.instances = 1}, [&] {
    ++asked;
    return false;
  });
  EXPECT_TRUE(counted.ok()) << counted.status();
  EXPECT_LT(asked, 10'000);
  if (!kSanitized) {
    EXPECT_LT((ThreadTime() - begin).count(), 3'000);
  }
  return Of(counted.value_or(Arithmetic{}).forward, Role::kDynamics);
}

// 2^17 updates that are no numbers: a certificate for each place would read all of them.
TEST(CountArithmetic, OperandsThatAreNotFiniteAreLookedAtOnce) {
  const int64_t n = 1 << 17;
  std::vector<double> places;
  for (int64_t i = 0; i < n; ++i) places.push_back(static_cast<double>(i));
  const Work work = Counted(
      [&](Builder& b, Var x, Var y) {
        Attributes how{.axes = {0}};
        how.combine = Combine::kAdd;
        how.bounds = Bounds::kDrop;
        return b.Do(kScatter, {y, b.IntegerArray(places, {n}), x}, how);
      },
      In(Format::kF32), std::vector<double>(n, std::nan("")), std::vector<double>(n, 0.0));
  EXPECT_EQ(CountedInLinearTime(work), (ArithmeticCounts{static_cast<uint64_t>(n), 0, 0, 0, 0}));
}

// Not a line anew for each of its elements.
TEST(CountArithmetic, ALongCumulativeSumIsReadOnce) {
  const int64_t n = 1 << 17;
  const Work work = Counted([](Builder& b, Var x, Var) { return b.Cumsum(x, 0); }, In(Format::kF32),
                            std::vector<double>(n, 1.0), std::vector<double>(n, 0.0));
  EXPECT_EQ(CountedInLinearTime(work),
            (ArithmeticCounts{static_cast<uint64_t>(n), 0, 0, static_cast<uint64_t>(n) - 1, 0}));
}

// A halt holds in step 1; from then on nothing is counted.
TEST(CountArithmetic, AnInstanceThatHasHaltedAddsNothing) {
  const auto at = [](int64_t steps) {
    Builder b("halting");
    const Var x = b.State("x", {});
    const Var k = b.Param("k", {});
    const Var y = (x + b.Literal(1.0)) + k;
    b.Halt("big", b.Event("over", y, Comparison::kGt, b.Literal(2.2)));
    b.SetNext({y});
    b.AddObjective(
        "cost", [&] { return x * k; }, nullptr);
    auto lowered =
        tests::LowerForGradient(*b.Finish(), tests::PolicyOf({.preset = "f16_unsafe"}), "cost");
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    Work work = tests::WorkOf(*std::move(lowered), 1, steps);
    Bind(work, InputKind::kState, "x", tests::Shared({0.5}, {}));
    Bind(work, InputKind::kParam, "k", tests::Shared({1e-9}, {}));
    return Count(work, {.stride = 1});
  };
  const Arithmetic before = at(2);
  EXPECT_TRUE(at(10).forward == before.forward);
  // The last step has an adjoint of its own, in which the halt of `before` stands.
  EXPECT_TRUE(at(10).adjoint == at(20).adjoint);
  EXPECT_FALSE(at(1).forward == before.forward);
}

// The step that stops an instance is taken back, its cost too.
TEST(CountArithmetic, ACostThatIsTakenBackIsNotCounted) {
  const auto costs = [](precision::NonFinite nonfinite) {
    Builder b("stopping");
    const Var x = b.State("x", {});
    b.SetNext({x * x});
    b.AddObjective(
        "cost", [&] { return x; }, nullptr);
    auto lowered = Lower(*b.Finish(), tests::PolicyOf({.preset = "f32", .nonfinite = nonfinite}),
                         "cost", std::nullopt);
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    Work work = tests::WorkOf(*std::move(lowered), 1, 5);
    Bind(work, InputKind::kState, "x", tests::Shared({1e10}, {}));  // 1e20, then infinite
    return Of(Count(work, {.stride = 1}).forward, "cost", "cost").results;
  };
  EXPECT_EQ(costs(precision::NonFinite::kReport), 5u);
  EXPECT_EQ(costs(precision::NonFinite::kStop), 1u);
}

TEST(CountArithmetic, AReversalThatDoesNotFitIsRefused) {
  Builder b("turns");
  const Var x = b.State("x", {});
  b.SetNext(
      {b.For(10'000, {x}, [&](Var, const Vars& c) { return Vars{c[0] * b.Literal(0.5)}; })[0]});
  b.AddObjective("cost", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  auto lowered = tests::LowerForGradient(*b.Finish(), tests::PolicyOf({.preset = "f32"}), "cost");
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*std::move(lowered), 2, 3);
  Bind(work, InputKind::kState, "x", tests::Shared({1.0}, {}));
  const auto of = [&](int64_t budget, bool gives, int64_t* asked) {
    return CountArithmetic(work.batch, {.instances = 2,
                                        .adjoint = true,
                                        .memory_budget_bytes = budget,
                                        .reserve =
                                            [=](int64_t more) {
                                              *asked += more;
                                              return gives;
                                            }})
        .status();
  };
  int64_t asked = 0;
  EXPECT_TRUE(absl::IsResourceExhausted(of(int64_t{1} << 20, true, &asked)));
  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(of(int64_t{1} << 30, false, &asked)));
  asked = 0;
  EXPECT_TRUE(of(int64_t{1} << 30, true, &asked).ok());
  EXPECT_GT(asked, 4'000'000);  // once for both instances
  EXPECT_LT(asked, 20'000'000);
}

TEST(CountArithmetic, StepsAreSampledAsStateRangesAre) {
  const auto at_stride = [](int32_t stride) {
    const Work work = Counted([](Builder&, Var x, Var y) { return x + y; }, In(Format::kBf16),
                              {0.001}, {4.0}, 10);
    return Of(Count(work, {.stride = stride}).forward, "add");
  };
  EXPECT_EQ(at_stride(1), (ArithmeticCounts{10, 0, 0, 10, 10}));
  EXPECT_EQ(at_stride(4), (ArithmeticCounts{3, 0, 0, 3, 3}));  // 3, 7 and the last
  EXPECT_EQ(at_stride(32), (ArithmeticCounts{1, 0, 0, 1, 1}));
}

TEST(CountArithmetic, InstancesAreTheFirst) {
  Work work =
      Counted([](Builder&, Var x, Var y) { return x + y; }, In(Format::kBf16), {0.001}, {4.0});
  work.batch.instances = 3;
  work.batch.instance_ids = {7, 8, 9};
  work.batch.inputs[0] = {tests::Doubles({0.001, 1.0, 0.001}, {3, 1}), true, false};
  const auto of = [&](int64_t instances) {
    return Of(CountArithmetic(work.batch, {.instances = instances})->forward, Role::kDynamics);
  };
  EXPECT_EQ(of(1), (ArithmeticCounts{1, 0, 0, 1, 1}));
  EXPECT_EQ(of(2), (ArithmeticCounts{2, 0, 0, 2, 1}));
  EXPECT_EQ(of(100), (ArithmeticCounts{3, 0, 0, 3, 2}));
}

TEST(CountArithmetic, NamesTheLoopAround) {
  const Work work = Counted(
      [](Builder& b, Var x, Var y) {
        const LoopResult loop = b.While(
            {.site = "gather", .max_iter = 5}, {y}, {},
            [&](const Vars&, const Vars&) {
              return LoopTest{b.Literal(1.0), b.Literal(0.0), std::nullopt, {}};
            },
            [&](const Vars& carried, const Vars&, const Vars&) {
              return Vars{carried[0] + b.Broadcast(b.Literal(0.001), {1}, {})};
            });
        return loop.carried[0] + x;
      },
      In(Format::kBf16), {1.0}, {4.0});
  std::vector<OperationArithmetic> adds;
  for (const OperationArithmetic& row : Count(work).forward) {
    if (row.operation == "add") adds.push_back(row);
  }
  ASSERT_EQ(adds.size(), 2u);
  EXPECT_EQ(adds[1].site, "");
  EXPECT_EQ(adds[1].counts, (ArithmeticCounts{1, 0, 0, 1, 0}));
  EXPECT_EQ(adds[0].site, "gather");
  EXPECT_EQ(adds[0].counts, (ArithmeticCounts{5, 0, 0, 5, 5}));
}

// k is added to z at every step: its gradient is a sum of ones, which bf16 holds up to 256.
Work SumOfOnes(int64_t steps, Format gradient) {
  Builder b("ones");
  const Var z = b.State("z", {});
  const Var k = b.Param("k", {});
  b.SetNext({z + k});
  b.AddObjective("cost", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  auto lowered = tests::LowerForGradient(
      *b.Finish(),
      tests::PolicyOf({.preset = "f32", .roles = {{"gradient", {.format = gradient}}}}), "cost");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*std::move(lowered), 1, steps);
  Bind(work, InputKind::kState, "z", tests::Shared({0.0}, {}));
  Bind(work, InputKind::kParam, "k", tests::Shared({1.0}, {}));
  return work;
}

TEST(CountArithmetic, GradientsThatStandStill) {
  const Arithmetic counted = Count(SumOfOnes(300, Format::kBf16), {.stride = 1});
  // 256 + 1 is 256: the additions from the 257th on. The first is to zero.
  EXPECT_EQ(Of(counted.adjoint, "accumulate", "k"), (ArithmeticCounts{300, 0, 0, 299, 44}));
  const Arithmetic wide = Count(SumOfOnes(300, Format::kF32), {.stride = 1});
  EXPECT_EQ(Of(wide.adjoint, "accumulate", "k"), (ArithmeticCounts{300, 0, 0, 299, 0}));
  EXPECT_EQ(Of(wide.adjoint, Role::kGradient), (ArithmeticCounts{301, 0, 0, 299, 0}));
}

// z x at every step, with x = 1/4: the cotangent of z is 4^-n, and leaves f16 behind the 12th.
TEST(CountArithmetic, CotangentsUnderflowInsideOperations) {
  Builder b("decay");
  const Var z = b.State("z", {});
  const Var x = b.Param("x", {});
  b.Label("product");
  b.SetNext({z * x});
  b.Label("");
  b.AddObjective("cost", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  auto lowered = tests::LowerForGradient(
      *b.Finish(),
      tests::PolicyOf({.preset = "f32", .roles = {{"adjoint", {.format = Format::kF16}}}}), "cost");
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*std::move(lowered), 1, 20);
  Bind(work, InputKind::kState, "z", tests::Shared({1.0}, {}));
  Bind(work, InputKind::kParam, "x", tests::Shared({0.25}, {}));
  const Arithmetic counted = Count(work, {.stride = 1});
  uint64_t products = 0, casts = 0;
  for (const OperationArithmetic& row : counted.adjoint) {
    (row.operation == "mul" ? products : casts) +=
        row.operation.empty() ? 0 : row.counts.underflows;
    if (row.operation == "mul") {
      EXPECT_EQ(row.label, "product");
    }
  }
  // 4^-8 to 4^-12 are subnormal and exact. 4^-13 is zero: an underflow. The gradient of x at step t is
  // 4^-(19 - t) by z = 4^-t: an underflow where both are there, for t from 7 to 12.
  EXPECT_EQ(products, 1u + 6u);
  // z is none from 4^-13 on, at the steps 13 to 19.
  EXPECT_EQ(casts, 7u);
}

TEST(CountArithmetic, IsAskedForByTheWork) {
  for (const bool asks : {false, true}) {
    Work work = SumOfOnes(300, Format::kBf16);
    work.options.stride = 1;
    work.arithmetic_instances = asks ? 1 : 0;
    Observer nobody;
    const auto result = tests::Execute(work, nobody);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->arithmetic, asks ? Count(work, {.stride = 1}) : Arithmetic{});
    EXPECT_EQ(result->gradients[0].gradient.Get(0), 1.0);
    EXPECT_EQ(result->gradients[1].gradient.Get(0), 256.0);
  }
}

TEST(CountArithmetic, AReversalTellsItsOwn) {
  Work work = SumOfOnes(300, Format::kBf16);
  work.options.stride = 1;
  work.arithmetic_instances = 1;
  Observer nobody;
  const auto whole = tests::Execute(work, nobody);
  Work forward = work;
  forward.gradient.reset();
  forward.keep = true;
  const Engine engine(MakeReferenceExecutor());
  const auto kept = engine.Execute(forward, nobody);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->arithmetic.forward, whole->arithmetic.forward);
  const auto reversed = engine.Reverse(*kept->kept, WorkOf(*kept->kept), nobody);
  ASSERT_TRUE(reversed.ok()) << reversed.status();
  EXPECT_TRUE(reversed->arithmetic.forward.empty());
  EXPECT_EQ(reversed->arithmetic.adjoint, whole->arithmetic.adjoint);
  EXPECT_FALSE(whole->arithmetic.adjoint.empty());
}

TEST(CountArithmetic, StopsWhereItIsAskedTo) {
  const Work work = SumOfOnes(10'000, Format::kBf16);
  int asked = 0;
  const auto stopped =
      CountArithmetic(work.batch, {.instances = 1, .adjoint = true}, [&] { return ++asked > 3; });
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
}

TEST(CountArithmetic, APivotOfZeroAtGivenRowsIsNoOverflow) {
  const auto factors = [](Builder& b, Var x, Var) {
    const Var rows = b.IntegerArray({0, 1}, {2});
    return b.Reshape(b.Do(kLu, {b.Reshape(x, {2, 2}), rows}), {4});
  };
  const auto overflows = [&](double pivot) {
    const Work work = Counted(factors, In(Format::kF16), {pivot, 1, 8192, 3}, {0, 0, 0, 0});
    return Of(Count(work).forward, "lu").overflows;
  };
  EXPECT_EQ(overflows(0.0), 0u);
  EXPECT_EQ(overflows(0x1p-10), 2u);  // 8192 / 2^-10, and what it multiplies
}

TEST(CountArithmetic, TellsTheMostOperationsThatLoseMost) {
  const Work work = Counted(
      [](Builder& b, Var x, Var y) {
        for (int i = 0; i < 300; ++i) {
          b.Label("line " + std::to_string(i));
          const int64_t lost = i < 150 ? 2 : 1;
          Var part = b.Slice(y, {0}, {lost});
          part = part + b.Slice(x, {0}, {lost});
          y = b.Concat({part, b.Slice(y, {lost}, {2 - lost})}, 0);
        }
        return y;
      },
      In(Format::kBf16), {0.001, 0.001}, {4.0, 4.0});
  const std::vector<OperationArithmetic> rows = Count(work).forward;
  size_t told = 0;
  for (const OperationArithmetic& row : rows) told += row.operation.empty() ? 0 : 1;
  EXPECT_EQ(told, kMostArithmeticRows);
  for (size_t k = 1; k < rows.size(); ++k) {
    if (!rows[k - 1].operation.empty()) {
      EXPECT_GE(rows[k - 1].counts.lost(), rows[k].counts.lost());
    }
  }
  EXPECT_EQ(Of(rows, Role::kDynamics).absorbed, 450u);
}

}  // namespace
}  // namespace simgrad::sim
