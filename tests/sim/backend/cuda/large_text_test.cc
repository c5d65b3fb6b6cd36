// Texts of programs as long as a physics step: how long they are, and in how many functions.
#include <algorithm>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "sim/backend/cuda/generate.h"
#include "sim/program/lower.h"
#include "tests/sim/program/large_program.h"

namespace simgrad::sim::cuda {
namespace {

NumericalProgram Lowered(int64_t operations, bool gradient) {
  const Program program = large::LargeProgram(operations);
  const auto policy = std::get<precision::Policy>(precision::Resolve({}));
  std::optional<AdjointSpec> spec;
  std::string objective;
  if (gradient) {
    objective = program.objectives.front().name;
    spec.emplace();
    spec->objective = objective;
    for (const Input& input : program.inputs) {
      spec->wanted.push_back(input.kind == InputKind::kState);
    }
  }
  auto lowered = Lower(program, policy, objective, spec);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return *std::move(lowered);
}

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Lines of the longest function that a text is cut into.
int64_t LongestCut(const std::string& text) {
  int64_t longest = 0;
  const std::string head = "\n__device__ __noinline__";
  for (size_t at = text.find(head); at != std::string::npos; at = text.find(head, at + 1)) {
    const size_t end = text.find("\n}", at);
    longest = std::max(longest, static_cast<int64_t>(std::count(
                                    text.begin() + static_cast<std::ptrdiff_t>(at),
                                    text.begin() + static_cast<std::ptrdiff_t>(end), '\n')));
  }
  return longest;
}

// What a text may have at most: some 5 % above what it has.
struct Most {
  int64_t operations;
  bool gradient;
  Mapping mapping;
  int64_t text_kib;
  int functions;
  int64_t workspace_kib;  // of a block
};

void PrintTo(const Most& most, std::ostream* out) {
  *out << most.operations << (most.gradient ? " operations, gradient, " : " operations, ")
       << MappingName(most.mapping);
}

class LargeTexts : public testing::TestWithParam<Most> {};

TEST_P(LargeTexts, KeepTheirCounts) {
  const Most& most = GetParam();
  const NumericalProgram program = Lowered(most.operations, most.gradient);
  const GenerateOptions options = {.mapping = most.mapping};
  const auto source = Generate(program, options);
  ASSERT_TRUE(source.ok()) << source.status();
  const int functions = CountOf(source->text, "\n__device__ __noinline__");
  EXPECT_LE(source->text.size(), static_cast<size_t>(most.text_kib) << 10);
  EXPECT_LE(functions, most.functions);
  EXPECT_LE(source->workspace_bytes, most.workspace_kib << 10);
  // A statement is a line; closing brackets and lines of loops that are shared out are more.
  EXPECT_LT(LongestCut(source->text), 3 * options.longest_function);
  // The bounds are near: what is far below them would pass with a text that lost half of itself.
  EXPECT_GE(source->text.size(), static_cast<size_t>(most.text_kib) << 9);
  EXPECT_GE(functions, most.functions / 2);
}

constexpr Mapping kThread = Mapping::kThreadPerInstance;
constexpr Mapping kBlock = Mapping::kBlockPerInstance;
INSTANTIATE_TEST_SUITE_P(Sizes, LargeTexts,
                         testing::Values(Most{5'000, false, kThread, 546, 30, 0},
                                         Most{5'000, true, kThread, 3'430, 228, 0},
                                         Most{5'000, false, kBlock, 645, 30, 815},
                                         Most{5'000, true, kBlock, 3'745, 228, 820},
                                         Most{20'000, false, kThread, 2'270, 122, 125},
                                         Most{20'000, true, kThread, 14'390, 930, 125},
                                         Most{20'000, false, kBlock, 2'680, 122, 3'440},
                                         Most{20'000, true, kBlock, 15'650, 930, 3'450}));

}  // namespace
}  // namespace simgrad::sim::cuda
