// What an adjoint tells of its solves gets inputs behind those of the world.
#include "sim/program/told.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/print.h"

namespace simgrad::sim {
namespace {

using Inputs = std::vector<int32_t>;

Op Accumulate(int32_t input) {
  Op op{.code = OpCode::kAccumulate, .role = Role::kGradient};
  op.attributes.input = input;
  return op;
}

// A world of a state and a param whose adjoint tells of these solves, by no operation yet.
NumericalProgram Telling(const std::vector<std::string>& sites) {
  Builder b("telling");
  const Var x = b.State("x", {});
  b.SetNext({x * b.Param("p", {}, 1.0)});
  NumericalProgram numerical;
  numerical.program = b.program();
  numerical.adjoint.emplace().told = sites;
  numerical.adjoint_spec.emplace().wanted = {false, true};
  return numerical;
}

// By operation of a region: the input that it names.
Inputs Named(const Region& region) {
  Inputs inputs;
  for (const Op& op : region.ops) inputs.push_back(op.attributes.input);
  return inputs;
}

TEST(Told, InputsStandBehindThoseOfTheWorldTwoForEachSite) {
  PassBudget budget;
  const NumericalProgram placed = PlaceTold(Telling({"a.adjoint", "b.adjoint"}), budget);
  EXPECT_EQ(UntoldInputs(placed), 2u);
  const Adjoint& adjoint = *placed.adjoint;
  EXPECT_EQ(ToldInput(adjoint, 0, ToldPart::kCounted), 2);
  EXPECT_EQ(ToldInput(adjoint, 0, ToldPart::kLargest), 3);
  EXPECT_EQ(ToldInput(adjoint, 1, ToldPart::kCounted), 4);
  EXPECT_EQ(ToldInput(adjoint, 1, ToldPart::kLargest), 5);
  const std::vector<Input>& inputs = placed.program.inputs;
  ASSERT_EQ(inputs.size(), 6u);
  EXPECT_EQ(inputs[0].name, "x");
  EXPECT_EQ(inputs[1].name, "p");
  const std::vector<std::string> names = {"a.adjoint counted", "a.adjoint largest",
                                          "b.adjoint counted", "b.adjoint largest"};
  for (size_t k = 0; k < names.size(); ++k) {
    const Input& input = inputs[2 + k];
    EXPECT_EQ(input.name, names[k]);
    EXPECT_EQ(input.kind, InputKind::kData);
    const Type type{ElementType::kReal, {k % 2 == 0 ? kCountedNumbers : kLargestNumbers}};
    EXPECT_EQ(placed.program[input.value].type, type);
  }
  // Their gradients are what is told, and nothing of the forward pass reads them.
  EXPECT_EQ(placed.adjoint_spec->wanted, (std::vector<bool>{false, true, true, true, true, true}));
  const std::vector<bool> read = ReadInputs(placed);
  EXPECT_EQ(std::vector<bool>(read.begin() + 2, read.end()), std::vector<bool>(4, false));
}

TEST(Told, OperationsNameThemInEveryRegionOfTheAdjoint) {
  NumericalProgram numerical = Telling({"a.adjoint", "b.adjoint"});
  const int32_t counted = UnplacedTold(1, ToldPart::kCounted);
  const int32_t largest = UnplacedTold(0, ToldPart::kLargest);
  Adjoint& adjoint = *numerical.adjoint;
  adjoint.terminal.ops = {Accumulate(counted)};
  adjoint.inner.ops = {Accumulate(largest), Accumulate(counted)};
  adjoint.initial.ops = {Accumulate(largest)};
  adjoint.last.emplace().ops = {Accumulate(counted)};
  Op loop{.code = OpCode::kForVjp};
  loop.regions.emplace_back().ops = {Accumulate(largest)};
  adjoint.inner.ops.push_back(loop);
  PassBudget budget;
  const NumericalProgram placed = PlaceTold(numerical, budget);
  const int32_t to_counted = ToldInput(*placed.adjoint, 1, ToldPart::kCounted);
  const int32_t to_largest = ToldInput(*placed.adjoint, 0, ToldPart::kLargest);
  EXPECT_EQ(Named(placed.adjoint->terminal), Inputs{to_counted});
  EXPECT_EQ(Named(placed.adjoint->inner), (Inputs{to_largest, to_counted, -1}));
  EXPECT_EQ(Named(placed.adjoint->inner.ops[2].regions[0]), Inputs{to_largest});
  EXPECT_EQ(Named(placed.adjoint->initial), Inputs{to_largest});
  EXPECT_EQ(Named(*placed.adjoint->last), Inputs{to_counted});
}

TEST(Told, GradientsOfTheWorldKeepTheirInputs) {
  NumericalProgram numerical = Telling({"a.adjoint"});
  numerical.adjoint->inner.ops = {Accumulate(1), Accumulate(0)};
  PassBudget budget;
  EXPECT_EQ(Named(PlaceTold(numerical, budget).adjoint->inner), (Inputs{1, 0}));
}

TEST(Told, AnAdjointWithoutSolvesStaysAsItIs) {
  PassBudget budget;
  const NumericalProgram plain = Telling({});
  const NumericalProgram placed = PlaceTold(plain, budget);
  EXPECT_EQ(Print(placed.program), Print(plain.program));
  EXPECT_EQ(placed.adjoint_spec->wanted, plain.adjoint_spec->wanted);
  EXPECT_EQ(UntoldInputs(placed), 2u);
  NumericalProgram forward = plain;
  forward.adjoint.reset();
  EXPECT_EQ(UntoldInputs(PlaceTold(forward, budget)), 2u);
}

// A count is exact up to 2^24 in f32; a narrower format holds none worth telling.
TEST(Told, NothingIsToldWhereGradientsAreNarrowerThanF32) {
  for (int i = 0; i < precision::kFormatCount; ++i) {
    precision::Policy policy = std::get<precision::Policy>(precision::Resolve({.preset = "f64"}));
    const Format format = static_cast<Format>(i);
    policy.roles[static_cast<size_t>(Role::kGradient)].format = format;
    EXPECT_EQ(Tells(policy), format == Format::kF32 || format == Format::kF64)
        << precision::FormatName(format);
  }
}

}  // namespace
}  // namespace simgrad::sim
