// Casts from f32 to f16 and bf16, which machine code does by conversions of the processor where it has them: the
// bits of the reference, whose casts rounding_test proves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "precision/format.h"
#include "sim/backend/compiled/compiled_executor.h"
#include "sim/program/builder.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using precision::Format;
using precision::Overflow;
using sim::compiled::Effort;
using sim::compiled::KernelOptions;
using sim::compiled::Mapping;

constexpr int64_t kElements = 64;

// Each state is a cast of x / y or of its negative: to f16 and to bf16, with overflow to infinity and to the
// largest number.
sim::Program World() {
  sim::Builder b("casts");
  const sim::Var x = b.State("x", {kElements});
  const sim::Var y = b.State("y", {kElements});
  const sim::Var ratio = x / y;
  std::vector<sim::Var> next = {x, y};
  for (const Format format : {Format::kF16, Format::kBf16}) {
    for (const Overflow overflow : {Overflow::kIeee, Overflow::kSaturate}) {
      for (const sim::Var& value : {ratio, -ratio}) {
        b.State("cast" + std::to_string(next.size()), {kElements});
        next.push_back(b.Cast(value, format, overflow));
      }
    }
  }
  b.SetNext(next);
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  return *world;
}

// The values of each format, the middles between neighbours, what lies beside both, and others of every exponent.
std::vector<double> Numbers() {
  std::vector<double> all;
  const auto meet = [&](float x) {
    if (std::isfinite(x)) all.insert(all.end(), {x, -x});
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Format format : {Format::kF16, Format::kBf16}) {
    // Under sanitizers every 61st.
    for (uint64_t code = 0; code < 0x7FFF; code += kSanitized ? 61 : 1) {
      const auto value = static_cast<float>(precision::Decode(format, code));
      const auto next = static_cast<float>(precision::Decode(format, code + 1));
      const float middle = value + (next - value) / 2;
      for (const float x : {value, middle}) {
        for (const float near : {x, std::nextafter(x, kInf), std::nextafter(x, -kInf)}) meet(near);
      }
    }
  }
  for (const float last : {65520.0f, 0x1.FFp127f}) {
    for (const float x : {last, std::nextafter(last, kInf), std::nextafter(last, 0.0f)}) meet(x);
  }
  std::mt19937 random(16);
  for (int i = 0; i < (kSanitized ? 1000 : 100'000); ++i) {
    meet(precision::FloatOf(static_cast<uint32_t>(random())));
  }
  while (all.size() % kElements != 0) all.push_back(0);
  for (int64_t i = 0; i < kElements; ++i) all.push_back(static_cast<double>(i % 3 - 1));
  return all;
}

TEST(SixteenBits, AreTheBitsOfTheReferenceForEveryValueAndBesideIt) {
  precision::PolicySpec spec;
  spec.nonfinite = precision::NonFinite::kReport;
  auto program = LowerForGradient(World(), PolicyOf(spec), "");
  ASSERT_TRUE(program.ok()) << program.status();
  const std::vector<double> numbers = Numbers();
  const auto instances = static_cast<int64_t>(numbers.size()) / kElements;
  sim::Work work;
  work.batch.program = std::make_shared<const sim::NumericalProgram>(*std::move(program));
  work.batch.instances = instances;
  work.batch.steps = 1;
  for (int64_t i = 0; i < instances; ++i) {
    work.batch.instance_ids.push_back(static_cast<uint64_t>(i));
  }
  const auto& inputs = work.batch.program->program.inputs;
  work.batch.inputs.resize(inputs.size());
  // Infinities and NaNs are born in the last instance.
  std::vector<double> ones(numbers.size(), 1.0);
  std::fill(ones.end() - kElements, ones.end(), 0.0);
  const sim::Tensor zeros = Doubles(std::vector<double>(kElements, 0.0), {kElements});
  for (const sim::Input& input : inputs) {
    Bind(work, sim::InputKind::kState, input.name, {zeros, false, false});
  }
  Bind(work, sim::InputKind::kState, "x", {Doubles(numbers, {instances, kElements}), true, false});
  Bind(work, sim::InputKind::kState, "y", {Doubles(ones, {instances, kElements}), true, false});
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const auto isa : sim::compiled::IsasOfThisMachine()) {
    for (const Effort effort : {Effort::kQuick, Effort::kBest}) {
      for (const Mapping mapping : {Mapping::kLanes, Mapping::kElements}) {
        const KernelOptions options = {.isa = isa, .effort = effort, .mapping = mapping};
        const auto actual =
            sim::equality::Observe(sim::compiled::MakeCompiledExecutor(options), work);
        ASSERT_TRUE(actual.ok()) << actual.status();
        EXPECT_EQ(sim::equality::FirstDifference(*expected, *actual).value_or(""), "")
            << IsaName(isa) << (effort == Effort::kBest ? " best" : " quick")
            << (mapping == Mapping::kElements ? " elements" : " lanes");
      }
    }
  }
}

}  // namespace
}  // namespace simgrad::tests
