// Paths: a recorded run is the plain one, a run forced along its own path gives its bits, and one
// forced along another's decides as that did.
#include "sim/program/paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "sim/program/lower.h"
#include "sim/program/path_start.h"
#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using equality::Case;
using equality::FirstDifference;
using equality::Observe;
using equality::Observed;

std::shared_ptr<Executor> Reference() { return MakeReferenceExecutor(); }

// The row of step 0, by instance.
Tensor FirstRow(const Tensor& path) {
  Tensor row = Tensor::Zeros(DType::kU8, {path.shape[0], path.shape[2]});
  for (int64_t i = 0; i < path.shape[0]; ++i) {
    std::copy_n(path.bytes.begin() + i * path.shape[1] * path.shape[2], path.shape[2],
                row.bytes.begin() + i * path.shape[2]);
  }
  return row;
}

// The work of another lowering of the same world: inputs, cotangents and what is recorded go along.
Work Moved(const Work& from, NumericalProgram program, const Tensor* path) {
  Work work = from;
  const NumericalProgram& before = *from.batch.program;
  work.batch.inputs.clear();
  for (const Input& input : program.program.inputs) {
    Binding& binding = work.batch.inputs.emplace_back();
    if (input.name == kPathGiven) {
      binding = {*path, true, true};
      continue;
    }
    if (input.name == kPathGivenFirst) {
      binding = {FirstRow(*path), true, false};
      continue;
    }
    for (size_t i = 0; i < before.program.inputs.size(); ++i) {
      const Input& old = before.program.inputs[i];
      if (old.kind == input.kind && old.name == input.name) binding = from.batch.inputs[i];
    }
  }
  if (!program.program.exports.empty() && program.program.exports.back().name == kPathTaken) {
    const auto last = static_cast<int32_t>(program.program.exports.size()) - 1;
    work.options.record_exports.push_back(last);
  }
  if (program.adjoint)
    work.batch.cotangents.trajectory_export.resize(program.program.exports.size());
  if (const auto place = StatesBeforePathStart(program.program)) {
    Cotangents& sent = work.batch.cotangents;
    for (auto* states : {&sent.final_state, &sent.trajectory_state}) {
      if (!states->empty()) {
        states->insert(states->begin() + static_cast<int64_t>(*place),
                       decltype(sent.final_state)::value_type());
      }
    }
  }
  work.batch.program = std::make_shared<const NumericalProgram>(std::move(program));
  return work;
}

absl::StatusOr<NumericalProgram> Again(const Program& world, const NumericalProgram& plain,
                                       const std::optional<AdjointSpec>& asked, PathUse use) {
  return Lower(world, plain.policy, plain.objective, asked, nullptr, {.path = use});
}

// What is left of a run of so many inputs when its diagnostics are taken away.
Observed Numbers(const Observed& run, size_t inputs) {
  Observed numbers = run;
  numbers.connected.resize(std::min(inputs, run.connected.size()));
  numbers.instance_gradients.resize(std::min(inputs, run.instance_gradients.size()));
  numbers.diagnostics = {};
  numbers.sites.clear();
  numbers.result.path_signatures.clear();
  numbers.result.batch_path_signature = 0;
  numbers.result.first_event_steps.clear();
  numbers.result.certificates.clear();
  for (InputGradient& gradient : numbers.result.gradients) gradient.gated_by.clear();
  return numbers;
}

// Tests that disagreed with the path, of all sites and steps.
uint64_t Disagreements(const Work& work, const Observed& run) {
  uint64_t count = 0;
  size_t event = 0;
  for (const Site& site : work.batch.program->sites) {
    if (site.kind != SiteKind::kEvent) continue;
    const auto& steps = run.diagnostics.events[event++];
    if (!site.name.starts_with(kForcedSite)) continue;
    for (const EventStep& step : steps) count += step.count;
  }
  return count;
}

