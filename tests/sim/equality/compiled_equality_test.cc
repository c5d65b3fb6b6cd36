// Compiled plans give the reference's bits on random programs: states, exports, values, decisions,
// diagnostics, signatures, health and gradients.
//
// Environment: SIMGRAD_SEED=n runs case n alone in each mapping and prints its program and plan;
// SIMGRAD_LONG=1 runs thirty times as many.
#include <bit>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/compiled/compiled_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/plan/cut.h"
#include "sim/plan/make_plan.h"
#include "sim/plan/print.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "sim/text.h"
#include "tests/environment.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::equality {
namespace {

using compiled::Effort;
using compiled::Isa;
using compiled::Mapping;

constexpr uint64_t kCases = kSanitized ? 6 : 60;

uint64_t Cases() { return IsLong() ? 20 * kCases : kCases; }

std::string TextOf(const Tensor& a, const Tensor& b) {
  std::string text;
  for (int64_t i = 0; i < a.count() && i < 64; ++i) {
    if (std::bit_cast<uint64_t>(a.Get(i)) == std::bit_cast<uint64_t>(b.Get(i))) continue;
    text += Cat("; ", i, ": ", std::to_string(a.Get(i)), " ", std::to_string(b.Get(i)));
  }
  return text;
}

std::vector<uint64_t> BitsOf(const std::vector<double>& values) {
  std::vector<uint64_t> bits;
  for (double x : values) bits.push_back(std::bit_cast<uint64_t>(x));
  return bits;
}

void ExpectSameResults(const Run& expected, const Run& actual, const Program& program) {
  for (int32_t state : program.InputsOf(InputKind::kState)) {
    ASSERT_EQ(expected.State(state), actual.State(state))
        << program.inputs[static_cast<size_t>(state)].name
        << TextOf(expected.State(state), actual.State(state));
  }
  for (size_t k = 0; k < program.exports.size(); ++k) {
    const int32_t index = static_cast<int32_t>(k);
    ASSERT_EQ(expected.Export(index), actual.Export(index)) << program.exports[k].name;
  }
  const std::vector<double> a = expected.Values();
  const std::vector<double> b = actual.Values();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint64_t>(a[i]), std::bit_cast<uint64_t>(b[i])) << "value " << i;
  }
}

void ExpectSameRecords(const Run& expected, const Run& actual) {
  ASSERT_EQ(expected.Health().size(), actual.Health().size());
  for (size_t i = 0; i < expected.Health().size(); ++i) {
    const InstanceHealth& a = expected.Health()[i];
    const InstanceHealth& b = actual.Health()[i];
    ASSERT_EQ(a.ok, b.ok) << "instance " << i << " phase " << static_cast<int>(b.phase) << " step "
                          << b.step << " and " << a.step;
    ASSERT_EQ(a.stopped, b.stopped) << "instance " << i;
    if (a.ok) continue;
    ASSERT_EQ(a.phase, b.phase) << "instance " << i;
    ASSERT_EQ(a.step, b.step) << "instance " << i;
  }
  ASSERT_EQ(expected.PathSignatures(), actual.PathSignatures());
  ASSERT_EQ(expected.FirstEventSteps(), actual.FirstEventSteps());
}

// Without what the level `counts` leaves unspecified (sim/backend/executor.h).
StepDiagnostics CountsOf(StepDiagnostics diagnostics) {
  for (auto& column : diagnostics.terminations) {
    for (TerminationStep& step : column) {
      step.margin = {};
      step.tested_min = step.tested_max = 0.0;
    }
  }
  for (auto& column : diagnostics.events) {
    for (EventStep& step : column) {
      step.margin = {};
      step.nan_margins = 0;
    }
  }
  diagnostics.states.clear();
  diagnostics.event_margins.clear();
  diagnostics.sampled_steps.clear();
  diagnostics.stride = 0;
  return diagnostics;
}

