// What a program is said to hold is what the allocator gave it.
#include "sim/program/held_bytes.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>

#include "sim/program/lower.h"
#include "sim/program/paths.h"
#include "tests/sim/program/shaped_programs.h"

namespace simgrad::sim {
namespace {

int64_t InUse() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

bool IsMeasured() {
  const int64_t before = InUse();
  const Program program = shaped::Chain(OpCode::kSin, 100);
  return InUse() - before >= 10'000 && program.HasInitial() == false;
}

precision::Policy F32() {
  return std::get<precision::Policy>(precision::Resolve(precision::PolicySpec()));
}

TEST(HeldBytes, OfALoweredProgramAreWithinAFifthOfTheAllocators) {
  if (!IsMeasured()) GTEST_SKIP() << "the allocator does not say what is in use";
  const Program worlds[] = {
      shaped::Chain(OpCode::kSin, 2'000), shaped::ShiftedWhile(500), shaped::NestedTests(5, 5),
      shaped::WideConcat(1'000),          shaped::Captures(500),     shaped::ShiftedStates(500)};
  for (const Program& world : worlds) {
    const AdjointSpec spec = shaped::WantedOf(world, "cost");
    const int64_t before = InUse();
    const auto lowered =
        std::make_unique<const NumericalProgram>(*Lower(world, F32(), "cost", spec));
    const double used = static_cast<double>(InUse() - before);
    const double said = static_cast<double>(HeldBytes(*lowered));
    EXPECT_NEAR(said / used, 1.0, 0.2) << world.name << ": " << said << " of " << used;
  }
}

TEST(HeldBytes, CountThePathOfARun) {
  const Program world = shaped::FiniteTests(500);
  const NumericalProgram recorded =
      *Lower(world, F32(), "", std::nullopt, nullptr, {.path = PathUse::kRecorded});
  NumericalProgram without = recorded;
  without.path.reset();
  ASSERT_EQ(recorded.path->columns.size(), 500u);
  EXPECT_GE(HeldBytes(recorded) - HeldBytes(without),
            500 * static_cast<int64_t>(sizeof(PathColumn)));
}

TEST(HeldBytes, OfAWorldAreWithinAFifthOfTheAllocators) {
  if (!IsMeasured()) GTEST_SKIP() << "the allocator does not say what is in use";
  const Program world = shaped::Chain(OpCode::kPow, 2'000);
  const int64_t before = InUse();
  const auto copy = std::make_unique<const Program>(world);
  const double used = static_cast<double>(InUse() - before);
  EXPECT_NEAR(static_cast<double>(HeldBytes(*copy)) / used, 1.0, 0.2);
}

}  // namespace
}  // namespace simgrad::sim