// A world whose decisions stand everywhere: at the top, in a loop per element, in the test and the
// body of a loop around another, in branches, in a scan, and as indices; all of them counted in integers that
// it exports.
Program Mixed(double tol, int64_t cap = 7) {
  constexpr auto kI32 = ElementType::kI32;
  Builder b("mixed");
  b.program().level = TestLevel::kAll;
  const Var x = b.State("x", {4});
  const Var k = b.Param("k", {}, 0.7);
  const Var small = b.Config("tol", tol);
  const Var top = b.Event("top", x, Comparison::kGt, b.Literal(0.3, {4}));
  const Var moved = Select(top, k * x, x + b.Literal(0.25, {4}));
  const LoopResult each = b.While(
      {.site = "each", .max_iter = cap, .elements = 4}, {moved, b.Integer(0, kI32, {4})}, {},
      [&](const Vars& c, const Vars&) -> LoopTest {
        return {b.Apply(OpCode::kAbs, {c[0]}), small, {}, {}};
      },
      [&](const Vars& c, const Vars&, const Vars&) -> Vars {
        const Var inside = b.Event("inside", c[0], Comparison::kGt, b.Literal(0.2));
        const Var next = Select(inside, 0.5 * c[0], 0.7 * c[0]);
        return {next, c[1] + b.Convert(inside, kI32)};
      });
  const Var total = b.Reduce(OpCode::kSum, each.carried[0] + moved);
  const LoopResult outer = b.While(
      {.site = "outer", .max_iter = 4}, {total, b.Integer(0)}, {},
      [&](const Vars& c, const Vars&) -> LoopPredicate {
        const Var probe = b.Apply(OpCode::kGt, {c[0], b.Literal(0.6)});
        return {b.Apply(OpCode::kLt, {c[0], 3.0 * small}), {probe}};
      },
      [&](const Vars& c, const Vars& probed, const Vars&) -> Vars {
        const LoopResult nested = b.While(
            {.site = "nested", .max_iter = 300, .cap_order = CapOrder::kCapFirst}, {c[0]}, {},
            [&](const Vars& d, const Vars&) -> LoopTest {
              return {b.Apply(OpCode::kAbs, {d[0]}), 0.4 * c[0], {}, {}};
            },
            [&](const Vars& d, const Vars&, const Vars&) -> Vars { return {0.8 * d[0]}; });
        const Var steep = b.Apply(OpCode::kGt, {nested.carried[0], b.Literal(0.11)});
        const Vars taken =
            b.Cond(steep, {nested.carried[0], c[1]},
                   {[&](const Vars& a) -> Vars {
                      return {a[0], a[1]};
                    },
                    [&](const Vars& a) -> Vars {
                      const Var far = b.Event("far", a[0], Comparison::kGt, b.Literal(0.3));
                      return {Select(far, 0.9 * a[0], a[0]), a[1] + b.Convert(far, kI32)};
                    }});
        const Var steps = taken[1] + nested.iterations + b.Convert(probed[0], kI32);
        return {taken[0], steps};
      });
  const Vars scanned =
      b.Scan(4, {outer.carried[0]}, {moved}, true, [&](Var, const Vars& c, const Vars& s) -> Vars {
        const Var above = b.Event("above", s[0], Comparison::kGe, c[0]);
        return {0.5 * (c[0] + s[0]), b.Convert(above, kI32)};
      });
  Attributes axis;
  axis.axes = {0};
  const Var best = b.Do(OpCode::kArgmax, {moved}, axis);
  const Var whole = b.Convert(8.0 * b.Reduce(OpCode::kSum, moved), kI32);
  const Var even =
      b.Apply(OpCode::kEq, {b.Apply(OpCode::kMod, {whole, b.Integer(2)}), b.Integer(0)});
  const Var factor = Select(even, b.Literal(0.9), b.Literal(1.1));
  b.SetNext({factor * moved + b.Broadcast(0.1 * scanned[0], {4}, {})});
  b.Export("top", b.Convert(top, kI32));
  b.Export("each", each.iterations);
  b.Export("inside", each.carried[1]);
  b.Export("outer", outer.iterations);
  b.Export("within", outer.carried[1]);
  b.Export("above", scanned[1]);
  b.Export("best", best);
  b.Export("whole", whole);
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  absl::StatusOr<Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

Work MixedWork(const Program& world, const std::string& preset, PathUse use, const Tensor* path) {
  constexpr int64_t kInstances = 9;
  constexpr int64_t kSteps = 6;
  AdjointSpec spec;
  spec.objective = "end";
  for (const Input& input : world.inputs) spec.wanted.push_back(IsDifferentiable(world, input));
  auto program =
      Lower(world, tests::PolicyOf({.preset = preset}), "end", spec, nullptr, {.path = use});
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, kSteps);
  std::vector<double> x;
  for (int64_t i = 0; i < kInstances * 4; ++i) x.push_back(0.07 + 0.021 * static_cast<double>(i));
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles(x, {kInstances, 4}), true, false});
  if (path != nullptr) {
    tests::Bind(work, InputKind::kData, kPathGiven, {*path, true, true});
    tests::Bind(work, InputKind::kParam, kPathGivenFirst, {FirstRow(*path), true, false});
  }
  for (size_t i = 0; i < work.batch.program->program.exports.size(); ++i) {
    work.options.record_exports.push_back(static_cast<int32_t>(i));
  }
  return work;
}

// The recorded path is taken out of the exports.
Observed Taken(std::shared_ptr<Executor> executor, const Program& world, const std::string& preset,
               Tensor& path) {
  auto run = Observe(std::move(executor), MixedWork(world, preset, PathUse::kRecorded, nullptr));
  EXPECT_TRUE(run.ok()) << run.status();
  path = run->exports.back();
  run->exports.pop_back();
  return *std::move(run);
}

