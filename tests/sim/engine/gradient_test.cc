// Gradients against central differences in f64, and against published values.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/done.h"
#include "tests/sim/json.h"
#include "tests/sim/work_maker.h"
#include "tests/source_tree.h"

namespace simgrad {
namespace {

using sim::Builder;
using sim::Comparison;
using sim::InputKind;
using sim::OpCode;
using sim::Var;
using sim::Vars;
using sim::Work;
using sim::WorkResult;
using tests::Done;

precision::Policy F64() {
  precision::PolicySpec spec;
  spec.preset = "f64";
  return tests::PolicyOf(spec);
}

double GradientAt(const WorkResult& result, int32_t input, int64_t element) {
  for (const sim::InputGradient& gradient : result.gradients) {
    if (gradient.input == input) return gradient.gradient.Get(element);
  }
  ADD_FAILURE() << "no gradient of input " << input;
  return 0.0;
}

// Compares every element of every bound input's gradient with (f(x+d) - f(x-d)) / 2d. The
// difference errs by O(d^2) in truncation and eps / d in rounding; with d = 2^-18 both are below
// 1e-10 times the scale of f and its third derivative, so 1e-7 holds with room for a factor of a
// thousand.
void ExpectCentralDifferences(const Work& work) {
  const WorkResult result = Done(work);
  constexpr double kD = 0x1p-18;
  for (const sim::InputGradient& gradient : result.gradients) {
    const size_t input = static_cast<size_t>(gradient.input);
    const sim::Tensor& sent = work.batch.inputs[input].tensor;
    for (int64_t i = 0; i < sent.count(); ++i) {
      if (sent.bytes.empty()) break;
      const auto at = [&](double d) {
        Work moved = work;
        moved.batch.inputs[input].tensor.Set(i, sent.Get(i) + d);
        const WorkResult there = Done(moved);
        EXPECT_EQ(there.path_signatures, result.path_signatures) << "the path must not change";
        return there.value;
      };
      const double expected = (at(kD) - at(-kD)) / (2 * kD);
      EXPECT_NEAR(gradient.gradient.Get(i), expected, 1e-7 * std::max(1.0, std::abs(expected)))
          << work.batch.program->program.inputs[input].name << " element " << i;
    }
  }
}

Work WorkFor(const std::function<void(Builder&)>& write, const std::string& objective,
             int64_t steps) {
  Builder builder("test");
  write(builder);
  const auto world = builder.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = tests::LowerForGradient(*world, F64(), objective);
  EXPECT_TRUE(program.ok()) << program.status();
  return tests::WorkOf(*std::move(program), 1, steps);
}

TEST(Gradient, OfALinearRecurrenceIsItsClosedForm) {
  Work work = WorkFor(
      [](Builder& b) {
        const Var x = b.State("x", {});
        const Var k = b.Param("k", {});
        b.SetNext({k * x});
        b.AddObjective("last", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
      },
      "last", 5);
  tests::Bind(work, InputKind::kState, "x", tests::Shared({3.0}, {}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({0.5}, {}));
  const WorkResult result = Done(work);
  EXPECT_EQ(result.value, 3.0 / 32);
  EXPECT_EQ(GradientAt(result, 1, 0), 5 * 3.0 / 16);  // T k^(T-1) x0, all powers of two
  EXPECT_EQ(GradientAt(result, 0, 0), 1.0 / 32);
}

TEST(Gradient, OfNoStepsIsThatOfTheTerminalCost) {
  Work work = WorkFor(
      [](Builder& b) {
        const Var x = b.State("x", {});
        const Var k = b.Param("k", {});
        b.SetNext({k * x});
        b.AddObjective("last", nullptr,
                       [](const Vars& states, const Vars&) { return states[0] * states[0]; });
      },
      "last", 0);
  tests::Bind(work, InputKind::kState, "x", tests::Shared({3.0}, {}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({0.5}, {}));
  const WorkResult result = Done(work);
  EXPECT_EQ(result.value, 9.0);
  EXPECT_EQ(GradientAt(result, 0, 0), 6.0);
  EXPECT_EQ(GradientAt(result, 1, 0), 0.0);
  EXPECT_EQ(result.gradients[1].connected, 0);
}

// One operation of every kind with a derivative, over several elements.
TEST(Gradient, OfEveryElementwiseOperationIsThatOfCentralDifferences) {
  using enum OpCode;
  Work work = WorkFor(
      [](Builder& b) {
        const Var x = b.State("x", {4});
        const Var k = b.Param("k", {});
        const Var c = b.Control("c", {4});
        Var sum = x * c;
        sim::EachOp([&](OpCode code, const sim::OpInfo& info) {
          if (info.op_class != sim::OpClass::kElementwise ||
              info.derivative == sim::Derivative::kNone)
            return;
          Vars operands = {x, c, x};
          for (size_t i = 0; i < operands.size(); ++i) {
            const bool narrow =
                info.domains[i] == sim::Domain::kInside || info.domains[i] == sim::Domain::kBounded;
            if (narrow) operands[i] = 0.5 * operands[i];
          }
          sum = sum +
                k * b.Apply(code, Vars(operands.begin(), operands.begin() + info.operands.most));
        });
        sum = sum + Max(x, c) * Min(x, k * c) - b.Cumsum(x, 0) * b.Cumsum(c, 0, true);
        sum = sum + b.Reduce(kReduceMax, x) * b.Reduce(kReduceMin, c);
        const Var bent = Select(b.Event("side", x, Comparison::kLt, b.Literal(1.0)), x * x, k * x);
        b.SetNext({0.01 * sum + bent});
        b.Export("bent", bent);
        b.AddObjective(
            "cost", [&] { return b.Mean(bent * bent); },
            [&](const Vars& states, const Vars&) { return b.Reduce(kSum, states[0] * states[0]); });
      },
      "cost", 3);
  tests::Bind(work, InputKind::kState, "x", tests::Shared({0.3, 0.7, 1.3, 1.6}, {4}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({0.8}, {}));
  tests::Bind(
      work, InputKind::kControl, "c",
      {tests::Doubles({0.4, 0.9, 1.1, 1.45, 0.5, 0.8, 1.0, 1.4, 0.6, 0.7, 1.2, 1.5}, {3, 4}), false,
       true});
  ExpectCentralDifferences(work);
}

// Places inside and outside, met once and twice; a matrix that needs pivots; factors of a definite one.
TEST(Gradient, OfArraysAndLinearAlgebraIsThatOfCentralDifferences) {
  using enum OpCode;
  Work work = WorkFor(
      [](Builder& b) {
        const Var x = b.State("x", {4});
        const Var k = b.Param("k", {4, 4});
        const auto sum = [&](Var v) { return b.Reduce(kSum, v * v); };
        const Var places = b.IntegerArray({2, -1, 2, 5, 0}, {5});
        Var total = sum(b.Do(kGather, {x, places},
                             {.literal = {2.0}, .axes = {0}, .bounds = sim::Bounds::kFill}));
        total =
            total + sum(b.Do(kGather, {k, places}, {.axes = {1}, .bounds = sim::Bounds::kClip}));
        const Var updates =
            b.Do(kTake, {k}, {.literal = {0.5}, .start = {3, 7, 7, -1, 0}, .shape = {5}});
        for (const auto combine :
             {sim::Combine::kSet, sim::Combine::kAdd, sim::Combine::kMin, sim::Combine::kMax}) {
          for (const auto bounds : {sim::Bounds::kClip, sim::Bounds::kDrop}) {
            total = total + sum(b.Do(kScatter, {x, places, updates},
                                     {.axes = {0}, .bounds = bounds, .combine = combine}));
          }
        }
        const Var distinct = b.IntegerArray({2, 0}, {2});
        total =
            total +
            sum(b.Do(kScatter, {x, distinct, b.Slice(updates, {0}, {2})},
                     {.axes = {0}, .bounds = sim::Bounds::kDrop, .combine = sim::Combine::kMul}));
        const Var part = b.Do(kDynamicSlice, {k, b.IntegerArray({3, 1}, {2})}, {.shape = {2, 2}});
        total =
            total + sum(b.Do(kUpdate, {k, b.Apply(kSin, {part}), b.IntegerArray({-1, 1}, {2})}));
        total = total + sum(b.Do(kSlice, {k}, {.start = {1, 0}, .shape = {2, 2}, .dims = {2, 3}}));
        total = total +
                sum(b.Do(kPad, {x}, {.literal = {3.0}, .start = {1}, .shape = {9}, .dims = {1}}) *
                    b.Do(kConcat, {x, x, b.Slice(x, {0}, {1})}, {.axes = {0}}));
        const Var turned = b.Do(kTranspose, {k}, {.dims = {1, 0}});
        const Var order = b.Do(kArgsort, {x}, {.axes = {0}});
        total =
            total + sum(b.Do(kGather, {x, order}, {.axes = {0}, .bounds = sim::Bounds::kClip}) * x);
        const Var square = b.Do(kMatmul, {k, turned});
        std::vector<double> diagonal(16, 0.0);
        for (size_t i = 0; i < 16; i += 5) diagonal[i] = 3.0;
        const Var definite = square + b.LiteralArray(diagonal, {4, 4});
        const Var factor = b.Do(kCholesky, {definite});
        total = total + sum(factor);
        const Var column = b.Reshape(x, {4, 1});
        for (const bool transposed : {false, true}) {
          total = total + sum(b.Do(kTriangularSolve, {factor, column}, {.transposed = transposed}));
          total = total + sum(b.Do(kTriangularSolve, {0.25 * k, column},
                                   {.upper = true, .transposed = transposed, .unit = true}));
          const Var factors = b.Do(kLu, {k});
          const Var rows = b.Do(kLuPermutation, {k});
          total =
              total + sum(b.Do(kLuSolve, {k, factors, rows, column}, {.transposed = transposed}));
        }
        total = total + sum(b.Do(kLu, {k})) + sum(b.Do(kSolve, {k, column}));
        total = total + sum(b.Do(kLu, {k, b.IntegerArray({2, 0, 3, 1}, {4})}));
        for (const sim::Shape& shape : {sim::Shape{4, 2}, {2, 4}, {4, 1}, {3, 4}, {4, 3}}) {
          const Var a = b.Do(kSlice, {k}, {.start = {0, 0}, .shape = shape});
          total = total + sum(b.Do(kLu, {a}) * a);
          // Rows that are an order, and such that name none or one twice.
          for (const std::vector<double>& given : std::vector<std::vector<double>>{
                   {1, 2, 3, 0}, {1, 1, 0, 0}, {9, -1, 0, 0}, {2, 0, 1, 3}}) {
            const Var rows = b.Slice(b.IntegerArray(given, {4}), {0}, {shape[0]});
            total = total + sum(b.Do(kLu, {a, rows}) * a);
          }
        }
        total = total + sum(b.Reduce(kNorm2, k, {1})) + b.Reduce(kNorm2, x);
        b.SetNext({0.01 * b.Broadcast(total, {4}, {}) * x + x});
        b.Export("total", total);
        b.AddObjective(
            "cost", [&] { return total; },
            [&](const Vars& states, const Vars&) { return sum(states[0]); });
      },
      "cost", 2);
  tests::Bind(work, InputKind::kState, "x", tests::Shared({0.3, 0.7, -0.4, 0.6}, {4}));
  tests::Bind(work, InputKind::kParam, "k",
              tests::Shared({0.5, -1.2, 0.4, 0.9, 1.4, 0.3, -0.7, 0.2, -0.8, 0.6, 1.1, -0.5, 0.1,
                             0.9, -0.3, 1.3},
                            {4, 4}));
  ExpectCentralDifferences(work);
}

// A while of either cap order with exports and captures, inside a for.
void NestedLoops(Builder& b, sim::CapOrder cap_order, int64_t max_iter) {
  const Var x = b.State("x", {2});
  const Var k = b.Param("k", {});
  const Var w = b.Param("w", {2});
  const Vars out = b.For(2, {x, x}, [&](Var index, const Vars& carried) {
    sim::WhileOptions options;
    options.site = "shrink";
    options.max_iter = max_iter;
    options.cap_order = cap_order;
    const sim::LoopResult loop = b.While(
        options, {carried[0]}, {},
        [&](const Vars& in, const Vars&) {
          const Var p = in[0] * in[0];
          return sim::LoopTest{b.Reduce(OpCode::kSum, p), b.Literal(0.5), std::nullopt, {p, k * p}};
        },
        [&](const Vars& in, const Vars& exports, const Vars&) {
          return Vars{in[0] - 0.3 * k * exports[0] * w + 0.01 * exports[1]};
        });
    const Var trip = b.Convert(index, sim::ElementType::kReal);
    return Vars{1.5 * loop.carried[0] + 0.1 * trip * k, carried[1] + loop.exports[0] * w};
  });
  b.SetNext({0.5 * out[0] + 0.2 * out[1]});
  b.AddObjective("cost", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0] * states[0]);
  });
}

TEST(Gradient, OfNestedLoopsIsThatOfCentralDifferences) {
  for (sim::CapOrder order : {sim::CapOrder::kTestFirst, sim::CapOrder::kCapFirst}) {
    for (int64_t max_iter : {1, 2, 20}) {
      Work work = WorkFor([&](Builder& b) { NestedLoops(b, order, max_iter); }, "cost", 3);
      tests::Bind(work, InputKind::kState, "x", tests::Shared({1.1, 0.7}, {2}));
      tests::Bind(work, InputKind::kParam, "k", tests::Shared({0.9}, {}));
      tests::Bind(work, InputKind::kParam, "w", tests::Shared({1.2, 0.8}, {2}));
      ExpectCentralDifferences(work);
    }
  }
}

TEST(Gradient, OfALoopPerElementIsThatOfCentralDifferences) {
  for (sim::CapOrder order : {sim::CapOrder::kTestFirst, sim::CapOrder::kCapFirst}) {
    Work work = WorkFor(
        [&](Builder& b) {
          const Var x = b.State("x", {3});
          const Var k = b.Param("k", {});
          sim::WhileOptions options;
          options.site = "each";
          options.max_iter = 3;
          options.elements = 3;
          options.cap_order = order;
          const sim::LoopResult loop = b.While(
              options, {x}, {b.Broadcast(k, {3}, {})},
              [&](const Vars& in, const Vars& mapped) {
                return sim::LoopTest{
                    in[0], b.Literal(0.5), std::nullopt, {mapped[0] * in[0] * in[0]}};
              },
              [](const Vars& in, const Vars& exports, const Vars& mapped) {
                return Vars{0.6 * mapped[0] * in[0] + 0.05 * exports[0]};
              });
          b.SetNext({loop.carried[0] + 0.3 * loop.exports[0]});
          b.AddObjective("cost", nullptr, [&](const Vars& states, const Vars&) {
            return b.Reduce(OpCode::kSum, states[0] * states[0]);
          });
        },
        "cost", 2);
    tests::Bind(work, InputKind::kState, "x", tests::Shared({0.4, 0.9, 4.0}, {3}));
    tests::Bind(work, InputKind::kParam, "k", tests::Shared({0.9}, {}));
    ExpectCentralDifferences(work);
  }
}

TEST(Gradient, GoesThroughTheInitialRegionAndIntegerStates) {
  Work work = WorkFor(
      [](Builder& b) {
        const Var x = b.State("x", {});
        const Var n = b.State("n", {}, "", sim::ElementType::kI32);
        const Var k = b.Param("k", {});
        b.SetInitial([&] { return Vars{k * x * x, n}; });
        const Var count = b.Convert(n, sim::ElementType::kReal);
        b.SetNext({x + count * k * x, n + b.Integer(1)});
        b.AddObjective("last", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
      },
      "last", 3);
  tests::Bind(work, InputKind::kState, "x", tests::Shared({0.7}, {}));
  tests::Bind(work, InputKind::kState, "n", tests::Shared({2}, {}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({0.3}, {}));
  ExpectCentralDifferences(work);
}

// States x and w with an initial region; no step reads w, and each is computed there from
// parameters of its own.
Work UnreadState(bool terminal_reads_x, int64_t steps) {
  Work work = WorkFor(
      [&](Builder& b) {
        const Var x = b.State("x", {});
        const Var w = b.State("w", {2});
        const Var k = b.Param("k", {});
        const Var m = b.Param("m", {});
        b.SetInitial([&] { return Vars{m * x * x, k * w * w}; });
        b.SetNext({x + m * x, b.Broadcast(x * x, {2}, {})});
        b.AddObjective("last", nullptr, [&](const Vars& states, const Vars&) {
          const Var of_w = b.Reduce(OpCode::kSum, states[1] * states[1]);
          return terminal_reads_x ? of_w + states[0] : of_w;
        });
      },
      "last", steps);
  tests::Bind(work, InputKind::kState, "x", tests::Shared({0.7}, {}));
  tests::Bind(work, InputKind::kState, "w", tests::Shared({0.4, -1.2}, {2}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({0.3}, {}));
  tests::Bind(work, InputKind::kParam, "m", tests::Shared({0.9}, {}));
  return work;
}

TEST(Gradient, OfAStateThatNoStepReadsGoesThroughTheInitialRegion) {
  for (const bool terminal_reads_x : {false, true}) {
    for (int64_t steps : {0, 1, 2}) {
      const Work work = UnreadState(terminal_reads_x, steps);
      ExpectCentralDifferences(work);
      const WorkResult reference = Done(work);
      sim::Observer nobody;
      const auto cpu = sim::Engine(sim::MakeCpuExecutor()).Execute(work, nobody);
      ASSERT_TRUE(cpu.ok()) << cpu.status();
      const auto connected = [&](InputKind kind, const std::string& name) {
        const int32_t input = tests::IndexOf(work.batch.program->program, kind, name);
        for (const auto& g : reference.gradients) {
          if (g.input == input) return g.connected;
        }
        return int64_t{-1};
      };
      EXPECT_EQ(connected(InputKind::kParam, "k"), steps == 0 ? 1 : 0);
      EXPECT_EQ(connected(InputKind::kState, "w"), steps == 0 ? 1 : 0);
      EXPECT_EQ(connected(InputKind::kParam, "m"), steps > 0 || terminal_reads_x ? 1 : 0);
      EXPECT_EQ(connected(InputKind::kState, "x"), steps > 0 || terminal_reads_x ? 1 : 0);
      ASSERT_EQ(cpu->gradients.size(), reference.gradients.size());
      for (size_t i = 0; i < cpu->gradients.size(); ++i) {
        EXPECT_EQ(cpu->gradients[i].gradient, reference.gradients[i].gradient) << i;
        EXPECT_EQ(cpu->gradients[i].connected, reference.gradients[i].connected) << i;
      }
    }
  }
}

// Cotangents that a caller sends: the gradient of sum of c * z over everything sent.
TEST(Gradient, OfSentCotangentsIsTheVjp) {
  Builder builder("test");
  const Var x = builder.State("x", {});
  const Var k = builder.Param("k", {});
  const Var next = k * x;
  builder.SetNext({next});
  builder.Export("double", next + next);
  const auto world = builder.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  sim::AdjointSpec spec;
  spec.final_state = {true};
  spec.trajectory_state = {true};
  spec.trajectory_export = {true};
  spec.wanted = {true, true};
  auto program = sim::Lower(*world, F64(), "", spec);
  ASSERT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 1, 2);
  tests::Bind(work, InputKind::kState, "x", tests::Shared({3.0}, {}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({2.0}, {}));
  work.batch.cotangents.final_state = {{1.0}};
  work.batch.cotangents.trajectory_state = {{10.0, 100.0, 1000.0}};
  work.batch.cotangents.trajectory_export = {{0.5, 0.25}};
  const WorkResult result = Done(work);
  // f = 10 x + 100 k x + 1001 k^2 x + 0.5 (2 k x) + 0.25 (2 k^2 x)
  EXPECT_EQ(GradientAt(result, 0, 0), 10 + 200 + 4004 + 2 + 2);
  EXPECT_EQ(GradientAt(result, 1, 0), 3.0 * (100 + 2 * 2 * 1001 + 1 + 2));
}

// x[t+1] = k x[t] in f16 with a cotangent that is sent for x[T]; T = 2.
Work SentInF16(const std::vector<double>& cotangent) {
  const auto n = static_cast<int64_t>(cotangent.size());
  Builder builder("test");
  const Var x = builder.State("x", {n});
  const Var k = builder.Param("k", {});
  builder.SetNext({builder.Broadcast(k, {n}, {}) * x});
  const auto world = builder.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  sim::AdjointSpec spec;
  spec.final_state = {true};
  spec.wanted = {true, true};
  precision::PolicySpec policy;
  policy.preset = "f16_unsafe";
  auto program = sim::Lower(*world, tests::PolicyOf(policy), "", spec);
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 1, 2);
  tests::Bind(work, InputKind::kState, "x",
              tests::Shared(std::vector<double>(cotangent.size(), 3.0), {n}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({2.0}, {}));
  work.batch.cotangents.final_state = {cotangent};
  return work;
}

// Chunks are shorter than the way between checkpoints: a replay begins at its own chunk's state.
TEST(Gradient, ABirthIsReplayedFromTheStartOfItsChunkWhereverCheckpointsLie) {
  Builder b("squares");
  const Var x = b.State("x", {});
  b.SetNext({x * x});
  b.AddObjective("last", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  precision::PolicySpec policy;
  policy.preset = "f32";
  sim::AdjointSpec spec;
  spec.wanted = {true};
  const auto program = sim::Lower(*world, tests::PolicyOf(policy), "last", spec);
  ASSERT_TRUE(program.ok()) << program.status();
  for (const bool cpu : {false, true}) {
    for (const int64_t interval : {int64_t{1}, int64_t{3}, int64_t{32}, INT64_MAX}) {
      Work work = tests::WorkOf(*program, 1, 12);
      tests::Bind(work, InputKind::kState, "x", tests::Shared({2.0}, {}));
      work.gradient.emplace();
      work.chunk_steps = 3;
      work.checkpoint_interval = interval;
      const std::shared_ptr<sim::Executor> executor =
          cpu ? sim::MakeCpuExecutor()
              : std::shared_ptr<sim::Executor>(sim::MakeReferenceExecutor());
      sim::Observer nobody;
      const auto result = sim::Engine(executor).Execute(std::move(work), nobody);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(result->certificates.size(), 1u) << interval;
      // 2^(2^t) before step t.
      EXPECT_EQ(result->certificates[0].step, 6) << interval;
      EXPECT_EQ(result->certificates[0].operands, (std::vector<double>{0x1p64, 0x1p64}));
    }
  }
}

TEST(Gradient, ASentCotangentBeyondItsFormatIsBornInItsConversionAnInfiniteOneIsInput) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const bool cpu : {false, true}) {
    const std::shared_ptr<sim::Executor> executor =
        cpu ? sim::MakeCpuExecutor() : std::shared_ptr<sim::Executor>(sim::MakeReferenceExecutor());
    const auto birth_of = [&](const std::vector<double>& sent) {
      sim::Observer nobody;
      const auto result = sim::Engine(executor).Execute(SentInF16(sent), nobody);
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok() || result->certificates.size() != 1u) return sim::BirthCertificate{};
      EXPECT_EQ(result->certificates[0].step, result->health[0].step);
      return result->certificates[0];
    };
    const sim::BirthCertificate beyond = birth_of({1e6});
    EXPECT_EQ(beyond.non_finite_class, sim::NonFiniteClass::kConversion);
    EXPECT_EQ(beyond.phase, sim::Phase::kAdjoint);
    EXPECT_EQ(beyond.operation, "cotangent.x");
    EXPECT_EQ(beyond.role, precision::Role::kAdjoint);
    EXPECT_EQ(beyond.format, precision::Format::kF16);
    EXPECT_EQ(beyond.operands, std::vector<double>{1e6});
    EXPECT_EQ(beyond.result, kInf);
    const sim::BirthCertificate first = birth_of({1.0, 1e6, -1e7, 1e8});
    EXPECT_EQ(first.element, 1);
    EXPECT_EQ(first.operands, std::vector<double>{1e6});
    // Only the operand that came says which.
    const sim::BirthCertificate negative = birth_of({kInf, -1e6});
    EXPECT_EQ(negative.non_finite_class, sim::NonFiniteClass::kInput);
    const sim::BirthCertificate infinite = birth_of({kInf});
    EXPECT_EQ(infinite.non_finite_class, sim::NonFiniteClass::kInput);
    EXPECT_EQ(infinite.phase, sim::Phase::kAdjoint);
    EXPECT_EQ(infinite.operation, "mul");
  }
  // Finite at 65504: an overflow of the multiplication by k is one, whatever was sent.
  sim::Observer nobody;
  const auto overflow =
      sim::Engine(sim::MakeReferenceExecutor()).Execute(SentInF16({65504}), nobody);
  ASSERT_TRUE(overflow.ok()) << overflow.status();
  ASSERT_EQ(overflow->certificates.size(), 1u);
  EXPECT_EQ(overflow->certificates[0].non_finite_class, sim::NonFiniteClass::kOverflow);
}

// a[t+1] = u, x[t+1] = x[t] + x[t], with the gradient of x alone: nothing reads the cotangent of a.
TEST(Gradient, ACertificateNamesNoSentCotangentThatNothingReads) {
  Builder builder("test");
  builder.State("a", {});
  const Var x = builder.State("x", {});
  builder.SetNext({builder.Param("u", {}), x + x});
  const auto world = builder.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  sim::AdjointSpec spec;
  spec.final_state = {true, true};
  spec.wanted = {false, true, false};
  auto program = sim::Lower(*world, tests::PolicyOf({.preset = "f16_unsafe"}), "", spec);
  ASSERT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 1, 3);
  work.gradient.emplace();
  work.batch.cotangents.final_state = {{1e6}, {2e6}};
  for (sim::Binding& binding : work.batch.inputs) binding = tests::Shared({1.0}, {});
  sim::Observer nobody;
  const auto result = sim::Engine(sim::MakeReferenceExecutor()).Execute(std::move(work), nobody);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->certificates.size(), 1u);
  EXPECT_EQ(result->certificates[0].operation, "cotangent.x");
}

TEST(Gradient, OfTheBallAtTheTimeOfImpactIsThePublishedOne) {
  const tests::Json published = tests::ReadJsonFile(tests::TestData("published.json"));
  const tests::Json& ball = published["cases"].items.at(0);
  ASSERT_EQ(ball["name"].text, "ball_analytic");
  const tests::Json& expected = ball["expect"];
  const auto world =
      sim::BuildWorld("bouncing_ball", {{"contact", std::string("toi")}, {"elements", 1.0}});
  ASSERT_TRUE(world.ok()) << world.status();
  auto program = tests::LowerForGradient(*world, F64(), "final_height");
  ASSERT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 1, 1500);
  tests::Bind(work, InputKind::kState, "y", tests::Shared({50.0}, {1}));
  tests::Bind(work, InputKind::kState, "v", tests::Shared({0.0}, {1}));
  for (const auto& [name, value] :
       std::map<std::string, double>{{"k", 0.0}, {"g", 9.8}, {"restitution", 0.8}, {"h", 0.01}}) {
    tests::Bind(work, InputKind::kParam, name, tests::Shared({value}, {}));
  }
  const WorkResult result = Done(work);
  // The steps between impacts are exact but for rounding: 1500 steps, heights below 50, so at most
  // 1500 * 50 * 2^-53 = 8e-12 in the height; the derivatives are up to 315 and cross three impacts,
  // each of which divides by a speed of at least 16.
  const auto gradient = [&](InputKind kind, const std::string& name) {
    return GradientAt(result, tests::IndexOf(work.batch.program->program, kind, name), 0);
  };
  const tests::Json& slopes = expected["d_height"];
  EXPECT_NEAR(result.value, expected["height_at_end"].Number(), 1e-9);
  EXPECT_NEAR(gradient(InputKind::kParam, "restitution"), slopes["restitution"].Number(), 1e-7);
  EXPECT_NEAR(gradient(InputKind::kParam, "g"), slopes["g"].Number(), 1e-8);
  EXPECT_NEAR(gradient(InputKind::kState, "y"), slopes["x0"].Number(), 1e-8);
}

// Of a = q b + y: the multiple of b is beyond the format, the quotient is not.
TEST(Gradient, OfARemainderIsItsQuotientToTheTopOfEveryFormat) {
  struct Case {
    const char* preset;
    OpCode code;
    double a, b, quotient;
  };
  const std::vector<Case> cases = {{"f16_unsafe", OpCode::kMod, 50000, -40000, -2},
                                   {"f16_unsafe", OpCode::kMod, 65504, -60000, -2},
                                   {"f16_unsafe", OpCode::kRem, 65504, -60000, -1},
                                   {"f16_unsafe", OpCode::kRem, 300, 1.5, 200},
                                   {"f32", OpCode::kMod, 3.4e38, -2e38, -2},
                                   {"f64", OpCode::kMod, 1.7e308, -1e308, -2},
                                   {"f64", OpCode::kRem, 1.7e308, 1e308, 1}};
  for (const Case& c : cases) {
    Builder b("remainder");
    const Var x = b.State("x", {});
    const Var divisor = b.Param("b", {});
    b.SetNext({b.Apply(c.code, {x, divisor})});
    const auto program = b.Finish();
    ASSERT_TRUE(program.ok()) << program.status();
    sim::AdjointSpec spec;
    spec.final_state = {true};
    spec.wanted = {true, true};
    auto lowered = sim::Lower(*program, tests::PolicyOf({.preset = c.preset}), "", spec);
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    Work work = tests::WorkOf(*std::move(lowered), 1, 1);
    tests::Bind(work, InputKind::kState, "x", tests::Shared({c.a}, {}));
    tests::Bind(work, InputKind::kParam, "b", tests::Shared({c.b}, {}));
    work.batch.cotangents.final_state = {{1.0}};
    const WorkResult result = Done(work);
    EXPECT_EQ(GradientAt(result, 1, 0), -c.quotient) << c.preset << " " << c.a << " " << c.b;
  }
}

}  // namespace
}  // namespace simgrad
