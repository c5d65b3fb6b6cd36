// The processor time of planning, for worlds of one shape and growing size.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "sim/plan/make_plan.h"
#include "sim/program/lower.h"
#include "tests/sanitized.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/work_maker.h"
#include "tests/thread_time.h"

namespace simgrad::sim::plan {
namespace {

constexpr Records kAll = {.decides = true, .looks = true, .ranges = true};

struct Shape {
  std::string name;
  std::function<Program(int)> make;
  int size = 0;  // of the smaller world
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

class PlanningCost : public testing::TestWithParam<Shape> {};

NumericalProgram Gradient(const Program& world) {
  return *Lower(world, tests::PolicyOf({.preset = "f32"}), "cost", shaped::WantedOf(world, "cost"));
}

Milliseconds TimeOf(const NumericalProgram& numerical) {
  const Milliseconds begin = ThreadTime();
  const Plan plan = PlacedPlan(numerical, kAll);
  EXPECT_FALSE(plan.step.statements.empty());
  return ThreadTime() - begin;
}

// A square would be 64. n log n is about 10; memory that a larger world needs, beside other work
// on the machine, makes it up to 20.
constexpr double kMostGrowth = 32;

TEST_P(PlanningCost, OfEightTimesTheSizeIsAboutEightTimes) {
  if (kSanitized) GTEST_SKIP() << "processor time is not that of a build with sanitizers";
  const Shape& shape = GetParam();
  const NumericalProgram small = Gradient(shape.make(shape.size));
  const NumericalProgram large = Gradient(shape.make(8 * shape.size));
  // The least of some attempts: what other work on the machine adds is not counted.
  Milliseconds of_small = Milliseconds::max(), of_large = Milliseconds::max();
  for (int attempt = 0; attempt < 10; ++attempt) {
    for (int k = 0; k < 3; ++k) of_small = std::min(of_small, TimeOf(small));
    of_large = std::min(of_large, TimeOf(large));
    if (of_large < kMostGrowth * of_small) break;
  }
  RecordProperty("small_ms", std::to_string(of_small.count()));
  RecordProperty("large_ms", std::to_string(of_large.count()));
  EXPECT_LT(of_large.count(), kMostGrowth * of_small.count());
}

INSTANTIATE_TEST_SUITE_P(Shapes, PlanningCost,
                         testing::Values(Shape{"loops_and_events", shaped::LoopsAndEvents, 100},
                                         Shape{"shifted_for", shaped::ShiftedFor, 500},
                                         Shape{"shifted_while", shaped::ShiftedWhile, 500},
                                         Shape{"shifted_states", shaped::ShiftedStates, 500},
                                         Shape{"exports", shaped::Exports, 500},
                                         Shape{"wide_concat", shaped::WideConcat, 1000},
                                         Shape{"casts", shaped::Casts, 500},
                                         Shape{"captures", shaped::Captures, 500},
                                         Shape{"halting_chain", shaped::HaltingChain, 500},
                                         Shape{"objective_reads", shaped::ObjectiveReads, 500}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace simgrad::sim::plan