// A recorded run is the plain one, and a run along its own path as well.
void ExpectItsBits(const std::shared_ptr<Executor>& executor, const Program& world,
                   const std::string& preset) {
  const auto plain = Observe(executor, MixedWork(world, preset, PathUse::kNone, nullptr));
  ASSERT_TRUE(plain.ok()) << plain.status();
  Tensor path;
  const Observed recorded = Taken(executor, world, preset, path);
  EXPECT_EQ(FirstDifference(*plain, recorded), std::nullopt);
  const Work work = MixedWork(world, preset, PathUse::kForced, &path);
  const auto forced = Observe(executor, work);
  ASSERT_TRUE(forced.ok()) << forced.status();
  const size_t inputs = world.inputs.size();
  EXPECT_EQ(FirstDifference(Numbers(*plain, inputs), Numbers(*forced, inputs)), std::nullopt);
  EXPECT_EQ(Disagreements(work, *forced), 0u);
}

class PathsOfMixed : public testing::TestWithParam<bool> {
 protected:
  static std::shared_ptr<Executor> Chosen() { return GetParam() ? MakeCpuExecutor() : Reference(); }
};
INSTANTIATE_TEST_SUITE_P(Executors, PathsOfMixed, testing::Bool(),
                         [](const auto& made) { return made.param ? "Cpu" : "Reference"; });

TEST_P(PathsOfMixed, OfAnotherFormatAreFollowedInEveryDecision) {
  const Program world = Mixed(0.05);
  Tensor exact, rough;
  const Observed of_exact = Taken(Chosen(), world, "f64", exact);
  const Observed of_rough = Taken(Chosen(), world, "bf16_unsafe", rough);
  ASSERT_NE(exact.bytes, rough.bytes) << "the formats were to decide otherwise";
  for (const bool along_exact : {true, false}) {
    const Work work = MixedWork(world, along_exact ? "bf16_unsafe" : "f64", PathUse::kForced,
                                along_exact ? &exact : &rough);
    const auto forced = Observe(Chosen(), work);
    ASSERT_TRUE(forced.ok()) << forced.status();
    const Observed& followed = along_exact ? of_exact : of_rough;
    ASSERT_EQ(forced->exports.size(), followed.exports.size());
    for (size_t i = 0; i < forced->exports.size(); ++i) {
      EXPECT_EQ(forced->exports[i].bytes, followed.exports[i].bytes) << world.exports[i].name;
    }
    EXPECT_GT(Disagreements(work, *forced), 0u);
    EXPECT_NE(forced->result.final_states[0].bytes, followed.result.final_states[0].bytes);
  }
}

TEST_P(PathsOfMixed, OfItsOwnGiveItsBits) {
  const Program world = Mixed(0.05);
  for (const std::string preset : {"f64", "bf16_unsafe"}) {
    ExpectItsBits(Chosen(), world, preset);
  }
}

// A world that factors matrices whose rows have nearly equal magnitudes: at the top, beside a
// permutation and without one, tall and wide, in the body of a loop and behind what its test
// exports. The orders of rows that it chose are exports.
Program Pivoting(TestLevel level) {
  constexpr auto kI32 = ElementType::kI32;
  using enum OpCode;
  Builder b("pivoting");
  b.program().level = level;
  const Var x = b.State("x", {4});
  const Var k = b.Param("k", {}, 0.7);
  const Var base = b.LiteralArray({1, 2, 0.5, 1, 1, 1, 2, 0.3, 1, 0.5, 1, 2, 1, 3, 1, 0.7}, {4, 4});
  const Var a = base + b.Broadcast(0.001 * k * x, {4, 4}, {0});
  const auto part = [&](int64_t rows, int64_t columns) {
    Attributes attributes;
    attributes.start = {0, 0};
    attributes.shape = {rows, columns};
    return b.Do(kSlice, {a}, attributes);
  };
  const auto column = [&](const Var& v) { return b.Reshape(v, {4, 1}); };
  const Var rows = b.Do(kLuPermutation, {a});
  const Var solved = b.Do(kLuSolve, {a, b.Do(kLu, {a}), rows, column(x)});
  // The same matrix, in the format of another role, whose pivots may be others.
  Var other_rows, other_factors;
  {
    const RoleScope solver(b, Role::kSolver);
    other_rows = b.Do(kLuPermutation, {a});
    other_factors = b.Do(kLu, {a});
  }
  Attributes pick;
  pick.site = "pick";
  const auto magnitudes = [&](int64_t at) {
    Attributes attributes;
    attributes.start = {0, at};
    attributes.shape = {4, 1};
    return b.Reshape(b.Do(kSlice, {a}, attributes), {4});
  };
  const Var picked = b.Do(kChoice, {rows, magnitudes(0), magnitudes(1)}, pick);
  const Var tall = b.Do(kLu, {part(4, 2)});
  const Var wide = part(3, 4);
  const Var wide_rows = b.Do(kLuPermutation, {wide});
  const Var wide_factors = b.Do(kLu, {wide});
  const LoopResult loop = b.While(
      {.site = "loop", .max_iter = 3}, {x, b.Integer(0, kI32, {4})}, {},
      [&](const Vars& c, const Vars&) -> LoopPredicate {
        const Var turned = a + b.Broadcast(0.002 * c[0], {4, 4}, {0});
        const Var largest = b.Reduce(kReduceMax, b.Reshape(b.Do(kLu, {turned}), {16}));
        return {b.Apply(kLt, {b.Reduce(kSum, c[0]), b.Literal(-1e9)}), {largest}};
      },
      [&](const Vars& c, const Vars& tested, const Vars&) -> Vars {
        const Var moved = a + b.Broadcast(0.001 * c[0], {4, 4}, {0});
        const Var inside = b.Do(kLuPermutation, {moved});
        const Var next = b.Reshape(b.Do(kSolve, {moved, column(c[0])}), {4});
        return {0.1 * next + b.Broadcast(0.01 * tested[0], {4}, {}), inside};
      });
  const Var sums = b.Reduce(kSum, b.Reshape(tall, {8})) +
                   b.Reduce(kSum, b.Reshape(other_factors, {16})) +
                   b.Reduce(kSum, b.Reshape(wide_factors, {12}));
  const Var next = 0.5 * x + 0.01 * b.Reshape(solved, {4}) + 0.1 * loop.carried[0];
  b.SetNext({next + b.Broadcast(0.001 * sums, {4}, {})});
  b.Export("rows", rows);
  b.Export("other", other_rows);
  b.Export("picked", picked);
  b.Export("wide", wide_rows);
  b.Export("inside", loop.carried[1]);
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(kSum, states[0] * states[0]);
  });
  absl::StatusOr<Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// A world whose `initial` decides: by comparisons at the top and in a scan, by places, pivots and a
