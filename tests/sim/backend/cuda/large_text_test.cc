// Texts of programs as long as a physics step: how long they are, and in how many functions.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "sim/backend/cuda/generate.h"
#include "sim/program/lower.h"
#include "tests/sim/program/large_program.h"

namespace simgrad::sim::cuda {
namespace {

constexpr int64_t kInstancesBytes = int64_t{1} << 20;

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

TEST(LargeTextTest, GrowsWithTheProgramAndIsCutIntoFunctions) {
  for (const Mapping mapping : {Mapping::kThreadPerInstance, Mapping::kBlockPerInstance}) {
    for (const bool gradient : {false, true}) {
      int64_t shorter = 0;
      for (const int64_t operations : {2'500, 5'000}) {
        const NumericalProgram program = Lowered(operations, gradient);
        const GenerateOptions options = {.mapping = mapping};
        const auto start = std::chrono::steady_clock::now();
        const auto source = Generate(program, options);
        ASSERT_TRUE(source.ok()) << source.status();
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const int64_t length = static_cast<int64_t>(source->text.size());
        const int functions = CountOf(source->text, "\n__device__ __noinline__");
        std::cout << MappingName(mapping) << ", " << operations << " operations"
                  << (gradient ? ", gradient" : "") << ": " << length << " bytes, " << functions
                  << " functions, " << source->workspace_bytes << " bytes of a block, " << seconds
                  << " s\n";
        EXPECT_GT(functions, 3);
        // A statement is a line; closing brackets and lines of loops that are shared out are more.
        EXPECT_LT(LongestCut(source->text), 3 * options.longest_function);
        EXPECT_LT(source->workspace_bytes, kInstancesBytes * (gradient ? 16 : 4));
        if (shorter != 0) {
          EXPECT_LT(length, 3 * shorter);
        }
        shorter = length;
      }
    }
  }
}

}  // namespace
}  // namespace simgrad::sim::cuda
