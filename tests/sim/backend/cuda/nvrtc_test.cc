// Generated kernels compile for real GPUs; no GPU is needed for that. SIMGRAD_LONG=1: all of them,
// for two architectures.
#include <atomic>
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/compiler/kernel_image.h"
#include "sim/backend/cuda/compiler/nvrtc_compiler.h"
#include "sim/backend/cuda/generate.h"
#include "sim/backend/kernel_folder.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "tests/environment.h"
#include "tests/kept_objects.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/work_maker.h"
#include "tests/source_tree.h"

namespace simgrad::tests {
namespace {

using sim::cuda::GeneratedSource;
using sim::cuda::GenerateOptions;
using sim::cuda::Mapping;
using sim::cuda::Optimisation;

struct Text {
  std::string story;
  std::shared_ptr<const sim::NumericalProgram> program;
  GenerateOptions options;
};

void AddBothMappings(std::string story, std::shared_ptr<const sim::NumericalProgram> program,
                     std::vector<bool> per_step, std::vector<Text>& texts) {
  for (const Mapping mapping : {Mapping::kThreadPerInstance, Mapping::kBlockPerInstance}) {
    texts.push_back({story + ", " + std::string(MappingName(mapping)),
                     program,
                     {.mapping = mapping, .per_step = per_step}});
  }
}

std::vector<Text> RandomTexts() {
  std::vector<Text> texts;
  const uint64_t count = IsLong() ? 200 : 14;
  for (uint64_t seed = 901; seed < 901 + count; ++seed) {
    const auto made = sim::equality::MakeCase(seed);
    if (!made.ok()) {
      ADD_FAILURE() << made.status();
      continue;
    }
    std::vector<bool> per_step;
    for (const sim::Binding& binding : made->work.batch.inputs) {
      per_step.push_back(binding.per_step);
    }
    std::vector<Text> both;
    AddBothMappings("random case " + std::to_string(seed), made->work.batch.program, per_step,
                    both);
    // In the normal run each program in one of its mappings.
    for (size_t k = 0; k < both.size(); ++k) {
      if (IsLong() || seed % both.size() == k) texts.push_back(both[k]);
    }
  }
  return texts;
}

std::vector<Text> WorldTexts() {
  std::vector<Text> all;
  for (const WorldCase& world : WorldCases(9)) {
    for (const std::string& preset : precision::PresetNames()) {
      for (const bool gradient : {false, true}) {
        auto program = LowerCase(world, preset, gradient);
        if (!program.ok()) {
          ADD_FAILURE() << program.status();
          continue;
        }
        const auto kept = std::make_shared<const sim::NumericalProgram>(*std::move(program));
        AddBothMappings(world.name + ", " + preset + (gradient ? ", gradient" : ", forward"), kept,
                        std::vector<bool>(kept->program.inputs.size(), false), all);
      }
    }
  }
  return all;
}

std::string SourceText(const std::string& from_top) {
  std::ifstream file(SourcePath(from_top), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// From the folder of kept machine code, where the same text and headers were compiled before by this NVRTC and
// the same sources of ours.
absl::StatusOr<std::string> ImageOf(const std::string& text, const std::string& architecture,
                                    Optimisation optimisation) {
  const auto options = sim::cuda::NvrtcOptionsText(architecture, optimisation);
  if (!options.ok()) return options.status();
  std::string headers;
  for (const sim::cuda::EmbeddedHeader& header : sim::cuda::EmbeddedHeaders()) {
    headers += sim::KernelKey({header.name, header.text});
  }
  static const std::string compiler = SourceText("sim/backend/cuda/compiler/nvrtc_compiler.cc") +
                                      SourceText("sim/backend/cuda/compiler/kernel_image.cc");
  const std::string key = sim::KernelKey({"nvrtc", text, *options, headers, compiler});
  static const sim::KernelFolder folder(ObjectFolder(), kMostObjectBytes);
  if (auto found = folder.Find(key)) return *std::move(found);
  auto image = sim::cuda::CompileWithNvrtc(text, architecture, optimisation);
  if (image.ok()) folder.Keep(key, *image);
  return image;
}

// Generates all texts and compiles every `stride`th, on two threads.
void ExpectCompiled(const std::vector<Text>& texts, size_t stride,
                    const std::vector<std::string>& architectures,
                    Optimisation optimisation = Optimisation::kBest) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  int compiled = 0;
  double slowest = 0;
  const auto work = [&] {
    for (size_t k = next++; k < texts.size(); k = next++) {
      const auto source = Generate(*texts[k].program, texts[k].options);
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_TRUE(source.ok()) << texts[k].story << ": " << source.status();
      if (!source.ok() || k % stride != 0) continue;
      for (const std::string& architecture : architectures) {
        mutex.unlock();
        const auto start = std::chrono::steady_clock::now();
        const auto image = ImageOf(source->text, architecture, optimisation);
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        mutex.lock();
        EXPECT_TRUE(image.ok()) << texts[k].story << ", " << architecture << ": " << image.status();
        slowest = std::max(slowest, seconds);
        ++compiled;
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_GT(compiled, 0);
  std::cout << texts.size() << " texts generated, " << compiled
            << " compiled or found, the slowest in " << slowest << " s\n";
}

std::vector<std::string> Architectures() {
  return IsLong() ? std::vector<std::string>{"sm_80", "sm_90"} : std::vector<std::string>{"sm_90"};
}

// In the normal run with the least optimisation, which takes a fifth of the time, and a sample with
// the best.
TEST(NvrtcTest, RandomProgramsCompile) {
  const std::vector<Text> texts = RandomTexts();
  if (!IsLong() && sim::cuda::NvrtcCompilesQuickly()) {
    ExpectCompiled(texts, 1, Architectures(), Optimisation::kLeast);
    ExpectCompiled(texts, 9, Architectures());
  } else {
    ExpectCompiled(texts, 1, Architectures());
  }
}

TEST(NvrtcTest, BuiltInWorldsAreGeneratedUnderEveryPresetAndASampleCompiles) {
  ExpectCompiled(WorldTexts(), IsLong() ? 1 : 13, Architectures());
}

TEST(NvrtcTest, ASampleCompilesWithTheLeastOptimisation) {
  if (!sim::cuda::NvrtcCompilesQuickly()) GTEST_SKIP() << "this NVRTC has no --Ofast-compile";
  ExpectCompiled(WorldTexts(), IsLong() ? 1 : 17, Architectures(), Optimisation::kLeast);
}

// A step of 5,000 operations. SIMGRAD_LONG=1: optimised, and its gradient.
TEST(NvrtcTest, ALongProgramCompiles) {
  const sim::Program program = sim::large::LargeProgram(5'000);
  const auto policy = std::get<precision::Policy>(precision::Resolve({}));
  for (const bool gradient : {false, true}) {
    if (gradient && !IsLong()) continue;
    std::optional<sim::AdjointSpec> spec;
    if (gradient) {
      spec.emplace();
      spec->objective = program.objectives.front().name;
      for (const sim::Input& input : program.inputs) {
        spec->wanted.push_back(input.kind == sim::InputKind::kState);
      }
    }
    auto lowered = Lower(program, policy, gradient ? spec->objective : "", spec);
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    const auto kept = std::make_shared<const sim::NumericalProgram>(*std::move(lowered));
    const GenerateOptions options = {.mapping = sim::cuda::ChooseMapping(*kept)};
    ExpectCompiled({{"5,000 operations", kept, options}}, 1, {"sm_90"},
                   IsLong() ? Optimisation::kBest : Optimisation::kLeast);
  }
}

// Arguments of a kernel that are beyond 4 KiB, to their end.
TEST(NvrtcTest, AProgramOfManyInputsExportsAndSitesCompiles) {
  const sim::Program world = sim::shaped::ManyOfAll(90, 110, 200, 80);
  auto lowered = LowerForGradient(world, PolicyOf({.preset = "f32"}), "end");
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const auto kept = std::make_shared<const sim::NumericalProgram>(*std::move(lowered));
  const GenerateOptions options = {.mapping = Mapping::kThreadPerInstance};
  ExpectCompiled({{"many of all", kept, options}}, 1, Architectures(), Optimisation::kLeast);
}

TEST(NvrtcTest, TheLeastOptimisationIsAnotherKeyOfTheCache) {
  const auto best = sim::cuda::NvrtcOptionsText("sm_90", Optimisation::kBest);
  const auto least = sim::cuda::NvrtcOptionsText("sm_90", Optimisation::kLeast);
  ASSERT_TRUE(best.ok() && least.ok());
  EXPECT_NE(*best, *least);
  for (const std::string& options : {*best, *least}) {
    EXPECT_NE(options.find("--fmad=false"), std::string::npos) << options;
  }
}

TEST(NvrtcTest, EveryKernelIsInTheImageOfItsPart) {
  const auto program = LowerCase(WorldCases(1)[0], "f32", true);
  ASSERT_TRUE(program.ok()) << program.status();
  const auto source =
      sim::cuda::Generate(*program, {.mapping = Mapping::kThreadPerInstance, .per_step = {}});
  ASSERT_TRUE(source.ok()) << source.status();
  const auto image = sim::cuda::CompileWithNvrtc(source->text, "sm_90", Optimisation::kLeast);
  ASSERT_TRUE(image.ok()) << image.status();
  const auto parts = sim::cuda::SplitImages(*image);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->size(), 2u);
  // Names of sections: of no other kernel is one a prefix.
  for (const std::string entry :
       {"start", "forward", "merge", "finish", "start_adjoint", "adjoint", "finish_adjoint"}) {
    const std::string section(".text.simgrad_" + entry + '\0');
    const bool adjoint = sim::cuda::IsOfAdjoint(entry);
    EXPECT_EQ(parts->front().find(section) != std::string::npos, !adjoint) << entry;
    EXPECT_EQ(parts->back().find(section) != std::string::npos, adjoint) << entry;
  }
}

TEST(NvrtcTest, KernelsThatSumGradientsOfWeightsCompile) {
  sim::Builder b("weights");
  const sim::Var x = b.State("x", {3});
  const sim::Var w = b.Weights("w", {3});
  b.SetNext({w * x});
  b.AddObjective("end", nullptr, [&](const sim::Vars& states, const sim::Vars&) {
    return b.Reduce(sim::OpCode::kSum, states[0]);
  });
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  using precision::Format;
  for (const auto& [format, accumulator] :
       {std::pair{Format::kF32, Format::kF32}, std::pair{Format::kF64, Format::kF64},
        std::pair{Format::kBf16, Format::kF32}, std::pair{Format::kF32, Format::kBf16}}) {
    precision::PolicySpec spec;
    spec.roles = {{"gradient", {.format = format, .accumulator = accumulator}}};
    const auto program = LowerForGradient(*world, PolicyOf(spec), "end");
    ASSERT_TRUE(program.ok()) << program.status();
    const auto source = sim::cuda::Generate(*program, {.mapping = Mapping::kThreadPerInstance});
    ASSERT_TRUE(source.ok()) << source.status();
    const auto image = sim::cuda::CompileWithNvrtc(source->text, "sm_90");
    ASSERT_TRUE(image.ok()) << image.status();
    const auto parts = sim::cuda::SplitImages(*image);
    ASSERT_TRUE(parts.ok()) << parts.status();
    for (const std::string entry : {"adjoint_sums", "adjoint_totals"}) {
      const std::string section(".text.simgrad_" + entry + '\0');
      EXPECT_TRUE(sim::cuda::IsOfAdjoint(entry));
      EXPECT_NE(parts->back().find(section), std::string::npos) << entry;
    }
  }
}

// Before 8.0 there is no instruction that joins a warp: device/warp.h has shuffles for it.
TEST(NvrtcTest, ATextCompilesForTheOldestArchitectureToo) {
  const auto program = LowerCase(WorldCases(1)[0], "f32", false);
  ASSERT_TRUE(program.ok()) << program.status();
  const auto source = sim::cuda::Generate(*program, {});
  ASSERT_TRUE(source.ok()) << source.status();
  const auto image = sim::cuda::CompileWithNvrtc(source->text, "sm_75", Optimisation::kLeast);
  if (image.status().code() == absl::StatusCode::kFailedPrecondition) {
    GTEST_SKIP() << image.status();  // this toolkit no longer knows it
  }
  EXPECT_TRUE(image.ok()) << image.status();
}

TEST(NvrtcTest, ATextThatDoesNotCompileGivesTheLog) {
  const auto image = sim::cuda::CompileWithNvrtc("#error no kernel", "sm_90");
  EXPECT_EQ(image.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(image.status().message()).find("no kernel"), std::string::npos);
}

TEST(NvrtcTest, ADeviceNewerThanTheToolkitGetsPtx) {
  const auto image = sim::cuda::CompileWithNvrtc("extern \"C\" __global__ void k() {}\n", "sm_990");
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_NE(image->find(".version"), std::string::npos);
}

TEST(NvrtcTest, AnArchitectureThatNvrtcDoesNotKnowGetsPtxOfTheLargestBelow) {
  const std::vector<int> known = {100, 101, 75, 120};
  const auto target = [&](int wanted) {
    return sim::cuda::NvrtcTarget(wanted, known).value_or("");
  };
  EXPECT_EQ(target(101), "sm_101");
  EXPECT_EQ(target(103), "compute_101");
  EXPECT_EQ(target(90), "compute_75");
  EXPECT_EQ(target(130), "compute_120");
  EXPECT_EQ(sim::cuda::NvrtcTarget(70, known).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sim::cuda::NvrtcTarget(70, {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(NvrtcTest, AnArchitectureThatTheToolkitHasDroppedIsAnError) {
  const auto image = sim::cuda::CompileWithNvrtc("extern \"C\" __global__ void k() {}\n", "sm_20");
  EXPECT_EQ(image.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace simgrad::tests