// conversion, all of them kept in an integer state. With `halts`, instances that begin large halt.
Program Begun(bool halts) {
  constexpr auto kI32 = ElementType::kI32;
  using enum OpCode;
  Builder b("begun");
  b.program().level = TestLevel::kAll;
  const Var x = b.State("x", {4});
  const Var chosen = b.State("chosen", {12}, "", kI32);
  b.program().inputs.back().default_value = 0.0;
  const Var k = b.Param("k", {}, 0.7);
  b.SetInitial([&]() -> Vars {
    const Var above = b.Apply(kGt, {x, b.Literal(0.3, {4})});
    const Var moved = Select(above, k * x, x + b.Literal(0.25, {4}));
    Attributes axis;
    axis.axes = {0};
    const Var best = b.Do(kArgmax, {moved}, axis);
    const Var square = b.Reshape(moved, {2, 2});
    const Var rows = b.Do(kLuPermutation, {square});
    const Var factors = b.Reshape(b.Do(kLu, {square}), {4});
    const Var whole = b.Convert(8.0 * b.Reduce(kSum, moved), kI32);
    const Var even = b.Apply(kEq, {b.Apply(kMod, {whole, b.Integer(2)}), b.Integer(0)});
    const Vars scanned =
        b.Scan(4, {b.Literal(0.4)}, {moved}, false, [&](Var, const Vars& c, const Vars& s) -> Vars {
          const Var over = b.Apply(kGe, {s[0], c[0]});
          return {0.5 * (c[0] + s[0]), b.Convert(over, kI32)};
        });
    const Var factor = Select(even, b.Literal(0.9), b.Literal(1.1));
    const Var next = factor * moved + 0.01 * factors + b.Broadcast(0.1 * scanned[0], {4}, {});
    const Var told = b.Concat({b.Convert(above, kI32), rows, b.Reshape(best, {1}),
                               b.Reshape(b.Convert(even, kI32), {1}), scanned[1]},
                              0);
    return {next, told};
  });
  b.SetNext({0.5 * x, chosen});
  if (halts) {
    b.Halt("large", b.Apply(kGt, {b.Reduce(kSum, x), b.Literal(2.0)}));
  }
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(kSum, states[0] * states[0]);
  });
  absl::StatusOr<Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

class PathsOfPivots : public PathsOfMixed {};
INSTANTIATE_TEST_SUITE_P(Executors, PathsOfPivots, testing::Bool(),
                         [](const auto& made) { return made.param ? "Cpu" : "Reference"; });

TEST_P(PathsOfPivots, OfItsOwnGiveItsBits) {
  for (const TestLevel level : {TestLevel::kDeclared, TestLevel::kAll}) {
    const Program world = Pivoting(level);
    for (const std::string preset : {"f64", "bf16_unsafe", "bf16_safe"}) {
      ExpectItsBits(Chosen(), world, preset);
    }
  }
}

