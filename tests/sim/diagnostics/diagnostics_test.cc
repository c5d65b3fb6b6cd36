#include "sim/diagnostics/diagnostics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

namespace simgrad::sim {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(MarginBucket, HoldsHalfOpenPowersOfTwo) {
  EXPECT_EQ(MarginBucket(0.0), 0);
  EXPECT_EQ(MarginBucket(0x1p-1000), 1);
  EXPECT_EQ(MarginBucket(1.0), 1);
  EXPECT_EQ(MarginBucket(std::nextafter(1.0, 2.0)), 2);
  EXPECT_EQ(MarginBucket(2.0), 2);
  EXPECT_EQ(MarginBucket(2.5), 3);
  for (int k = 3; k < kMarginBuckets - 1; ++k) {
    EXPECT_EQ(MarginBucket(std::ldexp(1.0, k - 1)), k);
    EXPECT_EQ(MarginBucket(std::nextafter(std::ldexp(1.0, k - 2), kInf)), k);
  }
  EXPECT_EQ(MarginBucket(0x1p300), kMarginBuckets - 1);
  EXPECT_EQ(MarginBucket(kInf), kMarginBuckets - 1);
}

TEST(ExponentBucket, HoldsEightBinadesEach) {
  EXPECT_EQ(ExponentBucket(0.0), 0);
  for (int k = 1; k < kExponentBuckets; ++k) {
    EXPECT_EQ(ExponentBucket(std::ldexp(1.0, 8 * k - 136)), k);
    EXPECT_EQ(ExponentBucket(std::ldexp(1.999, 8 * k - 129)), k);
  }
  EXPECT_EQ(ExponentBucket(0x1p-1074), 1);
  EXPECT_EQ(ExponentBucket(0x1p1000), kExponentBuckets - 1);
}

TEST(SmallestMargin, PrefersMagnitudeThenSmallerInstanceThenTheNegativeOne) {
  SmallestMargin margin;
  margin.Offer(2.0, 5.0, 1);
  margin.Offer(-1.0, -7.0, 9);
  EXPECT_EQ(margin.absolute, -1.0);
  EXPECT_EQ(margin.absolute_instance, 9u);
  EXPECT_EQ(margin.ulps, 5.0);  // the two minima are independent
  EXPECT_EQ(margin.ulps_instance, 1u);
  margin.Offer(1.0, 5.0, 4);
  EXPECT_EQ(margin.absolute, 1.0);
  EXPECT_EQ(margin.absolute_instance, 4u);
  EXPECT_EQ(margin.ulps_instance, 1u);
  margin.Offer(-1.0, 6.0, 4);
  EXPECT_EQ(margin.absolute, -1.0);
}

TEST(SmallestMargin, KeepsAnInfiniteMarginIfThereIsNoOther) {
  SmallestMargin margin;
  margin.Offer(-kInf, -kInf, 3);
  EXPECT_TRUE(margin.any);
  EXPECT_EQ(margin.absolute, -kInf);
  EXPECT_EQ(margin.absolute_instance, 3u);
}

TEST(StateRange, NotesWhatKindOfNumberItMet) {
  StateRange range;
  for (double x : {-2.0, 3.0, 0.0, -0.0, 0x1p-130, kInf, std::nan("")}) range.Note(x, 0x1p-126);
  EXPECT_EQ(range.min, -2.0);
  EXPECT_EQ(range.max, 3.0);
  EXPECT_EQ(range.smallest, 0x1p-130);
  EXPECT_EQ(range.subnormals, 1u);
  EXPECT_EQ(range.zeros, 2u);
  EXPECT_EQ(range.infinities, 1u);
  EXPECT_EQ(range.nans, 1u);
}

TEST(RangeCounts, ACastUnderflowsBelowTheSmallestNormalAndOverflowsBeyondTheLargest) {
  RangeCounts counts;
  const auto note = [&](double x, double r) {
    counts.NoteCast(precision::Role::kTape, precision::Format::kF16, x, r);
  };
  const size_t tape = static_cast<size_t>(precision::Role::kTape);
  note(1.0, 1.0);
  note(0.0, 0.0);
  note(0x1p-14, 0x1p-14);
  EXPECT_EQ(counts, RangeCounts{});
  note(0x1p-15, 0x1p-15);  // subnormal
  note(-0x1p-40, -0.0);
  EXPECT_EQ(counts.underflows[tape], 2u);
  note(1e6, kInf);
  note(-1e6, -65504.0);  // saturated
  EXPECT_EQ(counts.overflows[tape], 2u);
}

TEST(IterationBucket, HoldsEachBoundAndWhatIsAboveTheOneBefore) {
  for (size_t k = 0; k < kIterationBounds.size(); ++k) {
    EXPECT_EQ(IterationBucket(kIterationBounds[k]), k);
    EXPECT_EQ(IterationBucket(kIterationBounds[k] + 1), k + 1);
  }
  EXPECT_EQ(IterationBucket(~uint64_t{0}), kIterationBuckets - 1);
}

std::vector<Site> OneOfEach() {
  return {{"loop", SiteKind::kTermination, 1, 4}, {"contact", SiteKind::kEvent, 3, 0}};
}

// What one instance did, drawn from a few values so that ties are common.
StepDiagnostics RandomPart(std::mt19937& random, uint64_t instance) {
  StepDiagnostics part = StepDiagnostics::For(OneOfEach(), 1, 0, 2, 2, 1, false);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const double values[] = {-1.0, -0.0, 0.0, 1.0, 2.0};
  for (int step = 0; step < 2; ++step) {
    TerminationStep& loop = part.terminations[0][step];
    loop.runs = 1;
    loop.iterations_min = loop.iterations_max = static_cast<uint32_t>(draw(4));
    loop.iterations_sum = loop.iterations_min;
    loop.iterations[IterationBucket(loop.iterations_sum)] = 1;
    loop.reasons[static_cast<size_t>(draw(4))] = 1;
    loop.tested_min = loop.tested_max = values[draw(5)];
    loop.margin.Offer(values[draw(5)], values[draw(5)], instance);
    loop.histogram[static_cast<size_t>(draw(3))] = 1;
    EventStep& event = part.events[0][step];
    event.count = static_cast<uint64_t>(draw(3));
    event.margin.Offer(values[draw(5)], values[draw(5)], instance);
    StateRange& range = part.states[0][step];
    range.min = range.max = values[draw(5)];
    range.smallest = 1.0 + draw(2);
    range.zeros = static_cast<uint64_t>(draw(2));
  }
  part.ranges.underflows[2] = static_cast<uint64_t>(draw(3));
  const uint64_t additions = static_cast<uint64_t>(draw(3));
  part.additions = {{precision::Role::kSolver, additions, additions / 2}};
  return part;
}

// Equality of doubles does not tell -0 from +0; the bits of every extreme do.
std::vector<uint64_t> Bits(const StepDiagnostics& d) {
  std::vector<uint64_t> bits;
  for (int step = 0; step < 2; ++step) {
    const TerminationStep& loop = d.terminations[0][step];
    const EventStep& event = d.events[0][step];
    for (double x :
         {loop.tested_min, loop.tested_max, loop.margin.absolute, loop.margin.ulps,
          event.margin.absolute, event.margin.ulps, d.states[0][step].min, d.states[0][step].max}) {
      bits.push_back(std::bit_cast<uint64_t>(x));
    }
  }
  return bits;
}

TEST(StepDiagnostics, MergeGivesTheSameBitsInEveryOrder) {
  std::mt19937 random(20240607);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<StepDiagnostics> parts;
    for (uint64_t id = 0; id < 7; ++id) parts.push_back(RandomPart(random, id));
    const auto merged = [&] {
      StepDiagnostics all = StepDiagnostics::For(OneOfEach(), 1, 0, 2, 2, 1, false);
      for (const StepDiagnostics& part : parts) all.Merge(part);
      return all;
    };
    const StepDiagnostics first = merged();
    for (int shuffle = 0; shuffle < 5; ++shuffle) {
      std::shuffle(parts.begin(), parts.end(), random);
      const StepDiagnostics again = merged();
      EXPECT_EQ(again, first);
      EXPECT_EQ(Bits(again), Bits(first));
    }
  }
}

