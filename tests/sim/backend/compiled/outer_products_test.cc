// Gradients of weights that compiled code gives as factors (plan/outer_products.h) have the bits of the
// reference, which gives cells: sums, trees, magnitudes, health and certificates.
#include "sim/plan/outer_products.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/backend/compiled/compiled_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/program/builder.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/weights_of_layers.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using precision::Format;
using sim::Builder;
using sim::InputKind;
using sim::OpCode;
using sim::Var;
using sim::Vars;
using sim::compiled::Isa;
using sim::compiled::KernelOptions;
using sim::compiled::Mapping;

constexpr int64_t kSteps = 5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Layers of one row by `wide`, `tall` and `one`. `twice` is used twice in a step, `late` in the
// terminal cost, too, and `rows` by two rows: these have cells. `u` is a control of each step.
sim::Program Layers() {
  Builder b("layers");
  const Var x = b.State("x", {1, 4});
  const Var u = b.Control("u", {}, 0.0);
  const auto layer = [&](const Var& in, const Var& weights) {
    return b.Do(OpCode::kMatmul, {in, weights});
  };
  const Var wide = b.Weights("wide", {4, 37});
  const Var tall = b.Weights("tall", {37, 4});
  const Var one = b.Weights("one", {1, 1});
  const Var twice = b.Weights("twice", {4, 4});
  const Var late = b.Weights("late", {4, 1});
  const Var rows = b.Weights("rows", {4, 3});
  const Var hidden = b.Apply(OpCode::kTanh, {layer(x, wide)});
  const Var next = layer(hidden, tall);
  const Var sum = b.Reshape(b.Reduce(OpCode::kSum, x), {1, 1});
  const Var both = b.Concat({x, next}, 0);
  const Var shift = b.Reduce(OpCode::kSum, layer(both, rows)) + b.Reshape(layer(x, late), {});
  b.SetNext({0.7 * x + 0.2 * (next + layer(layer(x, twice), twice)) +
             0.01 * (b.Reshape(layer(sum, one), {}) + shift + u)});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0] * states[0]) +
           0.1 * b.Reshape(layer(states[0], late), {});
  });
  return *b.Finish();
}

// `sizes`: of the states, one after the other.
sim::Work WorkOver(const std::vector<uint64_t>& ids, const precision::PolicySpec& spec,
                   const std::vector<double>& sizes = {1.0}) {
  auto lowered = LowerForGradient(Layers(), PolicyOf(spec), "end");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  const int64_t n = static_cast<int64_t>(ids.size());
  sim::Work work = WorkOf(*std::move(lowered), n, kSteps);
  work.batch.instance_ids = ids;
  work.options.recording = sim::Recording::kSummary;
  work.gradient->return_tree = true;
  std::vector<double> x = Sines(4 * n, 0.37);
  for (size_t k = 0; k < x.size(); ++k) x[k] *= sizes[k / 4 % sizes.size()];
  Bind(work, InputKind::kState, "x", {Doubles(x, {n, 1, 4}), true, false});
  Bind(work, InputKind::kParam, "wide", Shared(Sines(4 * 37, 0.7), {4, 37}));
  Bind(work, InputKind::kParam, "tall", Shared(Sines(37 * 4, 0.9), {37, 4}));
  Bind(work, InputKind::kParam, "one", Shared({0.3}, {1, 1}));
  Bind(work, InputKind::kParam, "twice", Shared(Sines(16, 1.3), {4, 4}));
  Bind(work, InputKind::kParam, "late", Shared(Sines(4, 0.4), {4, 1}));
  Bind(work, InputKind::kParam, "rows", Shared(Sines(12, 0.6), {4, 3}));
  return work;
}

struct OneExecutor {
  std::string name;
  std::shared_ptr<sim::Executor> executor;  // code that one test made serves the next
};