TEST_P(PathsOfPivots, OfAnotherFormatAreFollowed) {
  for (const TestLevel level : {TestLevel::kDeclared, TestLevel::kAll}) {
    const Program world = Pivoting(level);
    Tensor exact, rough;
    const Observed of_exact = Taken(Chosen(), world, "f64", exact);
    const Observed of_rough = Taken(Chosen(), world, "bf16_unsafe", rough);
    for (const bool along_exact : {true, false}) {
      const Work work = MixedWork(world, along_exact ? "bf16_unsafe" : "f64", PathUse::kForced,
                                  along_exact ? &exact : &rough);
      const auto forced = Observe(Chosen(), work);
      ASSERT_TRUE(forced.ok()) << forced.status();
      const Observed& followed = along_exact ? of_exact : of_rough;
      const Observed& own = along_exact ? of_rough : of_exact;
      for (size_t i = 0; i < forced->exports.size(); ++i) {
        EXPECT_NE(own.exports[i].bytes, followed.exports[i].bytes) << world.exports[i].name;
        EXPECT_EQ(forced->exports[i].bytes, followed.exports[i].bytes) << world.exports[i].name;
      }
      EXPECT_GT(Disagreements(work, *forced), 0u);
    }
  }
}

TEST_P(PathsOfPivots, TakeTheRowsThatTheyName) {
  Builder b("named");
  b.program().level = TestLevel::kAll;
  const Var x = b.State("x", {4});
  const Var a = b.Reshape(x, {2, 2});
  const Var rows = b.Do(OpCode::kLuPermutation, {a});
  b.SetNext({b.Reshape(b.Do(OpCode::kLu, {a}), {4})});
  b.Export("rows", rows);
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  auto program = Lower(*world, tests::PolicyOf({.preset = "f64"}), "", std::nullopt, nullptr,
                       {.path = PathUse::kForced});
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_EQ(program->path->bytes, 2);
  Work work = tests::WorkOf(*std::move(program), 6, 1);
  const std::vector<double> one = {2, 1, 4, 8};  // the second row is the pivot by magnitude
  std::vector<double> all;
  for (int64_t i = 0; i < 5; ++i) all.insert(all.end(), one.begin(), one.end());
  all.insert(all.end(), {0, 1, 2, 3});
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles(all, {6, 4}), true, false});
  // The given order; the other one; no order: rows that are none, and one that has been a pivot. A
  // pivot of zero beside a number that is none.
  Tensor path = Tensor::Zeros(DType::kU8, {6, 1, 2});
  path.bytes.assign({1, 0, 0, 1, 7, 200, 0, 0, 1, 1, 0, 1});
  tests::Bind(work, InputKind::kData, kPathGiven, {path, true, true});
  work.options.record_exports = {0};
  const auto forced = Observe(Chosen(), work);
  ASSERT_TRUE(forced.ok()) << forced.status();
  const std::vector<double> pivoted = {4, 8, 0.5, -3};
  const std::vector<double> as_given = {2, 1, 2, 6};
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<double>> expected = {
      pivoted, as_given, as_given, as_given, pivoted, {0, 1, infinity, -infinity}};
  for (size_t i = 0; i < 6; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      EXPECT_EQ(forced->result.final_states[0].Get(static_cast<int64_t>(4 * i + j)), expected[i][j])
          << i << " " << j;
    }
  }
}

TEST(Paths, OfNoRunGiveTheSameBitsOnBothExecutors) {
  for (const std::string preset : {"f64", "bf16_unsafe"}) {
    const Program world = Pivoting(TestLevel::kAll);
    Tensor path;
    Taken(Reference(), world, preset, path);
    uint64_t seed = 5;
    for (uint8_t& byte : path.bytes) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<uint8_t>(seed >> 61);
    }
    const Work work = MixedWork(world, preset, PathUse::kForced, &path);
    const auto right = Observe(Reference(), work);
    const auto compiled = Observe(MakeCpuExecutor(), work);
    ASSERT_TRUE(right.ok() && compiled.ok()) << right.status() << compiled.status();
    EXPECT_EQ(FirstDifference(*right, *compiled), std::nullopt);
    EXPECT_GT(Disagreements(work, *right), 0u);
  }
}

TEST(Paths, HoldOneColumnPerDecisionWithTheAxesOfItsLoops) {
  const auto program = Lower(Mixed(0.05), tests::PolicyOf({.preset = "f32"}), "", std::nullopt,
                             nullptr, {.path = PathUse::kRecorded});
  ASSERT_TRUE(program.ok()) << program.status();
  std::map<std::string, std::pair<Shape, int32_t>> columns;
  std::map<std::string, std::vector<int32_t>> loops;
  for (const PathColumn& column : program->path->columns) {
    EXPECT_TRUE(columns.emplace(column.site, std::pair(column.shape, column.width)).second);
    loops[column.site] = column.loops;
  }
  const std::map<std::string, std::pair<Shape, int32_t>> expected = {
      {"top", {{4}, 0}},     {"each", {{4}, 1}},   {"inside", {{4, 7}, 0}}, {"outer", {{}, 1}},
      {"outer#1", {{5}, 0}}, {"nested", {{4}, 2}}, {"gt", {{4}, 0}},        {"far", {{4}, 0}},
      {"above", {{4}, 0}},   {"argmax", {{}, 1}},  {"convert", {{}, 4}}};
  EXPECT_EQ(columns, expected);
  // The columns in the order of the text: top, each, inside, outer, its probe, nested, ...
  EXPECT_EQ(loops["top"], std::vector<int32_t>{-1});
  EXPECT_EQ(loops["each"], std::vector<int32_t>{-1});
  EXPECT_EQ(loops["inside"], (std::vector<int32_t>{-1, 1}));
  EXPECT_EQ(loops["outer#1"], std::vector<int32_t>{3});
  EXPECT_EQ(loops["far"], std::vector<int32_t>{3});
  EXPECT_EQ(loops["above"], std::vector<int32_t>{-2 - 8});  // of a scan in reverse
  // Bits of 4 + 28 + 5 + 4 + 4 + 4 tests, and numbers of 4 + 1 + 2 * 4 + 1 + 4 bytes.
  EXPECT_EQ(program->path->bytes, 7 + 18);
}

