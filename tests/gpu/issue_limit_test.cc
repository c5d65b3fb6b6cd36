// The yardstick's limit is counted rightly from its disassembly for sm_90. The listings in
// tests/data are those of YardstickText() by nvcc 13.0 with --fmad=false, taken apart by nvdisasm
// 12.4 and cuobjdump 13.5; the numbers below were counted by hand in them.
#include "tests/gpu/issue_limit.h"

#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/gpu/yardstick.h"
#include "tests/source_tree.h"

namespace simgrad::gpu_check {
namespace {

std::string Listing(const std::string& tool) {
  std::stringstream text;
  text << std::ifstream(tests::TestData("yardstick_sm_90." + tool + ".txt")).rdbuf();
  return text.str();
}

double Of(const Counts& counts, Pipe pipe) { return counts.by_pipe[static_cast<int>(pipe)]; }

TEST(IssueLimitTest, LoopsOfTheYardstickAreCountedAsByHandInBothListings) {
  for (const char* tool : {"nvdisasm", "cuobjdump"}) {
    const auto instructions = ReadListing(Listing(tool), "simgrad_forward");
    ASSERT_TRUE(instructions.ok()) << tool << instructions.status();
    const auto loops = NestedLoops(*instructions);
    ASSERT_TRUE(loops.ok()) << tool << loops.status();
    ASSERT_EQ(loops->size(), 3u) << tool;  // instances, steps, iterations
    const Counts& step = (*loops)[1];
    EXPECT_EQ(step.all, 20) << tool;
    EXPECT_EQ(Of(step, Pipe::kFma), 5) << tool;
    EXPECT_EQ(Of(step, Pipe::kHalfFma), 1) << tool;
    EXPECT_EQ(Of(step, Pipe::kAlu), 9) << tool;
    EXPECT_EQ(Of(step, Pipe::kControl), 4) << tool;
    EXPECT_EQ(Of(step, Pipe::kUniform), 1) << tool;
    const Counts& iteration = (*loops)[2];
    EXPECT_EQ(iteration.all, 8) << tool;
    EXPECT_EQ(Of(iteration, Pipe::kFma), 2) << tool;
    EXPECT_EQ(Of(iteration, Pipe::kAlu), 5) << tool;
    EXPECT_EQ(Of(iteration, Pipe::kControl), 1) << tool;
  }
}

TEST(IssueLimitTest, ThePipeThatTakesLongestIsTheLimit) {
  Counts counts;
  counts.all = 20;
  counts.by_pipe[static_cast<int>(Pipe::kAlu)] = 9;
  std::string bound;
  EXPECT_EQ(counts.Cycles(&bound), 20);
  EXPECT_EQ(bound, "issue");
  Counts iteration;
  iteration.all = 8;
  iteration.by_pipe[static_cast<int>(Pipe::kAlu)] = 5;
  counts.Add(iteration, 2.0);
  // 36 instructions; 19 of the integer and comparison pipe, which takes one every second cycle.
  EXPECT_EQ(counts.Cycles(&bound), 38);
  EXPECT_EQ(bound, "alu");
}

TEST(IssueLimitTest, SecondsAreCyclesOfAllWarpsOverTheSchedulers) {
  IssueLimit limit;
  limit.per_step.all = 40;
  // 2^20 / 32 warps, 1000 steps of 40 cycles, on 132 multiprocessors of 4 schedulers at 2 GHz.
  EXPECT_DOUBLE_EQ(limit.Seconds(1 << 20, 1000, 132, 2e9), 32768.0 * 1000 * 40 / (4 * 132 * 2e9));
}

TEST(IssueLimitTest, TheYardsticksLimitHasTheTurnsThatItsWarpsTake) {
  const auto limit = LimitOfYardstick(Listing("nvdisasm"));
  ASSERT_TRUE(limit.ok()) << limit.status();
  // A warp iterates in more steps than one ball does, and in no step more than the cap.
  EXPECT_GT(limit->inner_runs, 0.0);
  EXPECT_LT(limit->inner_runs, 25.0);
  EXPECT_DOUBLE_EQ(limit->per_step.all, 20 + 8 * limit->inner_runs);
}

TEST(IssueLimitTest, AListingWithoutTheKernelOrItsLoopsIsRefused) {
  EXPECT_FALSE(ReadListing(Listing("nvdisasm"), "another").ok());
  EXPECT_FALSE(LimitOfYardstick("simgrad_forward:\n  /*0000*/  EXIT ;\n").ok());
}

TEST(IssueLimitTest, TheYardstickThatNvrtcCompilesHasTheSameLoops) {
  const auto listing = DisassembleYardstick("sm_90");
  if (absl::IsNotFound(listing.status())) GTEST_SKIP() << listing.status();
  ASSERT_TRUE(listing.ok()) << listing.status();
  const auto limit = LimitOfYardstick(*listing);
  ASSERT_TRUE(limit.ok()) << limit.status();
}

}  // namespace
}  // namespace simgrad::gpu_check
