// What is computed and belongs to nobody is not reported: lanes that left a loop, and cotangents of
// branches that were not taken. And of many births the first sixteen rows get a certificate.
#include <gtest/gtest.h>

#include <limits>

#include "tests/sanitized.h"
#include "tests/sim/nonfinite/trial.h"

namespace simgrad::nonfinite {
namespace {

constexpr int kCases = kSanitized ? 8 : 40;

class HiddenNonFinite : public testing::TestWithParam<ExecutorCase> {};

std::string PresetOf(int number) {
  static const std::vector<std::string> presets = {"f32", "f16_unsafe", "bf16_unsafe", "f64"};
  return presets[static_cast<size_t>(number) % presets.size()];
}

// More instances, so that the lanes of a vector are full of neighbours.
void Crowd(Plot& plot, size_t more) {
  const Sent last = plot.planted.sent.back();
  plot.planted.sent.insert(plot.planted.sent.end(), more, last);
}

// The value 0 for the failing element in one iteration, at least one half elsewhere; active.
int Zero(Plot& plot, int u, int a) {
  Script& s = plot.script;
  return s.Do("mul", {u, s.Do("add", {s.Literal(0.5), s.Do("abs", {a})})});
}

// Each case: 1 / u and sqrt at 0 in an iteration that the failing instance does not reach.
Planted InTheIterationAfterTheLast(int number) {
  Random random(500 + static_cast<uint64_t>(number));
  Plot plot(random, PresetOf(number), 1);
  static const std::vector<Where> loops = {Where::kWhile, Where::kForWhile, Where::kWhileFor,
                                           Where::kPerElement, Where::kPerElementFor};
  plot.where = loops[static_cast<size_t>(number) % loops.size()];
  Crowd(plot, 17);
  Script& s = plot.script;
  const int a = plot.Filler();
  const int z = plot.Sow(a, kZ, [&](int u, int now) {
    const int inverse = s.Do("div", {now, u});
    return s.Do("add", {inverse, s.Do("sqrt", {Zero(plot, u, now)})});
  });
  plot.Fire(plot.planted.step);
  plot.LeaveBefore();
  plot.Close(a, z);
  plot.planted.gradient = true;
  plot.planted.exact_states = plot.base() != Format::kF64;
  return plot.planted;
}

TEST_P(HiddenNonFinite, LanesThatLeftALoopAreNotReported) {
  const sim::Engine engine(GetParam().make());
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE(number);
    const Planted planted = InTheIterationAfterTheLast(number);
    const std::vector<Testimony> testimonies = TestimoniesOf(planted);
    for (const Testimony& testimony : testimonies) ASSERT_TRUE(testimony.ok);
    Random random(static_cast<uint64_t>(number));
    ExpectAsTheWitnessSays(planted, testimonies, engine, random);
  }
}

// The cotangent of sqrt at 0 would be g / 0; `how` says what keeps it away.
int NotTaken(Plot& plot, int how, int u, int a) {
  Script& s = plot.script;
  const int root = s.Do("sqrt", {Zero(plot, u, a)});
  const int half = s.Literal(0.5);
  const int quarter = s.Literal(0.25);
  switch (how) {
    case 0:
      return s.Select(s.Event("dead", u, "gt", half), root, a);
    case 1:
      return s.Do("max", {root, quarter});
    case 2:
      return s.Do("neg", {s.Do("min", {s.Do("neg", {root}), s.Do("neg", {quarter})})});
    default: {
      // Two masks, one inside the other.
      const int inner = s.Do("max", {root, s.Do("abs", {a})});
      return s.Select(s.Event("dead", u, "gt", half), inner, quarter);
    }
  }
}

// Neither the witness nor the executor reports anything of a gradient through what `plant` gives.
void ExpectNothing(Plot& plot, const sim::Engine& engine, Random& random, const Plot::Emit& plant) {
  Crowd(plot, 17);
  const int a = plot.Filler();
  const int z = plot.Sow(a, kZ, plant);
  plot.Fire(plot.planted.step);
  plot.Close(a, z);
  plot.planted.gradient = true;
  const std::vector<Testimony> testimonies = TestimoniesOf(plot.planted);
  for (const Testimony& testimony : testimonies) ASSERT_TRUE(testimony.ok);
  ExpectAsTheWitnessSays(plot.planted, testimonies, engine, random);
}

TEST_P(HiddenNonFinite, CotangentsOfBranchesNotTakenAreNotReported) {
  const sim::Engine engine(GetParam().make());
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE(number);
    Random random(900 + static_cast<uint64_t>(number));
    Plot plot(random, PresetOf(number), 1);
    plot.where = static_cast<Where>(number % kWheres);
    ExpectNothing(plot, engine, random,
                  [&](int u, int now) { return NotTaken(plot, number % 4, u, now); });
  }
}