TEST(Paths, FitTheSameOperationsAndCapsUnderAnyNumbers) {
  const auto structure = [](const Program& world, const std::string& preset) {
    return Lower(world, tests::PolicyOf({.preset = preset}), "", std::nullopt, nullptr,
                 {.path = PathUse::kRecorded})
        ->path->structure;
  };
  const std::string here = structure(Mixed(0.05), "f32");
  EXPECT_EQ(here, structure(Mixed(0.01), "f32"));
  EXPECT_EQ(here, structure(Mixed(0.05), "f16_unsafe"));
  EXPECT_NE(here, structure(Mixed(0.05, 8), "f32"));
}

TEST(Paths, AreRefusedWhereAStepMayDecideTooOften) {
  Builder b("often");
  b.program().level = TestLevel::kAll;
  const Var x = b.State("x", {5000});
  const LoopResult loop = b.While(
      {.site = "long", .max_iter = 90'000}, {x}, {},
      [&](const Vars& c, const Vars&) -> LoopTest {
        return {b.Reduce(OpCode::kReduceMax, c[0]), b.Literal(1.0), {}, {}};
      },
      [&](const Vars& c, const Vars&, const Vars&) -> Vars {
        const Var high = b.Apply(OpCode::kGt, {c[0], b.Literal(2.0)});
        return {Select(high, 0.5 * c[0], c[0])};
      });
  b.SetNext({loop.carried[0]});
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  const auto refused = Lower(*world, tests::PolicyOf({.preset = "f32"}), "", std::nullopt, nullptr,
                             {.path = PathUse::kRecorded});
  EXPECT_TRUE(IsLimit(refused.status())) << refused.status();
  EXPECT_NE(refused.status().message().find("'gt' may decide 450000000 times in one step"),
            std::string::npos)
      << refused.status();
}

TEST(Paths, AreRefusedWhereACostDecidesByReals) {
  Builder b("decides");
  b.program().level = TestLevel::kAll;
  const Var x = b.State("x", {});
  b.SetNext({0.5 * x});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    const Var above = b.Apply(OpCode::kGt, {states[0], b.Literal(1.0)});
    return Select(above, states[0], b.Literal(0.0));
  });
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  const precision::Policy policy = tests::PolicyOf({.preset = "f32"});
  const auto refused =
      Lower(*world, policy, "end", std::nullopt, nullptr, {.path = PathUse::kRecorded});
  EXPECT_EQ(FieldOf(refused.status()), "path");
  EXPECT_NE(refused.status().message().find("'gt' decides by reals in the terminal cost"),
            std::string::npos)
      << refused.status();
  EXPECT_TRUE(Lower(*world, policy, "", std::nullopt, nullptr, {.path = PathUse::kRecorded}).ok());
}

// What a terminal cost decides by reals has no path, as what `step` decides so has one.
TEST(Paths, AreRefusedWhereACostPivotsConvertsOrAsksForFiniteNumbers) {
  const auto refused = [](const std::function<Var(Builder&, const Var&)>& cost) {
    Builder b("cost");
    b.program().level = TestLevel::kAll;
    const Var x = b.State("x", {4});
    b.SetNext({0.5 * x});
    b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
      return b.Reduce(OpCode::kSum, cost(b, states[0]));
    });
    const auto world = b.Finish();
    EXPECT_TRUE(world.ok()) << world.status();
    const auto lowered = Lower(*world, tests::PolicyOf({.preset = "f32"}), "end", std::nullopt,
                               nullptr, {.path = PathUse::kRecorded});
    return FieldOf(lowered.status()) == "path" ? std::string(lowered.status().message()) : "";
  };
  const auto square = [](Builder& b, const Var& x) { return b.Reshape(x, {2, 2}); };
  EXPECT_NE(refused([&](Builder& b, const Var& x) {
              return b.Reshape(b.Do(OpCode::kLu, {square(b, x)}), {4});
            }).find("'lu' decides by reals"),
            std::string::npos);
  EXPECT_NE(refused([&](Builder& b, const Var& x) {
              return b.Reshape(b.Do(OpCode::kSolve, {square(b, x), square(b, x)}), {4});
            }).find("'lu' decides by reals"),
            std::string::npos);
  EXPECT_NE(refused([&](Builder& b, const Var& x) {
              return Select(b.Apply(OpCode::kIsFinite, {x}), x, 0.5 * x);
            }).find("'is_finite' decides by reals"),
            std::string::npos);
  EXPECT_NE(refused([&](Builder& b, const Var& x) {
              Attributes along;
              along.axes = {0};
              along.bounds = Bounds::kClip;
              return b.Do(OpCode::kGather, {x, b.Convert(x, ElementType::kI32)}, along);
            }).find("'convert' decides by reals"),
            std::string::npos);
  // It weighs, and chooses nothing; and a matrix of one row leaves nothing to choose.
  EXPECT_EQ(refused([&](Builder& b, const Var& x) {
              return x * b.Convert(b.Convert(x, ElementType::kI32), ElementType::kReal);
            }),
            "");
  EXPECT_EQ(refused([&](Builder& b, const Var& x) {
              return b.Reshape(b.Do(OpCode::kLu, {b.Reshape(x, {1, 4})}), {4});
            }),
            "");
}

