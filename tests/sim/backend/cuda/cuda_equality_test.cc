// The generated kernels give the bits of the reference: through the host compiler, both mappings
// forced, threads of a block in shuffled orders. Environment: SIMGRAD_SEED=n runs random case n
// alone, SIMGRAD_LONG=1 many more.
#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/program/builder.h"
#include "sim/program/paths.h"
#include "tests/environment.h"
#include "tests/sim/backend/cuda/host_shim/compiled_text.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/coverage.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/equality/two_parts.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using sim::cuda::Mapping;
using sim::equality::Coverage;
using sim::equality::Observed;

constexpr int kReportedFailures = 3;
// Statements; programs of these tests are cut, too.
constexpr int64_t kShortFunction = 12;
// Operations of a large program.
constexpr size_t kLargeSize = 600;

// Calls check(k) for k in [0, count) on two threads: while one compiles, the other runs. Stops
// after a few failures; check returns the failure, or nothing.
void ExpectAll(size_t count, const std::function<std::string(size_t)>& check) {
  std::atomic<size_t> next{0};
  std::atomic<int> failures{0};
  std::mutex mutex;
  const auto work = [&] {
    for (size_t k = next++; k < count && failures < kReportedFailures; k = next++) {
      const std::string failure = check(k);
      if (failure.empty()) continue;
      ++failures;
      const std::lock_guard<std::mutex> lock(mutex);
      ADD_FAILURE() << failure;
    }
  };
  std::thread other(work);
  work();
  other.join();
}

struct Shape {
  Mapping mapping;
  int block;
  int64_t grid;  // 0: what the device holds, fewer than these batches need
};

std::string NameOf(const Shape& shape) {
  return std::string(MappingName(shape.mapping)) + ", blocks of " + std::to_string(shape.block) +
         ", grid " + std::to_string(shape.grid);
}

// Both mappings over the block sizes. A block per instance has work for one instance at a time, so
// the grid of one goes round most often.
std::vector<Shape> Shapes(uint64_t seed) {
  std::vector<Shape> shapes;
  for (const Mapping mapping : {Mapping::kThreadPerInstance, Mapping::kBlockPerInstance}) {
    for (const int block : {1, 32, 96, 256}) {
      shapes.push_back({mapping, block, static_cast<int64_t>((seed + shapes.size()) % 3)});
    }
  }
  return shapes;
}

// What differs first where the gradient comes in two parts, its forward pass kept and then reversed; nothing
// where there is no gradient.
std::string DifferenceInTwoParts(const Observed& expected, const sim::Work& work,
                                 const std::shared_ptr<sim::Executor>& executor) {
  if (!work.gradient) return "";
  const sim::Engine engine(executor);
  const auto kept = sim::equality::KeepForward(engine, work, work.batch.program);
  if (!kept.ok()) return kept.status().ToString();
  const auto reversed = sim::equality::ReverseFor(engine, **kept, work);
  if (!reversed.ok()) return reversed.status().ToString();
  if (reversed->forward_steps != 0) return "it ran forward again";
  return sim::equality::DifferenceOfReversal(expected.result, *reversed).value_or("");
}

// What differs first between the reference and the kernels, or nothing.
std::string Difference(const Observed& expected, const sim::Work& work, const Shape& shape,
                       uint64_t seed) {
  const auto executor = std::shared_ptr<sim::Executor>(
      sim::MakeCudaExecutor(MakeHostShimDevice({.seed = seed}),
                            {.mapping = shape.mapping,
                             .block = shape.block,
                             .grid = shape.grid,
                             .longest_function = seed % 2 == 0 ? 0 : kShortFunction}));
  const absl::StatusOr<Observed> actual = sim::equality::Observe(executor, work);
  if (!actual.ok()) return NameOf(shape) + ": " + actual.status().ToString();
  const auto difference = sim::equality::FirstDifference(expected, *actual);
  if (difference) return NameOf(shape) + ": " + *difference;
  const std::string kept = DifferenceInTwoParts(expected, work, executor);
  return kept.empty() ? "" : NameOf(shape) + ", kept: " + kept;
}

std::string CheckRandomCase(uint64_t seed, const sim::equality::CaseOptions& options = {}) {
  const auto made = sim::equality::MakeCase(seed, options);
  if (!made.ok()) return made.status().ToString();
  const std::string story = "run this case alone with SIMGRAD_SEED=" + std::to_string(seed) + ": ";
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), made->work);
  if (!expected.ok()) return story + expected.status().ToString();
  for (const Shape& shape : Shapes(seed)) {
    const sim::Work cut =
        sim::equality::Recut(made->work, seed + static_cast<uint64_t>(shape.block));
    const std::string difference = Difference(*expected, cut, shape, seed);
    if (!difference.empty()) return story + difference + "\n" + made->work.batch.program->text;
  }
  return "";
}