void ExpectSameSites(const StepDiagnostics& expected, const StepDiagnostics& actual) {
  for (size_t k = 0; k < expected.terminations.size(); ++k) {
    for (size_t t = 0; t < expected.terminations[k].size(); ++t) {
      const TerminationStep& a = expected.terminations[k][t];
      const TerminationStep& b = actual.terminations[k][t];
      ASSERT_EQ(a.runs, b.runs) << "site " << k;
      ASSERT_EQ(a.iterations_sum, b.iterations_sum) << "site " << k;
      ASSERT_EQ(a.checks, b.checks) << "site " << k;
      ASSERT_EQ(a.histogram, b.histogram) << "site " << k;
      ASSERT_EQ(a.margin, b.margin)
          << "site " << k << " " << a.margin.absolute << " " << b.margin.absolute << " "
          << a.margin.ulps << " " << b.margin.ulps;
      ASSERT_EQ(a, b) << "site " << k;
    }
  }
  for (size_t k = 0; k < expected.events.size(); ++k) {
    ASSERT_EQ(expected.events[k], actual.events[k]) << "event " << k;
  }
  ASSERT_EQ(expected.states, actual.states);
  for (size_t role = 0; role < expected.ranges.underflows.size(); ++role) {
    ASSERT_EQ(expected.ranges.underflows[role], actual.ranges.underflows[role]) << "role " << role;
    ASSERT_EQ(expected.ranges.overflows[role], actual.ranges.overflows[role]) << "role " << role;
  }
  ASSERT_EQ(expected, actual);
}

void ExpectSameForward(Run& expected, Run& actual, const Batch& batch, Recording recording,
                       int64_t chunk) {
  const bool records = recording != Recording::kNone;
  const bool counts_only = recording == Recording::kCounts;
  const Program& program = batch.program->program;
  ASSERT_TRUE(expected.Start().ok());
  ASSERT_TRUE(actual.Start().ok());
  ExpectSameResults(expected, actual, program);
  for (int64_t t = 0; t < batch.steps && !::testing::Test::HasFatalFailure(); t += chunk) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "from step " + std::to_string(t));
    const int64_t count = std::min(chunk, batch.steps - t);
    const auto a = expected.Forward(t, count);
    const auto b = actual.Forward(t, count);
    ASSERT_TRUE(a.ok() && b.ok());
    if (records) ExpectSameRecords(expected, actual);
    ExpectSameResults(expected, actual, program);
    ASSERT_EQ(a->states, b->states);
    ASSERT_EQ(a->exports, b->exports);
    if (!records) continue;
    if (counts_only) {
      ExpectSameSites(CountsOf(a->diagnostics), CountsOf(b->diagnostics));
      continue;
    }
    ExpectSameSites(a->diagnostics, b->diagnostics);
    ASSERT_EQ(a->instance_sites.size(), b->instance_sites.size());
    for (size_t k = 0; k < a->instance_sites.size(); ++k) {
      ASSERT_EQ(a->instance_sites[k].iterations, b->instance_sites[k].iterations);
      ASSERT_EQ(a->instance_sites[k].reasons, b->instance_sites[k].reasons);
      ASSERT_EQ(a->instance_sites[k].value_counts, b->instance_sites[k].value_counts);
      for (size_t i = 0; i < a->instance_sites[k].values.size(); ++i) {
        ASSERT_EQ(BitsOf(a->instance_sites[k].values[i]), BitsOf(b->instance_sites[k].values[i]));
      }
    }
  }
  if (::testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(expected.Finish().ok());
  ASSERT_TRUE(actual.Finish().ok());
  ExpectSameResults(expected, actual, program);
  if (records) ExpectSameRecords(expected, actual);
}