class PathsOfInitial : public PathsOfMixed {};
INSTANTIATE_TEST_SUITE_P(Executors, PathsOfInitial, testing::Bool(),
                         [](const auto& made) { return made.param ? "Cpu" : "Reference"; });

TEST_P(PathsOfInitial, OfItsOwnGiveItsBits) {
  for (const bool halts : {false, true}) {
    for (const std::string preset : {"f64", "bf16_unsafe"}) {
      ExpectItsBits(Chosen(), Begun(halts), preset);
    }
  }
}

// The world decides nowhere else, so that disagreements are what differs in the rows of step 0.
TEST_P(PathsOfInitial, OfAnotherFormatAreFollowedInEveryDecision) {
  for (const bool halts : {false, true}) {
    const Program world = Begun(halts);
    Tensor exact, rough;
    const Observed of_exact = Taken(Chosen(), world, "f64", exact);
    const Observed of_rough = Taken(Chosen(), world, "bf16_unsafe", rough);
    ASSERT_NE(of_exact.result.final_states[1].bytes, of_rough.result.final_states[1].bytes)
        << "the formats were to decide otherwise";
    const Work work = MixedWork(world, "bf16_unsafe", PathUse::kForced, &exact);
    const auto forced = Observe(Chosen(), work);
    ASSERT_TRUE(forced.ok()) << forced.status();
    ASSERT_EQ(forced->result.final_states.size(), 2u);
    EXPECT_EQ(forced->result.final_states[1].bytes, of_exact.result.final_states[1].bytes);
    EXPECT_NE(forced->result.final_states[0].bytes, of_exact.result.final_states[0].bytes);
    EXPECT_GT(Disagreements(work, *forced), 0u);
  }
}

TEST_P(PathsOfInitial, StandInTheRowOfTheFirstStepAlone) {
  Tensor path;
  Taken(Chosen(), Begun(false), "f64", path);
  const int64_t bytes = path.shape[2];
  ASSERT_GT(bytes, 0);
  for (int64_t row = 0; row < path.shape[0] * path.shape[1]; ++row) {
    const auto first = path.bytes.begin() + row * bytes;
    const bool any = std::any_of(first, first + bytes, [](uint8_t byte) { return byte != 0; });
    EXPECT_EQ(any, row % path.shape[1] == 0) << row;
  }
}

// Of one comparison: the path says which side holds, also against the numbers, and each step 0 that
// disagrees is counted once.
TEST_P(PathsOfInitial, AreCountedWhereTheyDisagree) {
  Builder b("compares");
  b.program().level = TestLevel::kAll;
  const Var x = b.State("x", {});
  b.SetInitial([&]() -> Vars {
    const Var above = b.Apply(OpCode::kGt, {x, b.Literal(1.0)});
    return {Select(above, x + b.Literal(10.0), x - b.Literal(10.0))};
  });
  b.SetNext({x + b.Literal(0.5)});
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  auto program = Lower(*world, tests::PolicyOf({.preset = "f64"}), "", std::nullopt, nullptr,
                       {.path = PathUse::kForced});
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_EQ(program->path->bytes, 1);
  ASSERT_EQ(program->path->columns[0].site, "initial.gt");
  Work work = tests::WorkOf(*std::move(program), 4, 3);
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles({0, 2, 0, 2}, {4}), true, false});
  Tensor path = Tensor::Zeros(DType::kU8, {4, 3, 1});
  path.bytes = {0, 0, 0, 1, 0, 0,
                1, 0, 0, 0, 0, 0};  // as the numbers say, twice; against them, twice
  tests::Bind(work, InputKind::kData, kPathGiven, {path, true, true});
  tests::Bind(work, InputKind::kParam, kPathGivenFirst, {FirstRow(path), true, false});
  const auto forced = Observe(Chosen(), work);
  ASSERT_TRUE(forced.ok()) << forced.status();
  const std::vector<double> expected = {0 - 10 + 1.5, 2 + 10 + 1.5, 0 + 10 + 1.5, 2 - 10 + 1.5};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(forced->result.final_states[0].Get(i), expected[static_cast<size_t>(i)]) << i;
  }
  EXPECT_EQ(Disagreements(work, *forced), 2u);
}

