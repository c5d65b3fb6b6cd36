#include "server/conversion/diagnostics_blocks.h"

#include <gtest/gtest.h>

#include <cstring>

namespace simgrad::server::conversion {
namespace {

const std::vector<sim::Site> kSites = {{"loop", sim::SiteKind::kTermination, 1, 25},
                                       {"event", sim::SiteKind::kEvent, 1, 0}};
// The last two sites are one entry.
const std::vector<sim::AdditionSite> kAdditions = {{"y", "step.py:7", precision::Role::kDynamics},
                                                   {"y", "step.py:9", precision::Role::kDynamics},
                                                   {"y", "step.py:9", precision::Role::kDynamics}};
const ColumnNames kNames = {{"loop"}, {"event"}, {""}, {"y"}, {}, kAdditions};

// Steps [first, first + steps) of a run of 40, every number telling its step.
sim::StepDiagnostics Range(int64_t first, int64_t steps) {
  auto diagnostics = sim::StepDiagnostics::For(kSites, 1, first, steps, 40, 8, true);
  for (int64_t i = 0; i < steps; ++i) {
    const uint64_t t = static_cast<uint64_t>(first + i);
    sim::TerminationStep& loop = diagnostics.terminations[0][i];
    loop.runs = 2;
    loop.iterations_sum = 2 * t;
    loop.iterations_min = static_cast<uint32_t>(t);
    loop.iterations_max = static_cast<uint32_t>(t);
    loop.iterations[sim::IterationBucket(t)] = 2;
    loop.histogram[3] = static_cast<uint32_t>(t);
    diagnostics.events[0][i].count = t;
  }
  for (size_t k = 0; k < diagnostics.sampled_steps.size(); ++k) {
    diagnostics.states[0][k].zeros = static_cast<uint64_t>(diagnostics.sampled_steps[k]);
    diagnostics.event_margins[0][k][5] = static_cast<uint32_t>(diagnostics.sampled_steps[k]);
  }
  diagnostics.ranges.underflows[0] = 1;
  for (uint64_t site = 0; site < kAdditions.size(); ++site) {
    diagnostics.additions.push_back({precision::Role::kDynamics, 10 * site, site});
  }
  return diagnostics;
}

void ExpectContiguous(const std::vector<v1::DiagnosticsBlock>& blocks, int64_t steps) {
  int64_t next = 0;
  uint64_t underflows = 0, additions = 0, absorbed = 0;
  std::vector<int64_t> sampled;
  for (const v1::DiagnosticsBlock& block : blocks) {
    EXPECT_EQ(block.first_step(), next);
    ASSERT_EQ(block.terminations_size(), 1);
    ASSERT_EQ(block.terminations(0).runs_size(), block.steps());
    ASSERT_EQ(block.terminations(0).histogram().size(),
              static_cast<size_t>(block.steps()) * 4 * sim::kMarginBuckets);
    for (int i = 0; i < block.steps(); ++i) {
      const uint64_t t = static_cast<uint64_t>(next + i);
      EXPECT_EQ(block.terminations(0).iterations_mean(i), static_cast<double>(t));
      uint32_t count = 0;
      std::memcpy(&count,
                  block.terminations(0).histogram().data() +
                      4 * (static_cast<size_t>(i) * sim::kMarginBuckets + 3),
                  4);
      EXPECT_EQ(count, t);
      std::memcpy(
          &count,
          block.terminations(0).iterations().data() +
              4 * (static_cast<size_t>(i) * sim::kIterationBuckets + sim::IterationBucket(t)),
          4);
      EXPECT_EQ(count, 2u);
      EXPECT_EQ(block.events(0).count(i), t);
    }
    ASSERT_EQ(block.states(0).zeros_size(), block.sampled_steps_size());
    ASSERT_EQ(block.events(0).histogram().size(),
              static_cast<size_t>(block.sampled_steps_size()) * sizeof(sim::MarginHistogram));
    for (int k = 0; k < block.sampled_steps_size(); ++k) {
      sampled.push_back(block.sampled_steps(k));
      EXPECT_EQ(block.states(0).zeros(k), static_cast<uint64_t>(block.sampled_steps(k)));
      sim::MarginHistogram margins;
      std::memcpy(margins.data(),
                  block.events(0).histogram().data() + static_cast<size_t>(k) * sizeof(margins),
                  sizeof(margins));
      EXPECT_EQ(margins[5], static_cast<uint64_t>(block.sampled_steps(k)));
      EXPECT_EQ(margins[4], 0u);
    }
    for (const v1::RoleRange& range : block.ranges()) underflows += range.underflows();
    for (const v1::Absorption& entry : block.absorption()) {
      EXPECT_EQ(entry.state(), "y");
      EXPECT_EQ(entry.label(), "step.py:9");  // nothing was added at the other
      EXPECT_EQ(entry.role(), "dynamics");
      additions += entry.additions();
      absorbed += entry.absorbed();
    }
    next += block.steps();
  }
  EXPECT_EQ(next, steps);
  EXPECT_EQ(sampled, (std::vector<int64_t>{7, 15, 23, 31, 39}));
  EXPECT_EQ(underflows, 4u);
  EXPECT_EQ(additions, 4u * 30u);
  EXPECT_EQ(absorbed, 4u * 3u);
}

std::vector<v1::DiagnosticsBlock> Taken(PendingDiagnostics& pending) {
  std::vector<v1::DiagnosticsBlock> blocks;
  pending.Take([&](const v1::DiagnosticsBlock& block) { blocks.push_back(block); });
  return blocks;
}

TEST(PendingDiagnostics, CoalescesAppendedRangesIntoOneBlock) {
  PendingDiagnostics pending(kNames, 1 << 20);
  for (int64_t first = 0; first < 40; first += 10) pending.Append(Range(first, 10));
  const auto blocks = Taken(pending);
  EXPECT_EQ(blocks.size(), 1u);
  ExpectContiguous(blocks, 40);
  EXPECT_TRUE(pending.empty());
  EXPECT_TRUE(Taken(pending).empty());
}

TEST(PendingDiagnostics, SplitsWhatExceedsTheLimitAndLosesNothing) {
  constexpr int64_t kLimit = 4096;
  PendingDiagnostics pending(kNames, kLimit);
  for (int64_t first = 0; first < 40; first += 10) pending.Append(Range(first, 10));
  const auto blocks = Taken(pending);
  EXPECT_GT(blocks.size(), 1u);
  for (const auto& block : blocks) EXPECT_LE(static_cast<int64_t>(block.ByteSizeLong()), kLimit);
  ExpectContiguous(blocks, 40);
}

TEST(PendingDiagnostics, TakingAfterEveryRangeGivesTheSameColumns) {
  PendingDiagnostics pending(kNames, 1 << 20);
  std::vector<v1::DiagnosticsBlock> blocks;
  for (int64_t first = 0; first < 40; first += 10) {
    pending.Append(Range(first, 10));
    for (auto& block : Taken(pending)) blocks.push_back(block);
  }
  EXPECT_EQ(blocks.size(), 4u);
  ExpectContiguous(blocks, 40);
}

TEST(InstanceBlocks, PiecesByInstancesReassembleToTheWhole) {
  constexpr int64_t kSteps = 3;
  constexpr int64_t kInstances = 5;
  sim::InstanceSite site;
  for (uint32_t i = 0; i < kSteps * kInstances; ++i) {
    site.iterations.push_back(i);
    site.reasons.push_back(static_cast<uint8_t>(i % 3));
    site.value_counts.push_back(1);
  }
  for (int64_t i = 0; i < kInstances; ++i) {
    site.values.push_back(std::vector<double>(kSteps, static_cast<double>(i)));
  }
  // Two instances take 2 * (9 * 3 + 8 * 3) = 102 bytes.
  const auto blocks = InstanceBlocks(kNames, 10, kSteps, kInstances, {site}, 110);
  ASSERT_EQ(blocks.size(), 3u);
  std::vector<uint32_t> iterations(kSteps * kInstances);
  std::vector<double> values;
  for (const v1::DiagnosticsBlock& block : blocks) {
    EXPECT_EQ(block.first_step(), 10);
    const v1::InstanceColumns& columns = block.instances(0);
    EXPECT_EQ(columns.site(), "loop");
    for (int64_t step = 0; step < kSteps; ++step) {
      std::memcpy(iterations.data() + step * kInstances + block.instance_offset(),
                  columns.iterations().data() + 4 * step * columns.instances(),
                  4 * static_cast<size_t>(columns.instances()));
    }
    const size_t count = columns.values().size() / 8;
    const size_t at = values.size();
    values.resize(at + count);
    std::memcpy(values.data() + at, columns.values().data(), 8 * count);
  }
  EXPECT_EQ(iterations, site.iterations);
  EXPECT_EQ(values, (std::vector<double>{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}));
}

TEST(BackwardBlocks, AreContiguousAndCarryTheRangesOnce) {
  std::vector<sim::BackwardStep> steps(100);
  for (size_t i = 0; i < steps.size(); ++i) steps[i].largest = static_cast<double>(i);
  sim::RangeCounts ranges;
  ranges.overflows[8] = 5;
  int64_t next = 0;
  uint64_t overflows = 0;
  for (const v1::BackwardBlock& block : BackwardBlocks(steps, ranges, 2048)) {
    EXPECT_EQ(block.first_step(), next);
    EXPECT_LE(block.ByteSizeLong(), 2048u);
    for (int i = 0; i < block.steps(); ++i) {
      EXPECT_EQ(block.largest(i), static_cast<double>(next + i));
    }
    next += block.steps();
    for (const v1::RoleRange& range : block.ranges()) {
      EXPECT_EQ(range.role(), "adjoint");
      overflows += range.overflows();
    }
  }
  EXPECT_EQ(next, 100);
  EXPECT_EQ(overflows, 5u);
}

}  // namespace
}  // namespace simgrad::server::conversion