// The gradients of a range of steps after another, backwards. The runs are at z[T].
void ExpectSameAdjoint(Run& expected, Run& actual, const Batch& batch, bool records,
                       int64_t chunk) {
  const Program& program = batch.program->program;
  std::vector<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>> saved;
  ASSERT_TRUE(expected.Start().ok());
  ASSERT_TRUE(actual.Start().ok());
  for (int64_t t = 0; t < batch.steps; t += chunk) {
    saved.emplace_back(expected.SaveState(), actual.SaveState());
    const int64_t count = std::min(chunk, batch.steps - t);
    ASSERT_TRUE(expected.Forward(t, count).ok());
    ASSERT_TRUE(actual.Forward(t, count).ok());
  }
  ASSERT_TRUE(expected.Finish().ok());
  ASSERT_TRUE(actual.Finish().ok());
  constexpr double kSeed = 1.0;
  WorkMeter endless;
  const InstanceWeights over = WeightsOf(batch.instance_ids, {}, {}, endless);
  ASSERT_TRUE(expected.StartAdjoint(kSeed, over).ok());
  const absl::Status started = actual.StartAdjoint(kSeed, over);
  ASSERT_TRUE(started.ok()) << started.message();
  for (size_t k = saved.size(); k-- > 0;) {
    const int64_t t = static_cast<int64_t>(k) * chunk;
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "back to step " + std::to_string(t));
    const int64_t count = std::min(chunk, batch.steps - t);
    expected.RestoreState(saved[k].first);
    actual.RestoreState(saved[k].second);
    const auto a = expected.Adjoint(t, count);
    const auto b = actual.Adjoint(t, count);
    ASSERT_TRUE(a.ok() && b.ok());
    if (!records) continue;
    for (size_t i = 0; i < a->steps.size(); ++i) ASSERT_EQ(a->steps[i], b->steps[i]) << i;
    ASSERT_EQ(a->ranges, b->ranges);
  }
  ASSERT_TRUE(expected.FinishAdjoint().ok());
  ASSERT_TRUE(actual.FinishAdjoint().ok());
  if (records) ExpectSameRecords(expected, actual);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const int32_t input = static_cast<int32_t>(i);
    const std::vector<double>& a = expected.Gradient(input);
    const std::vector<double>& b = actual.Gradient(input);
    ASSERT_EQ(a.size(), b.size()) << program.inputs[i].name;
    for (size_t k = 0; k < a.size(); ++k) {
      ASSERT_EQ(std::bit_cast<uint64_t>(a[k]), std::bit_cast<uint64_t>(b[k]))
          << program.inputs[i].name << " " << k << ": " << a[k] << " " << b[k];
    }
    ASSERT_EQ(expected.Connected(input), actual.Connected(input)) << program.inputs[i].name;
  }
  ASSERT_EQ(expected.Sums() == nullptr, actual.Sums() == nullptr);
  if (expected.Sums() == nullptr) return;
  for (size_t k = 0; k < expected.Sums()->wanted().size(); ++k) {
    ASSERT_EQ(expected.Sums()->Totals(k), actual.Sums()->Totals(k)) << k;
  }
}

void ExpectSame(const Batch& batch, const RunOptions& options,
                const compiled::KernelOptions& kernel, int64_t chunk) {
  const auto expected = MakeReferenceExecutor()->Create(batch, options);
  const auto actual = compiled::MakeCompiledExecutor(kernel)->Create(batch, options);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  ASSERT_TRUE(actual.ok()) << actual.status().message();
  const bool records = options.recording != Recording::kNone;
  ExpectSameForward(**expected, **actual, batch, options.recording, chunk);
  if (!batch.program->adjoint || ::testing::Test::HasFatalFailure()) return;
  ExpectSameAdjoint(**expected, **actual, batch, records, chunk);
}

// How a case is compiled and run: each choice is drawn for itself.
struct Choices {
  compiled::KernelOptions kernel;
  Recording recording = Recording::kSummary;
  int64_t chunk = 1;
};

Choices ChoicesOf(uint64_t seed, Mapping mapping) {
  Random random(seed ^ (mapping == Mapping::kLanes ? 1u : 0xE1E3E275u));  // all pairs within 60
  Choices made;
  made.kernel.mapping = mapping;
  made.kernel.isa = random.Pick(compiled::IsasOfThisMachine());
  made.kernel.effort = random.Pick<Effort>({Effort::kQuick, Effort::kBest});
  if (mapping == Mapping::kLanes) made.kernel.parts = static_cast<int>(random.Integer(1, 2));
  made.kernel.near_zero = random.Integer(0, 3) == 0;
  // Whole functions, small pieces and tiny ones.
  made.kernel.cut = random.Pick<plan::CutLimits>({{}, {0, 40}, {0, 4}});
  made.recording = random.Pick<Recording>(
      {Recording::kNone, Recording::kCounts, Recording::kSummary, Recording::kInstances});
  made.chunk = random.Integer(1, 5);
  return made;
}