// Worlds that begin otherwise have other paths, also where they decide as often.
TEST(Paths, FitByTheOperationsOfAnInitialThatDecides) {
  const auto structure = [](OpCode code, bool decides) {
    Builder b("fits");
    b.program().level = TestLevel::kAll;
    const Var x = b.State("x", {});
    b.SetInitial([&]() -> Vars {
      const Var moved = b.Apply(code, {x, b.Literal(2.0)});
      if (!decides) return {moved};
      return {Select(b.Apply(OpCode::kGt, {moved, b.Literal(1.0)}), moved, x)};
    });
    b.SetNext({Select(b.Event("low", x, Comparison::kLt, b.Literal(0.5)), x, 0.5 * x)});
    const auto world = b.Finish();
    EXPECT_TRUE(world.ok()) << world.status();
    const auto program = Lower(*world, tests::PolicyOf({.preset = "f64"}), "", std::nullopt,
                               nullptr, {.path = PathUse::kRecorded});
    EXPECT_TRUE(program.ok()) << program.status();
    return program->path->structure;
  };
  EXPECT_NE(structure(OpCode::kAdd, true), structure(OpCode::kMul, true));
  EXPECT_EQ(structure(OpCode::kAdd, false), structure(OpCode::kMul, false));
}

TEST(Paths, OfRandomProgramsAreTakenAndFollowedToTheBit) {
  constexpr uint64_t kCases = kSanitized ? 15 : 72;
  int recorded_cases = 0;
  int followed_cases = 0;
  int64_t stopped_instances = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    const absl::StatusOr<Case> made = equality::MakeCase(seed, {.instances = 3, .steps = 3});
    ASSERT_TRUE(made.ok()) << made.status();
    Work plain = made->work;
    plain.options.recording = Recording::kInstances;
    const NumericalProgram& program = *plain.batch.program;
    auto recording = Again(made->world, program, made->asked, PathUse::kRecorded);
    if (FieldOf(recording.status()) == "path") continue;  // a cost decides
    ASSERT_TRUE(recording.ok()) << recording.status();
    if (recording->path->bytes == 0) continue;
    const size_t inputs = program.program.inputs.size();
    ++recorded_cases;
    const auto expected = Observe(Reference(), plain);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const Work record = Moved(plain, *std::move(recording), nullptr);
    auto recorded = Observe(Reference(), record);
    ASSERT_TRUE(recorded.ok()) << recorded.status();
    const auto compiled = Observe(MakeCpuExecutor(), record);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    EXPECT_EQ(FirstDifference(*recorded, *compiled), std::nullopt);
    const Tensor path = recorded->exports.back();
    recorded->exports.pop_back();
    EXPECT_EQ(FirstDifference(*expected, *recorded), std::nullopt);
    auto forcing = Again(made->world, program, made->asked, PathUse::kForced);
    if (FieldOf(forcing.status()) == "path") continue;  // it rounds by chance
    ASSERT_TRUE(forcing.ok()) << forcing.status();
    const Work force = Moved(plain, *std::move(forcing), &path);
    const auto forced = Observe(Reference(), force);
    ASSERT_TRUE(forced.ok()) << forced.status();
    ++followed_cases;
    stopped_instances +=
        std::count_if(expected->result.health.begin(), expected->result.health.end(),
                      [](const InstanceHealth& health) { return health.stopped; });
    EXPECT_EQ(FirstDifference(Numbers(*expected, inputs), Numbers(*forced, inputs)), std::nullopt);
    EXPECT_EQ(Disagreements(force, *forced), 0u);
  }
  if (kSanitized) return;
  EXPECT_GT(recorded_cases, 40);
  EXPECT_GT(followed_cases, 30);
  EXPECT_GT(stopped_instances, 2);
}

TEST(Paths, AreNotFollowedWhereRoundingsAreDrawn) {
  Builder b("halves");
  b.SetNext({0.5 * b.State("x", {})});
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  precision::PolicySpec spec{.preset = "f32"};
  precision::RoleOverride by_chance{.format = precision::Format::kBf16};
  by_chance.rounding = precision::CastRounding::kStochastic;
  spec.roles = {{"state", by_chance}};
  const precision::Policy policy = tests::PolicyOf(spec);
  EXPECT_TRUE(Lower(*world, policy, "", std::nullopt, nullptr, {.path = PathUse::kRecorded}).ok());
  const auto refused = Lower(*world, policy, "", std::nullopt, nullptr, {.path = PathUse::kForced});
  EXPECT_EQ(FieldOf(refused.status()), "path");
}

}  // namespace
}  // namespace simgrad::sim