// Few of the cases from `first` on, that together meet all that any of them meets: each time the one
// that meets most of what is left. A case costs sixteen texts to compile, and little to choose.
std::vector<uint64_t> CoveringSeeds(uint64_t first, Coverage& met) {
  constexpr size_t kCandidates = 300;
  std::vector<Coverage> of_case(kCandidates);
  const std::shared_ptr<sim::Executor> reference = sim::MakeReferenceExecutor();
  for (size_t k = 0; k < kCandidates; ++k) {
    const auto made = sim::equality::MakeCase(first + k);
    if (!made.ok()) continue;
    const auto seen = sim::equality::Observe(reference, made->work);
    if (seen.ok()) of_case[k].Add(*made, *seen);
  }
  std::vector<uint64_t> seeds;
  while (true) {
    const auto gain = [&](const Coverage& one) { return met.RowsGainedFrom(one); };
    const auto best =
        std::max_element(of_case.begin(), of_case.end(),
                         [&](const Coverage& a, const Coverage& b) { return gain(a) < gain(b); });
    if (gain(*best) == 0) return seeds;
    const uint64_t seed = first + static_cast<uint64_t>(best - of_case.begin());
    const auto made = sim::equality::MakeCase(seed);
    met.Add(*made, *sim::equality::Observe(reference, made->work));
    seeds.push_back(seed);
  }
}

// In the normal run few cases, that meet every operation and every row of Coverage once at least.
TEST(CudaEqualityTest, RandomProgramsGiveTheBitsOfTheReference) {
  if (const uint64_t one = FromEnvironment("SIMGRAD_SEED"); one != 0) {
    EXPECT_EQ(CheckRandomCase(one), "");
    return;
  }
  Coverage met;
  std::vector<uint64_t> seeds = CoveringSeeds(501, met);
  for (const std::string& row : met.Unmet()) ADD_FAILURE() << "no case meets: " << row;
  std::cout << seeds.size() << " cases meet all\n";
  for (uint64_t seed = 501; IsLong() && seed < 701; ++seed) seeds.push_back(seed);
  ExpectAll(seeds.size(), [&](size_t k) { return CheckRandomCase(seeds[k]); });
  const CompileCounts compiled = CompileCountsSoFar();
  std::cout << compiled.texts << " texts compiled in " << compiled.seconds << " s\n";
}

TEST(CudaEqualityTest, MatmulGivesTheBitsOfTheReferenceHoweverItReadsAndAdds) {
  const uint64_t one = FromEnvironment("SIMGRAD_SEED");
  const size_t count = one != 0 ? 1 : IsLong() ? 60 : 6;
  ExpectAll(count, [&](size_t k) {
    return CheckRandomCase(one != 0 ? one : 1 + k, {.multiplies = true});
  });
}

// Hundreds of operations on arrays of up to hundreds of elements, one program a mapping; its functions are
// cut at the length that a device gets.
TEST(CudaEqualityTest, LargeProgramsGiveTheBitsOfTheReference) {
  if (FromEnvironment("SIMGRAD_SEED") != 0) GTEST_SKIP() << "one random case is asked for";
  ExpectAll(IsLong() ? 20 : 2, [&](size_t k) -> std::string {
    const auto made = sim::equality::MakeCase(
        1 + k, {.instances = 3, .steps = 2, .size = static_cast<int64_t>(kLargeSize)});
    if (!made.ok()) return made.status().ToString();
    if (made->world.values.size() < kLargeSize) return "it is not large";
    const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), made->work);
    if (!expected.ok()) return expected.status().ToString();
    const Shape shape = k % 2 == 0 ? Shape{Mapping::kThreadPerInstance, 32, 0}
                                   : Shape{Mapping::kBlockPerInstance, 96, 0};
    const std::string difference = Difference(*expected, made->work, shape, 2 * k);
    return difference.empty() ? "" : "large case " + std::to_string(1 + k) + ": " + difference;
  });
  const CompileCounts compiled = CompileCountsSoFar();
  std::cout << compiled.texts << " texts compiled in " << compiled.seconds << " s\n";
}

struct WorldPick {
  WorldCase world;
  std::string preset;
  bool gradient;
};

// Every world, preset and direction; in the normal run so that each occurs, not with all others.
std::vector<WorldPick> WorldPicks() {
  std::vector<WorldPick> picks;
  const std::vector<WorldCase> worlds = WorldCases(3);
  const std::vector<std::string>& presets = precision::PresetNames();
  for (size_t w = 0; w < worlds.size(); ++w) {
    for (size_t p = 0; p < presets.size(); ++p) {
      const bool chosen = p % worlds.size() == w;
      for (const bool gradient : {false, true}) {
        if (IsLong() || (chosen && gradient == (p % 3 != 1))) {
          picks.push_back({worlds[w], presets[p], gradient});
        }
      }
    }
  }
  return picks;
}

