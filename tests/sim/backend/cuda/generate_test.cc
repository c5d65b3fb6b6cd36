// The generated text: what it says, and what it does not depend on.
#include "sim/backend/cuda/generate.h"

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/program/shaped_programs.h"

namespace simgrad::sim::cuda {
namespace {

using tests::LowerCase;
using tests::WorldCase;
using tests::WorldCases;

GeneratedSource Generated(const WorldCase& world, bool gradient, Mapping mapping,
                          const std::string& preset = "f32") {
  const auto program = LowerCase(world, preset, gradient);
  if (!program.ok()) {
    ADD_FAILURE() << program.status();
    return {};
  }
  auto made = Generate(*program, {.mapping = mapping, .per_step = {}});
  if (!made.ok()) {
    ADD_FAILURE() << made.status();
    return {};
  }
  return *std::move(made);
}

bool Holds(const GeneratedSource& source, const std::string& text) {
  return source.text.find(text) != std::string::npos;
}

// A world whose state moves by `count` params.
absl::StatusOr<NumericalProgram> ManyParams(int count) {
  Builder b("many");
  Var x = b.State("x", {});
  Var sum = x;
  for (int i = 0; i < count; ++i) {
    sum = b.Apply(OpCode::kAdd, {sum, b.Param("p" + std::to_string(i), {}, 1.0)});
  }
  b.SetNext({sum});
  const auto program = b.Finish();
  if (!program.ok()) return program.status();
  const auto policy = precision::Resolve({});
  return Lower(*program, std::get<precision::Policy>(policy), "", {});
}

// Threads of a block share the elements of an array's gradient out among them.
TEST(GenerateTest, SumsOfAnArraysGradientAreSharedOutInABlock) {
  Builder b("array");
  const Var x = b.State("x", {200});
  const Var p = b.Param("p", {200}, 1.0);
  b.SetNext({b.Apply(OpCode::kMul, {x, p})});
  b.AddObjective("cost", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  const auto policy = precision::Resolve({});
  const auto program =
      Lower(*world, std::get<precision::Policy>(policy), "cost", shaped::WantedOf(*world, "cost"));
  ASSERT_TRUE(program.ok()) << program.status();
  const auto made = Generate(*program, {.mapping = Mapping::kBlockPerInstance, .per_step = {}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(Holds(*made, "= threadIdx.x; k1 < 200; k1 += blockDim.x"));
  EXPECT_FALSE(Holds(*made, " < 200; ++")) << made->text;
}

TEST(GenerateTest, ProgramsThatDifferInNumbersAloneHaveOneText) {
  for (const Mapping mapping : {Mapping::kThreadPerInstance, Mapping::kBlockPerInstance}) {
    WorldCase world = WorldCases(3)[0];
    const GeneratedSource first = Generated(world, true, mapping);
    world.config["tol"] = 0.0625;
    world.config["max_iter"] = 17.0;
    const GeneratedSource second = Generated(world, true, mapping);
    EXPECT_EQ(first.text, second.text);
    EXPECT_NE(first.numbers, second.numbers);
    EXPECT_NE(first.integers, second.integers);
  }
}

TEST(GenerateTest, TheTextIsTheSameEveryTime) {
  const WorldCase world = WorldCases(2)[1];
  EXPECT_EQ(Generated(world, true, Mapping::kThreadPerInstance).text,
            Generated(world, true, Mapping::kThreadPerInstance).text);
}

TEST(GenerateTest, ThePolicyIsPartOfTheText) {
  const WorldCase world = WorldCases(2)[0];
  const GeneratedSource wide = Generated(world, false, Mapping::kThreadPerInstance, "f64");
  const GeneratedSource narrow = Generated(world, false, Mapping::kThreadPerInstance, "f32");
  EXPECT_FALSE(Holds(wide, " add_f32("));
  EXPECT_TRUE(Holds(narrow, " add_f32("));
}

TEST(GenerateTest, TheTextCarriesTheNamesOfTheProgram) {
  const GeneratedSource made = Generated(WorldCases(1)[0], false, Mapping::kThreadPerInstance);
  EXPECT_TRUE(Holds(made, "_v_free = add_f32("));
  EXPECT_TRUE(Holds(made, "// loop 0: projection"));
  EXPECT_TRUE(Holds(made, "// event 0: contact"));
}

TEST(GenerateTest, AProgramWithoutAnAdjointHasNoAdjointKernels) {
  for (const WorldCase& world : WorldCases(2)) {
    const GeneratedSource forward = Generated(world, false, Mapping::kThreadPerInstance);
    const GeneratedSource gradient = Generated(world, true, Mapping::kThreadPerInstance);
    for (const std::string kernel :
         {"simgrad_start(", "simgrad_forward(", "simgrad_merge(", "simgrad_finish("}) {
      EXPECT_TRUE(Holds(forward, kernel)) << world.name << " " << kernel;
    }
    for (const std::string kernel :
         {"simgrad_start_adjoint(", "simgrad_adjoint(", "simgrad_finish_adjoint("}) {
      EXPECT_FALSE(Holds(forward, kernel)) << world.name << " " << kernel;
      EXPECT_TRUE(Holds(gradient, kernel)) << world.name << " " << kernel;
    }
  }
}

// The state moves by itself times a param; the cost is asked of the end or of every step.
absl::StatusOr<NumericalProgram> Decay(bool at_end) {
  Builder b("decay");
  const Var x = b.State("x", {});
  b.SetNext({b.Param("k", {}, 0.5) * x});
  if (at_end) {
    b.AddObjective("cost", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  } else {
    b.AddObjective(
        "cost", [&] { return x; }, nullptr);
  }
  const auto program = b.Finish();
  if (!program.ok()) return program.status();
  AdjointSpec spec{.objective = "cost", .wanted = {true, true}};
  return Lower(*program, std::get<precision::Policy>(precision::Resolve({})), "cost", spec);
}

TEST(GenerateTest, AReversedStepThatAllStepsShareStandsOnceInTheText) {
  for (const bool shared : {true, false}) {
    const auto program = Decay(shared);
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(program->adjoint->last.has_value(), !shared);
    const auto source = Generate(*program, {.mapping = Mapping::kThreadPerInstance});
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ(Holds(*source, "void RunReverseLast("), !shared);
  }
}

TEST(GenerateTest, KernelsOfTheAdjointAreAPartOfTheirOwn) {
  const WorldCase world = WorldCases(2)[0];
  EXPECT_FALSE(HasAdjointPart(Generated(world, false, Mapping::kThreadPerInstance).text));
  const std::string text = Generated(world, true, Mapping::kThreadPerInstance).text;
  ASSERT_TRUE(HasAdjointPart(text));
  const size_t parts = text.find("#if SIMGRAD_PART != 1");
  ASSERT_NE(parts, std::string::npos);
  int kernels = 0;
  for (size_t at = text.find("void simgrad_"); at != std::string::npos;
       at = text.find("void simgrad_", at + 1)) {
    const std::string entry = text.substr(at + 5, text.find('(', at) - at - 5);
    EXPECT_EQ(IsOfAdjoint(entry), at > parts) << entry;
    ++kernels;
  }
  EXPECT_EQ(kernels, 7);
}

TEST(GenerateTest, OnlyABlockPerInstanceNeedsAWorkspace) {
  const WorldCase world = WorldCases(9)[0];
  EXPECT_EQ(Generated(world, true, Mapping::kThreadPerInstance).workspace_bytes, 0);
  EXPECT_GT(Generated(world, true, Mapping::kBlockPerInstance).workspace_bytes, 0);
}

TEST(GenerateTest, SmallWorldsGetAThreadAndLargeOnesABlock) {
  const auto small = LowerCase(WorldCases(1)[0], "f32", false);
  const auto large = LowerCase(WorldCases(4096)[0], "f32", false);
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(ChooseMapping(*small), Mapping::kThreadPerInstance);
  EXPECT_EQ(ChooseMapping(*large), Mapping::kBlockPerInstance);
}

TEST(GenerateTest, MoreInputsThanAKernelTakesAreRefusedWithTheNumber) {
  const auto fits = ManyParams(kMaxInputs - 1);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_TRUE(Generate(*fits, {}).ok());
  const auto over = ManyParams(kMaxInputs);
  ASSERT_TRUE(over.ok()) << over.status();
  const auto refused = Generate(*over, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("257 inputs"), std::string::npos) << refused.status();
  EXPECT_NE(refused.status().message().find("--device=cpu"), std::string::npos) << refused.status();
}

TEST(GenerateTest, MoreFieldsThanAKernelTakesAreRefusedWithTheNumber) {
  // Two of each event and state; cost, health, path.
  for (const int events : {(kMaxFields - 4) / 2, (kMaxFields - 2) / 2}) {
    const Program world = shaped::ManyOfAll(1, 1, events, 0);
    const auto policy = std::get<precision::Policy>(precision::Resolve({}));
    const auto program = Lower(world, policy, "", {});
    ASSERT_TRUE(program.ok()) << program.status();
    const auto made = Generate(*program, {});
    if (events < (kMaxFields - 2) / 2) {
      ASSERT_TRUE(made.ok()) << made.status();
      EXPECT_GT(made->fields.size(), static_cast<size_t>(kMaxFields - 3));
    } else {
      EXPECT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_NE(made.status().message().find("1537 fields"), std::string::npos) << made.status();
    }
  }
}

TEST(GenerateTest, EveryHeaderThatATextIncludesIsEmbedded) {
  std::set<std::string> names;
  for (const EmbeddedHeader& header : EmbeddedHeaders()) names.insert(std::string(header.name));
  const GeneratedSource made = Generated(WorldCases(1)[0], true, Mapping::kThreadPerInstance);
  int includes = 0;
  const std::string mark = "#include \"";
  for (size_t at = made.text.find(mark); at != std::string::npos;
       at = made.text.find(mark, at + 1)) {
    const size_t begin = at + mark.size();
    EXPECT_TRUE(names.contains(made.text.substr(begin, made.text.find('"', begin) - begin)));
    ++includes;
  }
  EXPECT_GT(includes, 3);
}

}  // namespace
}  // namespace simgrad::sim::cuda
