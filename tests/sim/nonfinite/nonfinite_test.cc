// A thousand planted non-finite values: every certificate against the witness and against the place
// known by construction. The executor that compiles each of them runs every fifth; under
// SIMGRAD_LONG=1 all.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "tests/environment.h"
#include "tests/sanitized.h"
#include "tests/sim/nonfinite/trial.h"

namespace simgrad::nonfinite {
namespace {

constexpr uint64_t kSeed = 20240607;
constexpr int kForward = 420;
constexpr int kInput = 80;
constexpr int kAdjoint = 500;

// An executor runs every so many of them. Kinds follow the number, so that each is met: those of the
// forward run by its remainders by 2 and 3, those of the adjoint in turn.
int StrideOf(const std::string& executor) {
  if (IsLong()) return 1;
  constexpr int kOfReference = kSanitized ? 35 : 1, kOfCompiled = kSanitized ? 35 : 5;
  return executor == "reference" ? kOfReference : kOfCompiled;
}

Planted PlantOf(int number) {
  Random random(kSeed + static_cast<uint64_t>(number));
  if (number < kForward) return PlantForward(random, number);
  if (number < kForward + kInput) return PlantInput(random, number - kForward);
  return PlantAdjoint(random, number - kForward - kInput);
}

bool IsWherePlanted(const Planted& planted, const sim::BirthCertificate& birth) {
  return birth.phase == planted.phase && birth.step == planted.step &&
         birth.operation == planted.operation && birth.label == planted.label &&
         birth.element == planted.element && birth.iteration == planted.iteration &&
         birth.non_finite_class == planted.non_finite_class;
}

struct Counts {
  int planted = 0, finite_inputs = 0, adjoint = 0, vanished = 0, in_loops = 0, stopped = 0;
  std::map<std::string, int> phases, classes, kinds, formats, roles;
};

void Count(const Planted& planted, const Testimony& testimony, Counts& counts) {
  ++counts.planted;
  counts.finite_inputs += planted.finite_inputs;
  counts.adjoint += planted.phase == sim::Phase::kAdjoint;
  counts.in_loops += !testimony.birth.site.empty() || testimony.birth.iteration > 0;
  counts.stopped += planted.policy.nonfinite == precision::NonFinite::kStop;
  bool finite = planted.phase == sim::Phase::kForward &&
                planted.policy.nonfinite == precision::NonFinite::kReport;
  for (const auto& state : testimony.states) {
    for (double x : state) finite = finite && std::isfinite(x);
  }
  counts.vanished += finite;
  ++counts.phases[std::string(sim::PhaseName(planted.phase))];
  ++counts.classes[std::string(sim::NonFiniteClassName(planted.non_finite_class))];
  ++counts.kinds[std::string(sim::PhaseName(planted.phase)) + ": " + planted.kind];
  ++counts.formats[std::string(precision::FormatName(testimony.birth.format))];
  ++counts.roles[std::string(precision::RoleName(testimony.birth.role))];
}

void Print(const char* title, const std::map<std::string, int>& counts) {
  std::printf("%s:", title);
  for (const auto& [name, count] : counts) std::printf(" %s %d;", name.c_str(), count);
  std::printf("\n");
}

void RunCase(int number, const sim::Engine& engine, Counts& counts) {
  const Planted planted = PlantOf(number);
  SCOPED_TRACE("case " + std::to_string(number) + ": " + planted.kind + ", " +
               planted.policy.preset);
  const std::vector<Testimony> testimonies = TestimoniesOf(planted);
  const Testimony& failing = testimonies[static_cast<size_t>(planted.row)];
  ASSERT_FALSE(failing.ok);
  ASSERT_TRUE(IsWherePlanted(planted, failing.birth))
      << "witness: " << Text(failing.birth) << "\nplanted: " << planted.operation << " '"
      << planted.label << "' step " << planted.step << " element " << planted.element
      << " iteration " << planted.iteration << " "
      << sim::NonFiniteClassName(planted.non_finite_class);
  Random random(kSeed ^ static_cast<uint64_t>(number));
  ExpectAsTheWitnessSays(planted, testimonies, engine, random);
  Count(planted, failing, counts);
}

class PlantedNonFinite : public testing::TestWithParam<ExecutorCase> {};

TEST_P(PlantedNonFinite, ThousandValuesGetTheCertificateOfTheirBirth) {
  const sim::Engine engine(GetParam().make());
  Counts counts;
  const int stride = StrideOf(GetParam().name);
  for (int number = 0; number < kForward + kInput + kAdjoint; number += stride) {
    RunCase(number, engine, counts);
  }
  std::printf("planted %d, finite inputs %d, adjoint %d, vanished %d, in loops %d, stop %d\n",
              counts.planted, counts.finite_inputs, counts.adjoint, counts.vanished,
              counts.in_loops, counts.stopped);
  Print("phases", counts.phases);
  Print("classes", counts.classes);
  Print("formats", counts.formats);
  Print("roles", counts.roles);
  Print("kinds", counts.kinds);
  EXPECT_EQ(counts.planted, (999 + stride) / stride);
  EXPECT_GE(counts.finite_inputs, 800 / stride);
  EXPECT_GE(counts.adjoint, 500 / stride);
  EXPECT_GE(counts.vanished, 100 / stride);
  EXPECT_GE(counts.in_loops, 300 / stride);
  EXPECT_EQ(counts.classes.size(), 5u);
  EXPECT_EQ(counts.phases.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Executors, PlantedNonFinite, testing::ValuesIn(TestedExecutors()),
                         [](const auto& made) { return made.param.name; });

}  // namespace
}  // namespace simgrad::nonfinite
