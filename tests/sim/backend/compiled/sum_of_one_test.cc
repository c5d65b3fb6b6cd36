// Sums of one number, which plans write without a rounding: the bits of the reference in every order, format and
// accumulator, of zeros of both signs, subnormal numbers, infinities and NaNs too.
#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "precision/format.h"
#include "precision/policy.h"
#include "sim/backend/compiled/compiled_executor.h"
#include "sim/program/builder.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using precision::Format;
using sim::compiled::KernelOptions;

// What division makes of these pairs: numbers of f16 and bf16 and others, and every special value.
const std::vector<double> kAbove = {1.0, -1.0, 0.0, -0.0, 1.0, -1.0, 0.0, 0x1p-24, -0x1p-133, 3.0};
const std::vector<double> kBelow = {1.0, 3.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 7.0};

// Roles that have accumulators of their own.
constexpr std::pair<sim::Role, const char*> kRoles[] = {{sim::Role::kDynamics, "dynamics"},
                                                        {sim::Role::kSolver, "solver"},
                                                        {sim::Role::kNetwork, "network"},
                                                        {sim::Role::kEvent, "event"}};
constexpr Format kFormats[] = {Format::kF64, Format::kF32, Format::kF16, Format::kBf16};

// In each role every row of a matrix of one column is summed, and a -0 by itself.
sim::Program World() {
  sim::Builder b("sums");
  const auto count = static_cast<int64_t>(kAbove.size());
  const sim::Var x = b.State("x", {count, 1});
  const sim::Var y = b.State("y", {count, 1});
  std::vector<sim::Var> next = {x, y};
  for (const auto& [role, name] : kRoles) {
    b.State(std::string("rows_") + name, {count});
    b.State(std::string("one_") + name, {});
    const sim::RoleScope scope(b, role);
    const sim::Var ratio = x / y;
    const sim::Var one = b.Reshape(b.Slice(ratio, {3, 0}, {1, 1}), {1});
    next.push_back(b.Reduce(sim::OpCode::kSum, ratio, {1}));
    next.push_back(b.Reduce(sim::OpCode::kSum, one));
  }
  b.SetNext(next);
  auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  return *world;
}

sim::Work WorkOf(const precision::PolicySpec& spec) {
  sim::Work work;
  work.batch.program =
      std::make_shared<const sim::NumericalProgram>(*LowerForGradient(World(), PolicyOf(spec), ""));
  work.batch.instances = 1;
  work.batch.steps = 1;
  work.batch.instance_ids = {0};
  work.batch.inputs.resize(work.batch.program->program.inputs.size());
  const auto count = static_cast<int64_t>(kAbove.size());
  const auto bind = [&](const char* name, sim::Tensor tensor) {
    Bind(work, sim::InputKind::kState, name, {std::move(tensor), false, false});
  };
  bind("x", Doubles(kAbove, {count, 1}));
  bind("y", Doubles(kBelow, {count, 1}));
  for (const auto& [role, name] : kRoles) {
    bind((std::string("rows_") + name).c_str(),
         Doubles(std::vector<double>(kAbove.size(), 0.0), {count}));
    bind((std::string("one_") + name).c_str(), Doubles({0.0}, {}));
  }
  return work;
}

// Where a sum of one number of `format` differs, with all four accumulators; empty: nowhere.
std::string Difference(const std::string& order, Format format, precision::Overflow overflow) {
  precision::PolicySpec spec;
  for (size_t k = 0; k < std::size(kRoles); ++k) {
    precision::RoleOverride role;
    role.format = format;
    role.accumulator = kFormats[k];
    role.overflow = overflow;
    role.order = precision::SumOrderFromText(order.starts_with("shuffled") ? "shuffled(7)" : order);
    spec.roles.emplace_back(kRoles[k].second, role);
  }
  const sim::Work work = WorkOf(spec);
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  const auto actual =
      sim::equality::Observe(sim::compiled::MakeCompiledExecutor(KernelOptions{}), work);
  if (!expected.ok()) return expected.status().ToString();
  if (!actual.ok()) return actual.status().ToString();
  return sim::equality::FirstDifference(*expected, *actual).value_or("");
}

TEST(SumOfOne, IsThatOfTheReferenceInEveryOrderFormatAndAccumulator) {
  using enum precision::Overflow;
  for (const std::string& order : precision::SumOrderNames()) {
    for (const Format format : kFormats) {
      if (kSanitized && format != Format::kF16) continue;
      EXPECT_EQ(Difference(order, format, kIeee), "") << order << " " << FormatName(format);
    }
    for (const Format format : {Format::kF16, Format::kBf16}) {
      if (kSanitized && format != Format::kBf16) continue;
      EXPECT_EQ(Difference(order, format, kSaturate), "") << order << " " << FormatName(format);
    }
  }
}

}  // namespace
}  // namespace simgrad::tests
