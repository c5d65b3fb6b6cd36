#include "tests/sim/nonfinite/trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "sim/backend/reference/reference_executor.h"
#include "sim/program/lower.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/work_maker.h"

namespace simgrad::nonfinite {
namespace {

bool SameNumber(double a, double b) { return a == b || (a != a && b != b); }

bool SameNumbers(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameNumber);
}

std::string Text(const std::vector<double>& numbers) {
  std::string text;
  for (double x : numbers) text += (text.empty() ? "" : ", ") + testing::PrintToString(x);
  return text;
}

sim::Binding Bound(const Planted& planted, int input, const sim::Shape& shape) {
  std::vector<double> all;
  for (const Sent& sent : planted.sent) {
    for (const auto& row : sent.input[input]) all.insert(all.end(), row.begin(), row.end());
  }
  const bool varies = input == kC || input == kTrigger || input == kWeight;
  sim::Shape full = {static_cast<int64_t>(planted.sent.size())};
  if (varies) full.push_back(planted.steps);
  full.insert(full.end(), shape.begin(), shape.end());
  return {tests::Doubles(all, full), true, varies};
}

sim::NumericalProgram Lowered(const Planted& planted) {
  const sim::Program world = ToProgram(planted.recipe);
  const precision::Policy policy = tests::PolicyOf(planted.policy);
  const bool objective = !world.objectives.empty();
  if (!planted.gradient) {
    return *sim::Lower(world, policy, objective ? "cost" : "", std::nullopt);
  }
  sim::AdjointSpec spec;
  spec.objective = objective ? "cost" : "";
  for (const sim::Input& input : world.inputs) {
    spec.wanted.push_back(sim::IsDifferentiable(world, input));
  }
  if (planted.recipe.sends_final) spec.final_state = {false, false, true};
  if (planted.recipe.sends_trajectory) spec.trajectory_state = {false, false, true};
  absl::StatusOr<sim::NumericalProgram> program = sim::Lower(world, policy, spec.objective, spec);
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

}  // namespace

std::string Text(const sim::BirthCertificate& birth) {
  return std::string(sim::PhaseName(birth.phase)) + " step " + std::to_string(birth.step) + " " +
         birth.operation + " '" + birth.label + "' site '" + birth.site + "' role " +
         std::string(precision::RoleName(birth.role)) + " " +
         std::string(precision::FormatName(birth.format)) + " element " +
         std::to_string(birth.element) + " iteration " + std::to_string(birth.iteration) + " (" +
         Text(birth.operands) + ") = " + testing::PrintToString(birth.result) + " " +
         std::string(sim::NonFiniteClassName(birth.non_finite_class));
}

bool Same(const sim::BirthCertificate& a, const sim::BirthCertificate& b) {
  return a.phase == b.phase && a.step == b.step && a.operation == b.operation &&
         a.label == b.label && a.site == b.site && a.role == b.role && a.format == b.format &&
         a.element == b.element && a.iteration == b.iteration &&
         a.non_finite_class == b.non_finite_class && SameNumber(a.result, b.result) &&
         SameNumbers(a.operands, b.operands);
}

sim::Work WorkOf(const Planted& planted, Random& random) {
  const int64_t instances = static_cast<int64_t>(planted.sent.size());
  sim::Work work = tests::WorkOf(Lowered(planted), instances, planted.steps);
  for (int64_t i = 0; i < instances; ++i) {
    work.batch.instance_ids[static_cast<size_t>(i)] =
        static_cast<uint64_t>(random.Integer(0, 1000) * 1000 + i);
  }
  const sim::Shape n = {planted.recipe.n};
  static const std::pair<sim::InputKind, const char*> names[kInputs] = {
      {sim::InputKind::kState, "x"},       {sim::InputKind::kState, "w"},
      {sim::InputKind::kState, "z"},       {sim::InputKind::kParam, "k"},
      {sim::InputKind::kControl, "c"},     {sim::InputKind::kData, "trigger"},
      {sim::InputKind::kData, "weight"},   {sim::InputKind::kData, "limit"},
      {sim::InputKind::kData, "limit_all"}};
  for (int input = 0; input < kInputs; ++input) {
    tests::Bind(work, names[input].first, names[input].second,
                Bound(planted, input, input == kLimitAll ? sim::Shape{} : n));
  }
  sim::Cotangents& cotangents = work.batch.cotangents;
  if (planted.recipe.sends_final) cotangents.final_state.resize(3);
  if (planted.recipe.sends_trajectory) cotangents.trajectory_state.resize(3);
  for (const Sent& sent : planted.sent) {
    for (const auto& row : sent.final_cotangent) {
      auto& all = cotangents.final_state[2];
      all.insert(all.end(), row.begin(), row.end());
    }
    for (const auto& row : sent.trajectory_cotangent) {
      auto& all = cotangents.trajectory_state[2];
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  work.chunk_steps = random.Integer(0, 2);
  work.checkpoint_interval = random.Integer(0, 2);
  work.options.recording =
      random.Chance(0.5) ? sim::Recording::kSummary : sim::Recording::kInstances;
  return work;
}

const sim::BirthCertificate* CertificateOf(const sim::WorkResult& result, uint64_t id) {
  for (const sim::BirthCertificate& birth : result.certificates) {
    if (birth.instance_id == id) return &birth;
  }
  return nullptr;
}

void ExpectTestimony(const Planted& planted, const sim::Work& work, const sim::WorkResult& result,
                     size_t row, const Testimony& testimony) {
  const sim::InstanceHealth& health = result.health[row];
  const auto* birth = CertificateOf(result, work.batch.instance_ids[row]);
  ASSERT_EQ(health.ok, testimony.ok)
      << "witness: " << (testimony.ok ? "ok" : Text(testimony.birth))
      << "\ncertificate: " << (birth == nullptr ? "none" : Text(*birth));
  for (size_t state = 0; planted.exact_states && state < 3; ++state) {
    for (size_t e = 0; e < testimony.states[state].size(); ++e) {
      const int64_t at = static_cast<int64_t>(row * testimony.states[state].size() + e);
      EXPECT_TRUE(SameNumber(result.final_states[state].Get(at), testimony.states[state][e]))
          << "state " << state << " element " << e << ": " << result.final_states[state].Get(at)
          << ", witness " << testimony.states[state][e];
    }
  }
  if (testimony.ok) {
    EXPECT_EQ(birth, nullptr) << Text(*birth);
    return;
  }
  EXPECT_EQ(health.phase, testimony.birth.phase);
  EXPECT_EQ(health.step, testimony.birth.step);
  ASSERT_NE(birth, nullptr) << "witness: " << Text(testimony.birth);
  EXPECT_TRUE(Same(*birth, testimony.birth))
      << "certificate: " << Text(*birth) << "\nwitness:     " << Text(testimony.birth);
}

std::vector<Testimony> TestimoniesOf(const Planted& planted) {
  const precision::Policy policy = tests::PolicyOf(planted.policy);
  std::vector<Testimony> testimonies;
  for (const Sent& sent : planted.sent) {
    Witness witness(planted.recipe, policy, sent, planted.steps);
    testimonies.push_back(witness.Testify(planted.gradient));
  }
  return testimonies;
}

void ExpectAsTheWitnessSays(const Planted& planted, const std::vector<Testimony>& testimonies,
                            const sim::Engine& engine, Random& random) {
  const sim::Work work = WorkOf(planted, random);
  sim::Observer observer;
  const absl::StatusOr<sim::WorkResult> result = engine.Execute(work, observer);
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t row = 0; row < testimonies.size(); ++row) {
    SCOPED_TRACE("instance " + std::to_string(row));
    ExpectTestimony(planted, work, *result, row, testimonies[row]);
  }
}

std::vector<ExecutorCase> TestedExecutors() {
  return {{"reference", [] { return sim::MakeReferenceExecutor(); }},
          {"cpu", [] { return sim::MakeCpuExecutor(); }}};
}

}  // namespace simgrad::nonfinite