TEST(StepDiagnostics, SamplesEveryStrideAndTheLastStep) {
  EXPECT_EQ(StepDiagnostics::For({}, 2, 0, 10, 10, 4, false).sampled_steps,
            (std::vector<int64_t>{3, 7, 9}));
  EXPECT_EQ(StepDiagnostics::For({}, 2, 0, 8, 8, 4, false).sampled_steps,
            (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(StepDiagnostics::For({}, 2, 4, 2, 10, 4, false).sampled_steps,
            (std::vector<int64_t>{}));
}

TEST(StepDiagnostics, AppendOfTwoRangesIsTheWholeRange) {
  StepDiagnostics whole = StepDiagnostics::For(OneOfEach(), 1, 0, 10, 10, 4, false);
  StepDiagnostics head = StepDiagnostics::For(OneOfEach(), 1, 0, 6, 10, 4, false);
  StepDiagnostics tail = StepDiagnostics::For(OneOfEach(), 1, 6, 4, 10, 4, false);
  whole.terminations[0][7].runs = tail.terminations[0][1].runs = 5;
  whole.events[0][2].count = head.events[0][2].count = 3;
  whole.states[0][1].zeros = tail.states[0][0].zeros = 2;  // step 7
  whole.ranges.overflows[0] = 4;
  head.ranges.overflows[0] = 3;
  tail.ranges.overflows[0] = 1;
  whole.additions = {{precision::Role::kSolver, 9, 5}};
  head.additions = {{precision::Role::kSolver, 4, 0}};
  tail.additions = {{precision::Role::kSolver, 5, 5}};
  head.Append(tail);
  EXPECT_EQ(head, whole);
}

TEST(BackwardStep, MergeAddsCountsAndKeepsTheLargest) {
  BackwardStep a;
  a.largest = 2.0;
  a.exponents[3] = 1;
  BackwardStep b;
  b.largest = 3.0;
  b.nonfinite = 2;
  b.exponents[3] = 4;
  a.Merge(b);
  EXPECT_EQ(a.largest, 3.0);
  EXPECT_EQ(a.nonfinite, 2u);
  EXPECT_EQ(a.exponents[3], 5u);
}

}  // namespace
}  // namespace simgrad::sim