// Pairs of choices, as text.
std::set<std::string> PairsOf(const Choices& choices) {
  const compiled::KernelOptions& kernel = choices.kernel;
  const std::string isa = Cat("isa ", static_cast<int>(kernel.isa));
  const std::string effort = Cat("effort ", static_cast<int>(kernel.effort));
  const std::string recording = Cat("recording ", static_cast<int>(choices.recording));
  const std::string cut = Cat("pieces ", kernel.cut.whole == 0 ? kernel.cut.piece : 0);
  const std::string near_zero = Cat("near zero ", static_cast<int>(kernel.near_zero));
  const std::string chunk = choices.chunk > 1 ? "steps" : "a step";
  std::set<std::string> pairs;
  const std::vector<std::string> all = {isa, effort, recording, cut, near_zero, chunk};
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) pairs.insert(Cat(all[j], ", ", all[i]));
  }
  return pairs;
}

// Of the choices above, by PairsOf: isa, effort, recording, cut, near_zero, chunk.
size_t PairsThatThereAre() {
  const size_t sizes[] = {compiled::IsasOfThisMachine().size(), 2, 4, 3, 2, 2};
  size_t pairs = 0;
  for (size_t i = 0; i < std::size(sizes); ++i) {
    for (size_t j = 0; j < i; ++j) pairs += sizes[i] * sizes[j];
  }
  return pairs;
}

void ExpectSame(uint64_t seed, const Choices& choices) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__, "seed " + std::to_string(seed));
  const auto made = MakeCase(seed);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Batch& batch = made->work.batch;
  RunOptions options = made->work.options;
  options.recording = choices.recording;
  options.stop = {};
  if (std::getenv("SIMGRAD_SEED") != nullptr) {
    std::cout << batch.program->text
              << plan::Print(plan::PlacedPlan(*batch.program,
                                              {.decides = true, .looks = true, .ranges = true}));
  }
  ExpectSame(batch, options, choices.kernel, choices.chunk);
}

// Every case, and every two choices together in one of them at least.
void ExpectSameForAll(Mapping mapping) {
  if (const char* seed = std::getenv("SIMGRAD_SEED")) {
    const uint64_t alone = std::strtoull(seed, nullptr, 10);
    return ExpectSame(alone, ChoicesOf(alone, mapping));
  }
  std::set<std::string> pairs;
  for (uint64_t seed = 0; seed < Cases() && !testing::Test::HasFailure(); ++seed) {
    const Choices choices = ChoicesOf(seed, mapping);
    ExpectSame(seed, choices);
    pairs.merge(PairsOf(choices));
  }
  // Under sanitizers there are too few cases for all pairs.
  if (!kSanitized) {
    EXPECT_EQ(pairs.size(), PairsThatThereAre()) << testing::PrintToString(pairs);
  }
}

TEST(CompiledEqualityTest, EveryBitIsThatOfTheReference) { ExpectSameForAll(Mapping::kLanes); }

// One instance in a group: the lanes hold elements.
TEST(CompiledEqualityTest, EveryBitIsThatOfTheReferenceWithElementsInTheLanes) {
  ExpectSameForAll(Mapping::kElements);
}

// The best code of hundreds of pieces, and of random programs of many hundred operations. What quick
// code gives of those is compared by large_equality_test.cc.
TEST(CompiledEqualityTest, TheBestCodeOfLargeProgramsGivesTheBitsOfTheReference) {
  if (kSanitized) GTEST_SKIP() << "best code of large programs takes minutes to compile here";
  const uint64_t cases = IsLong() ? 20 : 2;
  for (uint64_t seed = 1; seed <= cases && !HasFailure(); ++seed) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "seed " + std::to_string(seed));
    const auto made = MakeCase(seed, {.instances = 3, .steps = 2, .size = 600});
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Batch& batch = made->work.batch;
    const plan::CutLimits cut = {.whole = 400, .piece = 100};
    const plan::Plan plan = plan::CutLargeFunctions(
        plan::PlacedPlan(*batch.program, {.decides = true, .looks = true, .ranges = true}), cut);
    EXPECT_GT(plan.step.pieces.size(), 3u);
    const Mapping mapping = seed % 2 == 0 ? Mapping::kElements : Mapping::kLanes;
    ExpectSame(batch, {.recording = Recording::kSummary},
               {.effort = Effort::kBest, .mapping = mapping, .cut = cut}, 1);
  }
}