std::vector<OneExecutor> MakeExecutors() {
  std::vector<OneExecutor> all;
  const auto add = [&](const std::string& name, const KernelOptions& options) {
    all.push_back({name, sim::compiled::MakeCompiledExecutor(options)});
  };
  add("lanes", {.mapping = Mapping::kLanes});
  add("elements", {.mapping = Mapping::kElements});
  if (kSanitized) return all;
  for (const Isa isa : sim::compiled::IsasOfThisMachine()) {
    add("vectors " + std::to_string(static_cast<int>(isa)),
        {.isa = isa, .parts = 1, .mapping = Mapping::kLanes});
  }
  add("near zero", {.mapping = Mapping::kLanes, .near_zero = true});
  return all;
}

// `everywhere`: with every kind of code, else with the usual one of both mappings.
void ExpectReference(sim::Work work, const std::vector<int64_t>& chunks, const std::string& story,
                     bool everywhere = false) {
  static const std::vector<OneExecutor> all = MakeExecutors();
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << story << ": " << expected.status();
  for (size_t which = 0; which < (everywhere ? all.size() : 2); ++which) {
    for (const int64_t chunk : chunks) {
      SCOPED_TRACE(story + ", " + all[which].name + ", chunks of " + std::to_string(chunk));
      work.chunk_steps = chunk;
      const auto actual = sim::equality::Observe(all[which].executor, work);
      ASSERT_TRUE(actual.ok()) << actual.status();
      EXPECT_EQ(sim::equality::FirstDifference(*expected, *actual).value_or(""), "");
      for (size_t k = 0; k < expected->result.gradients.size(); ++k) {
        EXPECT_EQ(GradientDifference(expected->result.gradients[k], actual->result.gradients[k]),
                  "")
            << "gradient " << k;
      }
    }
  }
}

TEST(OuterProducts, AreThoseThatAreAllThatAStepGives) {
  for (const Format format : {Format::kF32, Format::kF64, Format::kBf16}) {
    const sim::Work work = WorkOver(Ids(0, 2), GradientsIn(format, Format::kF64));
    const auto products = sim::plan::OuterProductsOf(*work.batch.program);
    std::set<std::string> names;
    for (const sim::plan::OuterProduct& product : products.of_steps) {
      const sim::Input& input =
          work.batch.program->program.inputs[static_cast<size_t>(product.input)];
      names.insert(input.name);
      EXPECT_EQ(product.rows, input.name == "wide" ? 4 : input.name == "tall" ? 37 : 1);
      EXPECT_EQ(product.columns, input.name == "wide" ? 37 : input.name == "tall" ? 4 : 1);
    }
    // Cells of products are rounded to bf16 one by one.
    EXPECT_EQ(names, format == Format::kBf16 ? std::set<std::string>{}
                                             : std::set<std::string>({"one", "tall", "wide"}));
  }
}

TEST(OuterProducts, HaveTheBitsOfTheReferenceInEveryFormat) {
  struct Formats {
    Format gradient, accumulator;
    double loss_scale = 1.0;
  };
  for (const Formats& formats : std::vector<Formats>{{Format::kF32, Format::kF32, 1024.0},
                                                     {Format::kF64, Format::kF64},
                                                     {Format::kF32, Format::kF64},
                                                     {Format::kF32, Format::kBf16},
                                                     {Format::kF64, Format::kF32},
                                                     {Format::kBf16, Format::kF32}}) {
    const std::string story = std::string(precision::FormatName(formats.gradient)) + " in " +
                              std::string(precision::FormatName(formats.accumulator));
    const auto spec = GradientsIn(formats.gradient, formats.accumulator, formats.loss_scale);
    ExpectReference(WorkOver(Ids(0, 70), spec), {2}, story);
    sim::Work weighted = WorkOver(Ids(0, 40), spec);
    for (int k = 0; k < 40; ++k) weighted.weights.push_back(k % 5 == 3 ? 1.0 : 0.1 * (k % 11));
    ExpectReference(weighted, {2}, story + ", weighted");
  }
}

