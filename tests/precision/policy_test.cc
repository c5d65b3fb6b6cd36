// Presets, precedence and refusals of a policy, against the table of docs/numerics.md section 8.

#include "precision/policy.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <variant>

namespace simgrad::precision {
namespace {

Policy Resolved(const PolicySpec& spec) { return std::get<Policy>(Resolve(spec)); }

std::string ErrorField(const PolicySpec& spec) {
  const auto result = Resolve(spec);
  const auto* error = std::get_if<PolicyError>(&result);
  return error == nullptr ? "" : error->field;
}

TEST(Policy, PresetsAreThoseOfTheTable) {
  struct Row {
    const char* preset;
    Format bulk, decision, network, objective, tape, adjoint;
    Order order;
    double loss_scale;
  };
  using enum Format;
  const Row rows[] = {
      {"f64", kF64, kF64, kF64, kF64, kF64, kF64, Order::kPairwise, 1},
      {"f32", kF32, kF32, kF32, kF32, kF32, kF32, Order::kPairwise, 1},
      {"bf16_unsafe", kBf16, kBf16, kBf16, kF32, kBf16, kBf16, Order::kSequential, 1},
      {"f16_unsafe", kF16, kF16, kF16, kF32, kF16, kF16, Order::kSequential, 1},
      {"bf16_safe", kBf16, kF32, kBf16, kF32, kBf16, kBf16, Order::kPairwise, 1},
      {"f16_safe", kF16, kF32, kF16, kF32, kF16, kF16, Order::kPairwise, 32768},
      {"fp8_storage", kF32, kF32, kE4m3, kF32, kE4m3, kF32, Order::kPairwise, 1},
  };
  ASSERT_EQ(PresetNames().size(), std::size(rows));
  for (const Row& row : rows) {
    PolicySpec spec;
    spec.preset = row.preset;
    const Policy policy = Resolved(spec);
    EXPECT_EQ(policy[Role::kState].format, row.bulk) << row.preset;
    EXPECT_EQ(policy[Role::kDynamics].format, row.bulk);
    EXPECT_EQ(policy[Role::kSolver].format, row.bulk);
    EXPECT_EQ(policy[Role::kTermination].format, row.decision);
    EXPECT_EQ(policy[Role::kEvent].format, row.decision);
    EXPECT_EQ(policy[Role::kNetwork].format, row.network);
    EXPECT_EQ(policy[Role::kObjective].format, row.objective);
    EXPECT_EQ(policy[Role::kGradient].format, row.objective);
    EXPECT_EQ(policy[Role::kTape].format, row.tape);
    EXPECT_EQ(policy[Role::kAdjoint].format, row.adjoint);
    EXPECT_EQ(policy[Role::kAdjoint].accumulator, row.adjoint == kF64 ? kF64 : kF32);
    EXPECT_EQ(policy[Role::kTermination].accumulator, row.decision);
    EXPECT_EQ(policy[Role::kSolver].order, row.order);
    EXPECT_EQ(policy.loss_scale, row.loss_scale);
    const bool scales = std::string(row.preset) == "fp8_storage";
    for (int i = 0; i < kRoleCount; ++i) {
      const Role role = static_cast<Role>(i);
      const Scale expected = scales && role == Role::kNetwork ? Scale::kAmax : Scale::kNone;
      EXPECT_EQ(policy[role].scale, expected) << row.preset << " " << RoleName(role);
    }
  }
}

TEST(Policy, ARoleWithAScaleSaturatesAndComputesInItsAccumulator) {
  PolicySpec spec;
  RoleOverride fp8;
  fp8.format = Format::kE5m2;
  spec.roles = {{"network", fp8}};
  EXPECT_EQ(Resolved(spec)[Role::kNetwork].scale, Scale::kNone);
  EXPECT_EQ(Resolved(spec)[Role::kNetwork].computes_in(), Format::kE5m2);
  spec.roles[0].second.scale = Scale::kAmax;
  const RoleSetting scaled = Resolved(spec)[Role::kNetwork];
  EXPECT_EQ(scaled.format, Format::kE5m2);
  EXPECT_EQ(scaled.overflow, Overflow::kSaturate);
  EXPECT_EQ(scaled.computes_in(), Format::kF32);
  spec.roles[0].second.accumulator = Format::kF64;
  EXPECT_EQ(Resolved(spec)[Role::kNetwork].computes_in(), Format::kF64);
}

TEST(Policy, AnotherFormatDropsTheScaleOfThePreset) {
  PolicySpec spec;
  spec.preset = "fp8_storage";
  RoleOverride change;
  change.format = Format::kBf16;
  spec.roles = {{"network", change}};
  EXPECT_EQ(Resolved(spec)[Role::kNetwork].computes_in(), Format::kBf16);
  spec.roles[0].second.format = Format::kE5m2;
  EXPECT_EQ(Resolved(spec)[Role::kNetwork].scale, Scale::kAmax);
  spec.roles[0].second.scale = Scale::kNone;
  EXPECT_EQ(Resolved(spec)[Role::kNetwork].computes_in(), Format::kE5m2);
  spec.roles.clear();
  RoleOverride wide;
  wide.format = Format::kF16;
  spec.sites = {{"layer", wide}};
  EXPECT_EQ(Resolved(spec).At(Role::kNetwork, "layer").computes_in(), Format::kF16);
}

TEST(Policy, RefusesAScaleWhereThereIsNone) {
  PolicySpec spec;
  RoleOverride scaled;
  scaled.scale = Scale::kAmax;
  spec.roles = {{"network", scaled}};
  EXPECT_EQ(ErrorField(spec), "roles[0].scale");  // in f32
  scaled.format = Format::kE4m3;
  spec.roles = {{"network", scaled}};
  EXPECT_EQ(ErrorField(spec), "");
  spec.roles = {{"tape", scaled}};
  EXPECT_EQ(ErrorField(spec), "roles[0].scale");
  RoleOverride overflows = scaled;
  overflows.overflow = Overflow::kIeee;
  spec.roles = {{"network", overflows}};
  EXPECT_EQ(ErrorField(spec), "roles[0].overflow");
  RoleOverride stochastic = scaled;
  stochastic.rounding = CastRounding::kStochastic;
  spec.roles = {{"network", stochastic}};
  EXPECT_EQ(ErrorField(spec), "roles[0].rounding");
  spec.roles.clear();
  RoleOverride of_site;
  of_site.scale = Scale::kAmax;
  spec.sites = {{"projection", of_site}};
  EXPECT_EQ(ErrorField(spec), "sites[0].scale");
}

TEST(Policy, ARoleOverridesThePresetAndASiteTheRole) {
  PolicySpec spec;
  spec.preset = "bf16_unsafe";
  RoleOverride wide;
  wide.format = Format::kF32;
  RoleOverride wider;
  wider.format = Format::kF64;
  wider.accumulator = Format::kF32;
  spec.roles = {{"termination", wide}};
  spec.sites = {{"projection", wider}};
  const Policy policy = Resolved(spec);
  EXPECT_EQ(policy.At(Role::kTermination, "").format, Format::kF32);
  EXPECT_EQ(policy.At(Role::kTermination, "other").accumulator, Format::kF32);
  EXPECT_EQ(policy.At(Role::kTermination, "projection").format, Format::kF64);
  EXPECT_EQ(policy.At(Role::kTermination, "projection").accumulator, Format::kF32);
  EXPECT_EQ(policy.At(Role::kTermination, "projection").order, Order::kSequential);
  EXPECT_EQ(policy.At(Role::kSolver, "").format, Format::kBf16);
}

TEST(Policy, RefusesARoundingThatCouldDoNothing) {
  RoleOverride stochastic;
  stochastic.rounding = CastRounding::kStochastic;
  RoleOverride nearest;
  nearest.rounding = CastRounding::kNearestEven;
  RoleOverride wide = stochastic;
  wide.format = Format::kF64;
  PolicySpec spec;
  spec.preset = "bf16_safe";
  for (const char* role : {"tape", "gradient"}) {
    spec.roles = {{role, stochastic}};
    EXPECT_EQ(ErrorField(spec), "roles[0].rounding");
    spec.roles = {{role, nearest}};
    EXPECT_EQ(ErrorField(spec), "");
  }
  spec.roles = {{"state", stochastic}};
  EXPECT_EQ(ErrorField(spec), "");
  EXPECT_EQ(Resolved(spec)[Role::kState].rounding, CastRounding::kStochastic);
  EXPECT_EQ(Resolved(spec)[Role::kDynamics].rounding, CastRounding::kNearestEven);
  spec.roles = {{"state", wide}};
  EXPECT_EQ(ErrorField(spec), "roles[0].rounding");
  spec.roles.clear();
  spec.sites = {{"projection", wide}};
  EXPECT_EQ(ErrorField(spec), "sites[0].rounding");
  spec.sites = {{"projection", stochastic}};
  EXPECT_EQ(ErrorField(spec), "");
}

RoleOverride Tf32(std::optional<CastRounding> rounding = std::nullopt) {
  RoleOverride change;
  change.format = Format::kF32;
  change.is_tf32 = true;
  change.rounding = rounding;
  return change;
}

TEST(Policy, Tf32RoundsWhatMatmulReadsAndNoCast) {
  PolicySpec spec;
  spec.preset = "bf16_safe";
  spec.roles = {{"network", Tf32()}, {"adjoint", Tf32(CastRounding::kTowardZero)}};
  const Policy policy = Resolved(spec);
  const RoleSetting& network = policy[Role::kNetwork];
  EXPECT_EQ(network.format, Format::kF32);
  EXPECT_EQ(network.accumulator, Format::kF32);
  EXPECT_EQ(network.inputs, CastRounding::kNearestEven);
  EXPECT_EQ(policy[Role::kAdjoint].inputs, CastRounding::kTowardZero);
  EXPECT_EQ(policy[Role::kAdjoint].rounding, CastRounding::kNearestEven);
  EXPECT_EQ(policy[Role::kDynamics].inputs, std::nullopt);
}

TEST(Policy, ASiteTakesTf32AwayOrGivesItsRounding) {
  RoleOverride narrow;
  narrow.format = Format::kBf16;
  RoleOverride away;
  away.rounding = CastRounding::kNearestAway;
  PolicySpec spec;
  spec.roles = {{"network", Tf32(CastRounding::kTowardZero)}};
  spec.sites = {{"narrow", narrow}, {"away", away}, {"tf32", Tf32()}};
  const Policy policy = Resolved(spec);
  EXPECT_EQ(policy.At(Role::kNetwork, "narrow").inputs, std::nullopt);
  EXPECT_EQ(policy.At(Role::kNetwork, "away").inputs, CastRounding::kNearestAway);
  EXPECT_EQ(policy.At(Role::kNetwork, "away").rounding, CastRounding::kNearestEven);
  EXPECT_EQ(policy.At(Role::kDynamics, "away").rounding, CastRounding::kNearestAway);
  EXPECT_EQ(policy.At(Role::kDynamics, "tf32").inputs, CastRounding::kNearestEven);
}

TEST(Policy, Tf32IsRefusedWhereNothingIsReadAsIt) {
  PolicySpec spec;
  for (const char* role : {"state", "termination", "event", "tape", "gradient"}) {
    spec.roles = {{role, Tf32()}};
    EXPECT_EQ(ErrorField(spec), "roles[0].format") << role;
  }
  spec.roles = {{"solver", Tf32(CastRounding::kStochastic)}};
  EXPECT_EQ(ErrorField(spec), "roles[0].rounding");
  RoleOverride stochastic;
  stochastic.rounding = CastRounding::kStochastic;
  spec.roles = {{"solver", Tf32()}};
  spec.sites = {{"other", {}}, {"floor", stochastic}};
  EXPECT_EQ(ErrorField(spec), "sites[1].rounding");
}

TEST(Policy, ProductsAreAChainOfFmaWhateverTheOrderOfSums) {
  RoleOverride ordered;
  ordered.products = ProductsFromText("shuffled(7)");
  PolicySpec spec;
  spec.preset = "bf16_unsafe";
  spec.roles = {{"network", ordered}};
  const Policy policy = Resolved(spec);
  EXPECT_EQ(policy[Role::kSolver].order, Order::kSequential);
  EXPECT_EQ(TextOf(policy[Role::kSolver].products), "fma_chain");
  EXPECT_EQ(TextOf(policy[Role::kNetwork].products), "shuffled(7)");
  EXPECT_EQ(ProductsFromText("shuffled"), std::nullopt);
  RoleOverride chain;
  chain.products = ProductsFromText("fma_chain");
  spec.sites = {{"plain", chain}};
  EXPECT_EQ(Resolved(spec).At(Role::kNetwork, "plain").products, Products{});
  for (const char* role : {"tape", "gradient"}) {
    spec.roles = {{role, ordered}};
    EXPECT_EQ(ErrorField(spec), "roles[0].products");
    spec.roles = {{role, chain}};
    EXPECT_EQ(ErrorField(spec), "");
  }
}

TEST(Policy, RefusesAGradientThatSaturatesUnderALossScale) {
  RoleOverride saturates;
  saturates.overflow = Overflow::kSaturate;
  PolicySpec spec;
  spec.preset = "f32";
  spec.roles = {{"state", saturates}, {"gradient", saturates}};
  EXPECT_EQ(ErrorField(spec), "");
  spec.loss_scale = 2.0;
  EXPECT_EQ(ErrorField(spec), "roles[1].overflow");
  spec.roles.pop_back();
  EXPECT_EQ(ErrorField(spec), "");
  spec.preset = "f16_safe";  // whose scale is 32768
  spec.loss_scale.reset();
  spec.roles = {{"gradient", saturates}};
  EXPECT_EQ(ErrorField(spec), "roles[0].overflow");
}

TEST(Policy, RefusesWithTheFieldInQuestion) {
  PolicySpec spec;
  spec.preset = "half";
  EXPECT_EQ(ErrorField(spec), "preset");
  spec.preset = "f32";
  spec.roles = {{"terminator", {}}};
  EXPECT_EQ(ErrorField(spec), "roles[0].role");
  spec.roles = {{"solver", {}}, {"solver", {}}};
  EXPECT_EQ(ErrorField(spec), "roles[1].role");
  RoleOverride fp8;
  fp8.format = Format::kE4m3;
  spec.roles = {{"solver", fp8}};
  EXPECT_EQ(ErrorField(spec), "roles[0].format");
  spec.roles = {{"tape", fp8}};
  EXPECT_EQ(ErrorField(spec), "");
  RoleOverride accumulator;
  accumulator.accumulator = Format::kE5m2;
  spec.roles = {{"adjoint", accumulator}};
  EXPECT_EQ(ErrorField(spec), "roles[0].accumulator");
  spec.roles.clear();
  spec.sites = {{"projection", {}}, {"projection", {}}};
  EXPECT_EQ(ErrorField(spec), "sites[1].site");
  spec.sites = {{"projection", fp8}};
  EXPECT_EQ(ErrorField(spec), "sites[0].format");
  spec.sites.clear();
  for (double scale : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::quiet_NaN()}) {
    spec.loss_scale = scale;
    EXPECT_EQ(ErrorField(spec), "loss_scale");
  }
}

}  // namespace
}  // namespace simgrad::precision