TEST(CudaEqualityTest, BuiltInWorldsGiveTheBitsOfTheReferenceUnderEveryPreset) {
  if (FromEnvironment("SIMGRAD_SEED") != 0) GTEST_SKIP() << "one random case is asked for";
  const std::vector<WorldPick> picks = WorldPicks();
  ExpectAll(picks.size(), [&](size_t k) -> std::string {
    const WorldPick& pick = picks[k];
    const std::string story =
        pick.world.name + ", " + pick.preset + (pick.gradient ? ", gradient: " : ", forward: ");
    auto program = LowerCase(pick.world, pick.preset, pick.gradient);
    if (!program.ok()) return story + program.status().ToString();
    const sim::Work work = WorkOfCase(*std::move(program), 40, 7);
    const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
    if (!expected.ok()) return story + expected.status().ToString();
    for (const Shape& shape : Shapes(k)) {
      const std::string difference =
          Difference(*expected, sim::equality::Recut(work, k), shape, k + 1);
      if (!difference.empty()) return story + difference;
    }
    return "";
  });
}

TEST(CudaEqualityTest, EverySizeAroundAWarpGivesTheBitsOfTheReference) {
  if (FromEnvironment("SIMGRAD_SEED") != 0) GTEST_SKIP() << "one random case is asked for";
  const std::vector<double> elements = {1, 9, 40};
  ExpectAll(elements.size(), [&](size_t k) -> std::string {
    for (const int64_t instances : {0, 1, 31, 32, 33}) {
      auto program = LowerCase(WorldCases(elements[k])[0], "f32", true);
      if (!program.ok()) return program.status().ToString();
      const sim::Work work = WorkOfCase(*std::move(program), instances, 5);
      const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
      if (!expected.ok()) return expected.status().ToString();
      for (const Mapping mapping : {Mapping::kThreadPerInstance, Mapping::kBlockPerInstance}) {
        const std::string difference = Difference(*expected, work, {mapping, 32, 0}, 3);
        if (!difference.empty()) {
          return std::to_string(instances) + " instances of " + std::to_string(elements[k]) +
                 " elements: " + difference;
        }
      }
    }
    return "";
  });
}

// A world of 40 elements that become infinite once x has reached 0.5.
sim::Work StoppedWork() {
  constexpr int64_t kInstances = 5;
  constexpr int64_t kElements = 40;
  sim::Builder b("stops");
  const sim::Var x = b.State("x", {kElements});
  const sim::Var small = b.Event("small", x, sim::Comparison::kLt, b.Literal(0.5, {kElements}));
  const sim::Var huge = b.Literal(3e38, {kElements});
  b.SetNext({Select(small, x, huge) + Select(small, b.Literal(0.25, {kElements}), huge)});
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  const precision::Policy policy =
      PolicyOf({.preset = "f32", .nonfinite = precision::NonFinite::kStop});
  auto program =
      sim::Lower(*world, policy, "", std::nullopt, nullptr, {.path = sim::PathUse::kRecorded});
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = WorkOf(*std::move(program), kInstances, 6);
  std::vector<double> starts;
  for (int64_t i = 0; i < kInstances * kElements; ++i) {
    starts.push_back(-0.25 * static_cast<double>(i / kElements) - 0.1);
  }
  Bind(work, sim::InputKind::kState, "x", {Doubles(starts, {kInstances, kElements}), true, false});
  work.options.record_exports = {0};
  return work;
}

TEST(CudaEqualityTest, ThePathHoldsTheStepThatStopsAnInstance) {
  if (FromEnvironment("SIMGRAD_SEED") != 0) GTEST_SKIP() << "one random case is asked for";
  const sim::Work work = StoppedWork();
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_TRUE(expected->result.health[0].stopped);
  EXPECT_FALSE(expected->result.health[4].stopped);
  // The test holds in steps 0 to 2, and no more in 3, which stops instance 0: the path stays as it was there.
  ASSERT_EQ(expected->exports[0].bytes.size(), 5u * 6 * 5);
  const unsigned char held[] = {0xFF, 0xFF, 0xFF, 0, 0, 0};
  for (size_t t = 0; t < 6; ++t) EXPECT_EQ(expected->exports[0].bytes[t * 5], held[t]) << t;
  for (const Mapping mapping : {Mapping::kThreadPerInstance, Mapping::kBlockPerInstance}) {
    EXPECT_EQ(Difference(*expected, work, {mapping, 32, 0}, 1), "");
  }
}

}  // namespace
}  // namespace simgrad::tests