// Arrays of 3 to 729 elements, loops in loops and events, in both mappings; angles of all sizes.
TEST(CompiledEqualityTest, EveryBitIsThatOfTheReferenceOnArraysOfHundredsOfElements) {
  const Program world = large::LargeProgram(400);
  precision::PolicySpec spec;
  spec.preset = "f32";
  const auto lowered = Lower(world, tests::PolicyOf(spec), "cost", shaped::WantedOf(world, "cost"));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*lowered, 3, 2);
  Random random(5);
  for (size_t i = 0; i < world.inputs.size(); ++i) {
    const Input& input = lowered->program.inputs[i];
    if (input.kind == InputKind::kConfig || input.kind == InputKind::kStep) continue;
    Shape shape = lowered->program[input.value].type.shape;
    shape.insert(shape.begin(), 3);
    std::vector<double> values;
    for (int64_t k = 0; k < ElementCount(shape); ++k) values.push_back(random.Uniform(-2.0, 2.0));
    work.batch.inputs[i] = {tests::Doubles(values, shape), true, false};
  }
  for (const Mapping mapping : {Mapping::kElements, Mapping::kLanes}) {
    for (const Recording recording :
         {Recording::kNone, Recording::kCounts, Recording::kSummary, Recording::kInstances}) {
      ExpectSame(work.batch, {.recording = recording}, {.mapping = mapping}, 1);
    }
    ExpectSame(work.batch, {.recording = Recording::kSummary},
               {.effort = Effort::kQuick, .mapping = mapping, .cut = {.whole = 0, .piece = 100}},
               1);
  }
}

// Sines and cosines of small and of huge angles, in lanes beside one another.
TEST(CompiledEqualityTest, HugeAnglesBesideModerateOnesGiveTheBitsOfTheReference) {
  for (const char* preset : {"f32", "bf16_safe", "f64"}) {
    Builder b("angles");
    const Var x = b.State("x", {300});
    b.SetNext({b.Apply(OpCode::kSin, {x}) + 3.0 * b.Apply(OpCode::kCos, {7.0 * x})});
    const Program world = *b.Finish();
    precision::PolicySpec spec;
    spec.preset = preset;
    Work work = tests::WorkOf(*Lower(world, tests::PolicyOf(spec), "", std::nullopt), 2, 2);
    std::vector<double> values;
    for (int k = 0; k < 600; ++k) {
      const double size = k % 37 == 0 ? 1e9 * k : k % 41 == 0 ? INFINITY : 0.01 * k;
      values.push_back(k % 2 == 0 ? size : -size);
    }
    work.batch.inputs[0] = {tests::Doubles(values, {2, 300}), true, false};
    for (const Mapping mapping : {Mapping::kElements, Mapping::kLanes}) {
      ExpectSame(work.batch, {.recording = Recording::kSummary}, {.mapping = mapping}, 1);
    }
  }
}