// A factor that the format of tapes cannot hold; `how` says what keeps its reader away.
int NotRead(Plot& plot, int how, double height, int u, int a) {
  Script& s = plot.script;
  const int half = s.Literal(0.5);
  const int quarter = s.Literal(0.25);
  const int factor = s.Do("add", {s.Literal(0.5), s.Do("abs", {a})});
  const int product = s.Do("mul", {factor, plot.Pulse(u, height)});
  switch (how) {
    case 0:
      return s.Select(s.Event("dead", u, "lt", half), quarter, product);
    case 1:
      return s.Do("min", {s.Do("add", {product, plot.Positive(u)}), quarter});
    default: {
      const int inner = s.Do("max", {product, s.Do("abs", {a})});
      return s.Select(s.Event("dead", u, "lt", half), quarter, inner);
    }
  }
}

TEST_P(HiddenNonFinite, TapesThatNoExecutedOperationReadsAreNotReported) {
  const sim::Engine engine(GetParam().make());
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE(number);
    Random random(1300 + static_cast<uint64_t>(number));
    Plot plot(random, "f32", 1);
    const bool is_f16 = number % 2 == 0;
    plot.SetRole("tape", is_f16 ? Format::kF16 : Format::kE4m3);
    plot.where = static_cast<Where>(number % kWheres);
    ExpectNothing(plot, engine, random, [&](int u, int now) {
      return NotRead(plot, number % 3, is_f16 ? 1e5 : 1000.0, u, now);
    });
  }
}

// Rows fail in the input, forward at any step, in the adjoint, or not at all.
Planted ManyBirths(uint64_t seed) {
  Random random(seed);
  Plot plot(random, "f32", 2);
  plot.where = static_cast<Where>(random.Integer(0, kWheres - 1));
  Script& s = plot.script;
  Crowd(plot, 40);
  const int a = plot.Filler();
  const int x = plot.Sow(a, kW, [&](int u, int now) { return s.Do("div", {now, u}); });
  plot.Close(plot.Bounded(x), s.Do("add", {kZ, s.Do("mul", {a, s.Literal(4.0)})}));
  Planted& planted = plot.planted;
  planted.gradient = true;
  for (size_t row = 0; row < planted.sent.size(); ++row) {
    planted.row = static_cast<int64_t>(row);
    const int64_t t = random.Integer(0, planted.steps - 1);
    switch (random.Integer(0, 3)) {
      case 0:
        plot.Fire(t);
        break;
      case 1:
        plot.At(kC, t) = std::numeric_limits<double>::infinity();
        break;
      // Times 4 it overflows.
      case 2:
        plot.At(kWeight, planted.steps - 1) = 0x1.8p127;
        break;
      default:
        break;
    }
  }
  return planted;
}

TEST_P(HiddenNonFinite, FirstRowsGetTheCertificatesInTheirOrder) {
  const sim::Engine engine(GetParam().make());
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const Planted planted = ManyBirths(seed);
    const std::vector<Testimony> testimonies = TestimoniesOf(planted);
    Random random(seed);
    sim::Work work = WorkOf(planted, random);
    const size_t limit = seed % 3 == 0 ? 5 : 16;
    if (limit != 16) work.max_certificates = static_cast<int32_t>(limit);
    sim::Observer observer;
    const absl::StatusOr<sim::WorkResult> result = engine.Execute(work, observer);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->certificates.size(), limit);
    size_t next = 0;
    for (size_t row = 0; row < testimonies.size(); ++row) {
      EXPECT_EQ(result->health[row].ok, testimonies[row].ok) << row;
      if (testimonies[row].ok || next == limit) continue;
      const sim::BirthCertificate& birth = result->certificates[next++];
      EXPECT_EQ(birth.instance_id, work.batch.instance_ids[row]);
      EXPECT_TRUE(Same(birth, testimonies[row].birth))
          << "certificate: " << Text(birth) << "\nwitness:     " << Text(testimonies[row].birth);
    }
    EXPECT_EQ(next, limit);
  }
}

INSTANTIATE_TEST_SUITE_P(Executors, HiddenNonFinite, testing::ValuesIn(TestedExecutors()),
                         [](const auto& made) { return made.param.name; });

}  // namespace
}  // namespace simgrad::nonfinite