TEST(OuterProducts, HaveTheBitsOfTheReferenceForEveryChoiceOfIds) {
  const precision::PolicySpec spec = GradientsIn(Format::kF32, Format::kF32);
  ExpectReference(WorkOver(Ids(0, 256), spec), {1, kSteps}, "a block", true);
  ExpectReference(WorkOver(Ids(246, 75), spec), {3}, "not aligned");
  ExpectReference(WorkOver(Unordered(Ids(250, 40)), spec), {3}, "unordered");
  ExpectReference(WorkOver(Unordered(Ids(7, 45, 37)), spec), {3}, "sparse");
  ExpectReference(WorkOver({~uint64_t{0}}, spec), {3}, "one");
  ExpectReference(WorkOver({}, spec), {1}, "none");
}

// Products that are rounded to 0 or to subnormals, that overflow, of zeros, and of what is not finite.
TEST(OuterProducts, HaveTheBitsOfTheReferenceAtTheEdgesOfTheFormat) {
  const std::vector<std::vector<double>> sizes = {
      {1.0, 1e-20}, {1e-22, 1e-23}, {0.0}, {1.0, 0.0, 1e-40}, {1e19, 1.0, 1e18}, {1.0, kInfinity}};
  for (const std::vector<double>& size : sizes) {
    const std::string story = std::to_string(size.back()) + " of " + std::to_string(size.size());
    for (const auto reduction :
         {sim::InstanceReduction::kAll, sim::InstanceReduction::kFiniteOnly}) {
      sim::Work work = WorkOver(Ids(0, 48), GradientsIn(Format::kF32, Format::kF32, 64.0), size);
      work.gradient->reduction = reduction;
      ExpectReference(work, {2}, story, true);
    }
  }
}

// Cotangents of role adjoint are finite, and so are all factors.
TEST(OuterProducts, TellOfOverflowsInCells) {
  Builder b("large");
  const Var x = b.State("x", {1, 2});
  const Var w = b.Weights("w", {2, 2});
  b.SetNext({0.5 * x + 0.001 * b.Do(OpCode::kMatmul, {x, w})});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0] * states[0]);
  });
  const auto spec = GradientsIn(Format::kF32, Format::kF32, 65536.0);
  auto lowered = LowerForGradient(*b.Finish(), PolicyOf(spec), "end");
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  sim::Work work = WorkOf(*std::move(lowered), 33, 1);
  work.options.recording = sim::Recording::kSummary;
  work.gradient->reduction = sim::InstanceReduction::kFiniteOnly;
  std::vector<double> numbers = Sines(66, 0.2);
  numbers[40] = 9e18;
  Bind(work, InputKind::kState, "x", {Doubles(numbers, {33, 1, 2}), true, false});
  Bind(work, InputKind::kParam, "w", Shared({1.0, 0.5, 0.25, 1.0}, {2, 2}));
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(expected->result.left_out, 1);
  EXPECT_EQ(expected->result.health[20].phase, sim::Phase::kAdjoint);
  EXPECT_EQ(expected->result.health[20].step, 0);
  ExpectReference(std::move(work), {1}, "overflow", true);
}

TEST(OuterProducts, GiveNothingOfStepsThatAnInstanceDoesNotRun) {
  precision::PolicySpec spec = GradientsIn(Format::kF32, Format::kF32);
  spec.nonfinite = precision::NonFinite::kStop;
  constexpr int64_t kInstances = 40;
  sim::Work work = WorkOver(Ids(0, kInstances), spec);
  std::vector<double> u = Sines(kInstances * kSteps, 0.3);
  u[2 * kSteps + 3] = u[9 * kSteps] = kInfinity;
  Bind(work, InputKind::kControl, "u", {Doubles(u, {kInstances, kSteps}), true, true});
  ExpectReference(work, {1, kSteps}, "stop");
  sim::Work none = WorkOver(Ids(0, 5), spec);
  none.batch.steps = 0;
  ExpectReference(none, {1}, "no step");
}

}  // namespace
}  // namespace simgrad::tests