// Remainders of moderate and of huge quotients, of zero and infinity, in lanes beside one another.
TEST(CompiledEqualityTest, HugeQuotientsBesideModerateOnesGiveTheBitsOfTheReference) {
  for (const char* preset : {"f32", "bf16_safe", "f16_safe", "f64"}) {
    Builder b("remainders");
    const Var x = b.State("x", {300});
    const Var y = b.State("y", {300});
    b.SetNext(
        {b.Apply(OpCode::kMod, {x, y}) + 3.0 * b.Apply(OpCode::kRem, {7.0 * x, y}), 0.75 * y});
    const Program world = *b.Finish();
    precision::PolicySpec spec;
    spec.preset = preset;
    Work work = tests::WorkOf(*Lower(world, tests::PolicyOf(spec), "", std::nullopt), 2, 2);
    std::vector<double> dividends, divisors;
    for (int k = 0; k < 600; ++k) {
      const double size = k % 37 == 0 ? 1e30 * k : k % 41 == 0 ? INFINITY : 0.25 * (k % 50);
      dividends.push_back(k % 2 == 0 ? size : -size);
      const double divisor = k % 29 == 0 ? 0.0 : k % 31 == 0 ? INFINITY : 0.01 * (k % 70);
      divisors.push_back(k % 3 == 0 ? divisor : -divisor);
    }
    work.batch.inputs[0] = {tests::Doubles(dividends, {2, 300}), true, false};
    work.batch.inputs[1] = {tests::Doubles(divisors, {2, 300}), true, false};
    for (const Mapping mapping : {Mapping::kElements, Mapping::kLanes}) {
      ExpectSame(work.batch, {.recording = Recording::kSummary}, {.mapping = mapping}, 1);
    }
  }
}

// Sides that are equal, of either sign of zero too, in tests of a number against itself and others.
TEST(CompiledEqualityTest, EqualSidesOfTestsGiveTheMarginsOfTheReference) {
  Builder b("equals");
  const Var x = b.State("x", {40});
  const Var y = b.State("y", {40});
  const Var same = b.Event("same", x, Comparison::kNe, x);
  const Var other = b.Event("other", x, Comparison::kLt, y);
  b.SetNext({Select(same, y, 0.5 * x), Select(other, y, x)});
  const Program world = *b.Finish();
  precision::PolicySpec spec;
  spec.preset = "f32";
  Work work = tests::WorkOf(*Lower(world, tests::PolicyOf(spec), "", std::nullopt), 37, 3);
  Random random(7);
  const std::vector<double> few = {0.0, -0.0, 0.0, -0.0, 1.0, -2.0, INFINITY, NAN};
  std::vector<double> xs, ys;
  for (int k = 0; k < 37 * 40; ++k) {
    const int last = k < 20 * 40 ? 5 : 7;  // so that some instances are finite
    xs.push_back(few[static_cast<size_t>(random.Integer(0, last))]);
    ys.push_back(few[static_cast<size_t>(random.Integer(0, last))]);
  }
  work.batch.inputs[0] = {tests::Doubles(xs, {37, 40}), true, false};
  work.batch.inputs[1] = {tests::Doubles(ys, {37, 40}), true, false};
  work.options.recording = Recording::kSummary;
  const auto expected = Observe(MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const Mapping mapping : {Mapping::kElements, Mapping::kLanes}) {
    const auto actual =
        Observe(compiled::MakeCompiledExecutor(compiled::KernelOptions{.mapping = mapping}), work);
    ASSERT_TRUE(actual.ok()) << actual.status();
    const std::optional<std::string> difference = FirstDifference(*expected, *actual);
    EXPECT_FALSE(difference.has_value()) << *difference;
  }
}

// As ExpectEqualToReference (expect_equal.h) does for the other executors, for fewer cases: every one
// is compiled.
TEST(CompiledEqualityTest, TheEngineGetsTheAnswersOfTheReference) {
  const std::shared_ptr<Executor> reference = MakeReferenceExecutor();
  const std::shared_ptr<Executor> executor = compiled::MakeCompiledExecutor();
  for (uint64_t seed = 1000; seed < 1000 + Cases() / 4; ++seed) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "seed " + std::to_string(seed));
    const auto made = MakeCase(seed);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const auto expected = Observe(reference, made->work);
    const auto actual = Observe(executor, Recut(made->work, seed));
    ASSERT_EQ(expected.ok(), actual.ok()) << actual.status().message();
    if (!expected.ok()) continue;
    const std::optional<std::string> difference = FirstDifference(*expected, *actual);
    ASSERT_FALSE(difference.has_value()) << *difference;
  }
}

}  // namespace
}  // namespace simgrad::sim::equality
