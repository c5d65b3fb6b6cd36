// The demos of docs/numerics.md section 10, to the bit. Values and their derivation: the field
// "source" of tests/data/essay_demos.json.
#include <gtest/gtest.h>

#include <bit>
#include <cinttypes>

#include "precision/hash.h"
#include "tests/sim/json.h"
#include "tests/sim/work_maker.h"
#include "tests/source_tree.h"

namespace simgrad {
namespace {

using sim::InputKind;
using tests::Json;

const Json& Demos() {
  static const Json* const demos =
      new Json(tests::ReadJsonFile(tests::TestData("essay_demos.json")));
  return *demos;
}

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const Json& item : Demos()["cases"].items) names.push_back(item["name"].text);
  return names;
}

const Json& CaseOf(const std::string& name) {
  for (const Json& item : Demos()["cases"].items) {
    if (item["name"].text == name) return item;
  }
  return Demos()["cases"].items.at(0);
}

// What the observer keeps: the per-instance record of the one site, and the exported penetration.
class Keeper : public sim::Observer {
 public:
  void OnForward(const sim::ForwardChunk& chunk) override {
    const sim::InstanceSite& site = chunk.instance_sites.at(0);
    for (size_t t = 0; t < site.iterations.size(); ++t) {
      iterations.push_back(site.iterations[t]);
      reasons.push_back(site.reasons[t]);
      counts.push_back(site.value_counts[t]);
    }
    values.insert(values.end(), site.values[0].begin(), site.values[0].end());
    penetration = chunk.exports.at(0);
  }
  std::vector<double> iterations;
  std::vector<uint8_t> reasons;
  std::vector<uint32_t> counts;
  std::vector<double> values;
  sim::Tensor penetration;
};

precision::Policy PolicyOf(const Json& item, const std::string& order, double loss_scale) {
  const std::string low = item["policy"]["all_other_roles"].text;
  const Json& termination = item["policy"]["termination"];
  precision::PolicySpec spec;
  spec.preset = low == "f32" ? "f32" : low + "_unsafe";
  spec.loss_scale = loss_scale;
  for (int r = 0; r < precision::kRoleCount; ++r) {
    const auto role = static_cast<precision::Role>(r);
    precision::RoleOverride change;
    change.order = precision::OrderFromName(order);
    if (role == precision::Role::kTermination) {
      change.format = precision::FormatFromName(termination["format"].text);
      change.order = precision::OrderFromName(termination["order"].text);
    }
    spec.roles.emplace_back(std::string(precision::RoleName(role)), change);
  }
  return tests::PolicyOf(spec);
}

sim::Work DemoWork(const Json& item, const std::string& order, double loss_scale) {
  const sim::Config config = {{"elements", item["elements"].Number()},
                              {"tol", item["tol"].Hex()},
                              {"max_iter", item["max_iter"].Number()}};
  const auto world = sim::BuildWorld(item["world"].text, config);
  EXPECT_TRUE(world.ok()) << world.status();
  auto program =
      tests::LowerForGradient(*world, PolicyOf(item, order, loss_scale), "final_penetration");
  EXPECT_TRUE(program.ok()) << program.status();
  const int64_t steps = static_cast<int64_t>(item["steps"].Number());
  sim::Work work = tests::WorkOf(*std::move(program), 1, steps);
  const int64_t elements = static_cast<int64_t>(item["elements"].Number());
  tests::Bind(work, InputKind::kState, "y", tests::Shared(item["y0"].Numbers(), {elements}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({item["k"].Number()}, {}));
  tests::Bind(work, InputKind::kParam, "alpha", tests::Shared({item["alpha"].Number()}, {}));
  work.options.record_exports = {0};
  return work;
}

const sim::InputGradient& GradientOfK(const sim::WorkResult& result, const sim::Work& work) {
  const int32_t k = tests::IndexOf(work.batch.program->program, InputKind::kParam, "k");
  for (const sim::InputGradient& gradient : result.gradients) {
    if (gradient.input == k) return gradient;
  }
  return result.gradients.at(0);
}

class EssayDemo : public ::testing::TestWithParam<std::string> {};

TEST_P(EssayDemo, StatesIterationsSumsAndValueAreExact) {
  const Json& item = CaseOf(GetParam());
  const Json& expected = item["expect"];
  for (const std::string order : {"sequential", "pairwise"}) {
    const sim::Work work = DemoWork(item, order, 1.0);
    Keeper keeper;
    const auto result = tests::Execute(work, keeper);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(keeper.iterations, expected["iterations"].Numbers());
    size_t at = 0;
    for (size_t t = 0; t < expected["sums"].items.size(); ++t) {
      const std::vector<double> sums = expected["sums"].items[t].Numbers();
      ASSERT_EQ(keeper.counts[t], sums.size()) << "step " << t;
      for (double sum : sums) EXPECT_EQ(keeper.values.at(at++), sum) << "step " << t;
    }
    const std::vector<double> y = expected["y_final"].Numbers();
    const std::vector<double> p = expected["p_last"].Numbers();
    const int64_t last =
        static_cast<int64_t>(keeper.penetration.count()) - static_cast<int64_t>(p.size());
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(result->final_states[0].Get(static_cast<int64_t>(i)), y[i]) << "element " << i;
      EXPECT_EQ(keeper.penetration.Get(last + static_cast<int64_t>(i)), p[i]) << "element " << i;
    }
    if (expected.Has("value")) {
      EXPECT_EQ(result->value, expected["value"][order].Hex()) << order;
    }
    if (expected.Has("reasons")) {
      for (size_t t = 0; t < keeper.reasons.size(); ++t) {
        EXPECT_EQ(sim::StopReasonName(static_cast<sim::StopReason>(keeper.reasons[t])),
                  expected["reasons"].items[t].text);
      }
    }
  }
}

TEST_P(EssayDemo, GradientOfKIsExactAndConnectedAsThePathSays) {
  const Json& item = CaseOf(GetParam());
  const Json& expected = item["expect"];
  sim::Observer nobody;
  const sim::Work work = DemoWork(item, "sequential", 1.0);
  const auto result = tests::Execute(work, nobody);
  ASSERT_TRUE(result.ok()) << result.status();
  const sim::InputGradient& k = GradientOfK(*result, work);
  EXPECT_EQ(k.connected, expected["k_connected"].IsTrue() ? 1 : 0);
  EXPECT_EQ(k.gated_by, expected["k_connected"].IsTrue() ? "" : "projection");
  if (expected.Has("gradient_k")) {
    EXPECT_EQ(k.gradient.Get(0), expected["gradient_k"].Hex());
  }
}

INSTANTIATE_TEST_SUITE_P(All, EssayDemo, ::testing::ValuesIn(CaseNames()),
                         [](const auto& demo) { return demo.param; });

TEST(EssayDemoLossScale, RecoversTheGradientThatF16Loses) {
  sim::Observer nobody;
  const sim::Work work = DemoWork(CaseOf("depressurization_f16_safe"), "sequential", 65536);
  const auto result = tests::Execute(work, nobody);
  ASSERT_TRUE(result.ok()) << result.status();
  // "gradient_tolerance" of the case: exact.
  EXPECT_EQ(GradientOfK(*result, work).gradient.Get(0), -0x1.658p-24);
  EXPECT_FALSE(result->skipped);
}

std::string HexOf(uint64_t bits) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, bits);
  return text;
}

TEST(EssayDemoSignatures, AreThoseOfTheReference) {
  const Json& vectors = Demos()["path_signature_vectors"];
  sim::Observer nobody;
  const auto f32 =
      tests::Execute(DemoWork(CaseOf("depressurization_bf16_f32"), "sequential", 1.0), nobody);
  ASSERT_TRUE(f32.ok()) << f32.status();
  EXPECT_EQ(HexOf(f32->path_signatures[0]), vectors["depressurization_f32_instance"].text);
  EXPECT_EQ(HexOf(f32->batch_path_signature),
            vectors["depressurization_f32_batch_of_one_id_0"].text);
  const auto low =
      tests::Execute(DemoWork(CaseOf("depressurization_bf16_unsafe"), "sequential", 1.0), nobody);
  ASSERT_TRUE(low.ok()) << low.status();
  EXPECT_EQ(HexOf(low->path_signatures[0]), vectors["depressurization_unsafe_instance"].text);
}

}  // namespace
}  // namespace simgrad
