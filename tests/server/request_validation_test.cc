// Every bad field is refused with its path and reason, before anything is allocated for it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "server/conversion/describe.h"
#include "server/service/prepare.h"
#include "server/validation/request_error.h"
#include "sim/program/field_error.h"
#include "tests/server/ball_request.h"

namespace simgrad::server::service {
namespace {

struct Case {
  const char* name;
  std::function<void(v1::GradientRequest&)> spoil;
  const char* field;
  const char* reason = "INVALID_FIELD";
  const char* told = "";  // part of the message
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

v1::GradientRequest Good() { return BallGradient(5, 3); }

v1::ConfigValue& Config(v1::GradientRequest& request, const std::string& name) {
  return (*request.mutable_spec()->mutable_world()->mutable_config())[name];
}

v1::Tensor& Initial(v1::GradientRequest& request, int i = 0) {
  return *request.mutable_spec()->mutable_initial(i)->mutable_tensor();
}

v1::RoleSetting& RoleSettingOf(v1::GradientRequest& request, const std::string& role) {
  v1::RoleOverride* change = request.mutable_spec()->mutable_policy()->add_roles();
  change->set_role(role);
  return *change->mutable_setting();
}

v1::DynamicLossScale& ScalerOf(v1::GradientRequest& request) {
  return *request.mutable_spec()->mutable_policy()->mutable_loss_scale()->mutable_dynamic();
}

void AddCotangent(v1::GradientRequest& request, bool final_state, const std::string& name,
                  const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  v1::Cotangent* cotangent =
      request.cotangents_size() > 0 ? request.mutable_cotangents(0) : request.add_cotangents();
  AddTensor(final_state ? cotangent->mutable_final_state() : cotangent->mutable_trajectory(), name,
            std::vector<double>(static_cast<size_t>(count), 1.0), shape);
}

std::vector<Case> WorldCases() {
  return {
      {"NoWorld", [](auto& r) { r.mutable_spec()->clear_world(); }, "spec.world"},
      {"UnknownWorld", [](auto& r) { r.mutable_spec()->mutable_world()->set_name("moon"); },
       "spec.world.name", "INVALID_FIELD", "bouncing_ball, boundary_projection"},
      {"UnknownConfig", [](auto& r) { Config(r, "colour").set_number(1); },
       "spec.world.config[colour]"},
      {"ConfigWithoutValue", [](auto& r) { Config(r, "tol"); }, "spec.world.config[tol]"},
      {"ConfigOfWrongType", [](auto& r) { Config(r, "tol").set_word("small"); },
       "spec.world.config[tol]"},
      {"UnknownWord", [](auto& r) { Config(r, "contact").set_word("glue"); },
       "spec.world.config[contact]", "INVALID_FIELD", "projection"},
      {"TolZero", [](auto& r) { Config(r, "tol").set_number(0); }, "spec.world.config[tol]"},
      {"TolNegative", [](auto& r) { Config(r, "tol").set_number(-1e-4); },
       "spec.world.config[tol]"},
      {"TolNan", [](auto& r) { Config(r, "tol").set_number(kNan); }, "spec.world.config[tol]"},
      {"TolInfinite", [](auto& r) { Config(r, "tol").set_number(INFINITY); },
       "spec.world.config[tol]"},
      {"MaxIterOverTheLimit", [](auto& r) { Config(r, "max_iter").set_number(1e9); },
       "spec.world.config[max_iter]"},
      {"ElementsHuge", [](auto& r) { Config(r, "elements").set_number(1e15); },
       "spec.world.config[elements]"},
      {"ElementsBeyondAProgram", [](auto& r) { Config(r, "elements").set_number(1 << 20); },
       "spec.world.config[elements]", "LIMIT_EXCEEDED", "elements in all"},
      {"ElementsNegative", [](auto& r) { Config(r, "elements").set_number(-1); },
       "spec.world.config[elements]"},
      {"ConfigBesideAProgram",
       [](auto& r) { r.mutable_spec()->mutable_world()->mutable_program()->set_name("x"); },
       "spec.world.config"},
  };
}

std::vector<Case> SpecCases() {
  return {
      {"StepsNegative", [](auto& r) { r.mutable_spec()->set_steps(-1); }, "spec.steps"},
      {"StepsHuge", [](auto& r) { r.mutable_spec()->set_steps(int64_t{1} << 62); }, "spec.steps",
       "LIMIT_EXCEEDED"},
      {"InstancesNegative", [](auto& r) { r.mutable_spec()->set_instances(-1); }, "spec.instances"},
      {"InstancesHuge", [](auto& r) { r.mutable_spec()->set_instances(int64_t{1} << 50); },
       "spec.instances", "LIMIT_EXCEEDED"},
      {"InstancesDisagree", [](auto& r) { r.mutable_spec()->set_instances(4); },
       "spec.initial[0].tensor.shape", "INVALID_FIELD", "has 3 instances"},
      {"IdsTwice",
       [](auto& r) {
         for (uint64_t id : {7, 8, 7}) r.mutable_spec()->add_instance_ids(id);
       },
       "spec.instance_ids[2]"},
      {"FirstInstanceBesideIds",
       [](auto& r) {
         for (uint64_t id : {7, 8, 9}) r.mutable_spec()->add_instance_ids(id);
         r.mutable_spec()->set_first_instance(7);
       },
       "spec.first_instance", "INVALID_FIELD", "send one of the two"},
      {"IdsOfWrongNumber", [](auto& r) { r.mutable_spec()->add_instance_ids(1); },
       "spec.initial[0].tensor.shape"},
      {"FirstInstanceOverflows",
       [](auto& r) { r.mutable_spec()->set_first_instance(~uint64_t{0} - 1); },
       "spec.first_instance"},
      {"UnknownRecord", [](auto& r) { r.mutable_spec()->add_record("w"); }, "spec.record[0]",
       "INVALID_FIELD", "states: y, v; observables: penetration"},
      {"RecordTwice",
       [](auto& r) {
         r.mutable_spec()->add_record("y");
         r.mutable_spec()->add_record("y");
       },
       "spec.record[1]"},
      {"UnknownObjective", [](auto& r) { r.mutable_spec()->set_objective("fame"); },
       "spec.objective", "INVALID_FIELD", "final_height"},
      {"UnknownLevel",
       [](auto& r) {
         r.mutable_spec()->mutable_diagnostics()->set_level(static_cast<v1::DiagnosticsLevel>(9));
       },
       "spec.diagnostics.level"},
      {"UnknownProgramDetail",
       [](auto& r) { r.mutable_spec()->set_program(static_cast<v1::ProgramDetail>(3)); },
       "spec.program", "INVALID_FIELD", "FINGERPRINT, TEXT"},
      {"StrideNegative", [](auto& r) { r.mutable_spec()->mutable_diagnostics()->set_stride(-1); },
       "spec.diagnostics.stride"},
      {"ChunkNegative", [](auto& r) { r.mutable_spec()->set_chunk_steps(-1); }, "spec.chunk_steps"},
      {"IntervalNegative", [](auto& r) { r.mutable_spec()->set_checkpoint_interval(-1); },
       "spec.checkpoint_interval"},
  };
}

std::vector<Case> TensorCases() {
  return {
      {"UnknownState", [](auto& r) { r.mutable_spec()->mutable_initial(1)->set_name("w"); },
       "spec.initial[1].name", "INVALID_FIELD", "the world has: y, v"},
      {"StateTwice", [](auto& r) { r.mutable_spec()->mutable_initial(1)->set_name("y"); },
       "spec.initial[1].name"},
      {"StateMissing", [](auto& r) { r.mutable_spec()->mutable_initial()->RemoveLast(); },
       "spec.initial", "INVALID_FIELD", "'v' has no default"},
      {"ParamMissing", [](auto& r) { r.mutable_spec()->clear_params(); }, "spec.params"},
      {"DataMissing", [](auto& r) { r.mutable_spec()->set_objective("target_height"); },
       "spec.data", "INVALID_FIELD", "'target'"},
      {"UnknownParam", [](auto& r) { AddTensor(r.mutable_spec()->mutable_params(), "K", {1}, {}); },
       "spec.params[1].name"},
      {"UnknownControl",
       [](auto& r) { AddTensor(r.mutable_spec()->mutable_controls(), "w", {1}, {1}); },
       "spec.controls[0].name"},
      {"UnknownData", [](auto& r) { AddTensor(r.mutable_spec()->mutable_data(), "w", {1}, {1}); },
       "spec.data[0].name"},
      {"NoDtype", [](auto& r) { Initial(r).clear_dtype(); }, "spec.initial[0].tensor.dtype"},
      {"UnknownDtype", [](auto& r) { Initial(r).set_dtype(static_cast<v1::DType>(77)); },
       "spec.initial[0].tensor.dtype"},
      {"IntegersForReals", [](auto& r) { Initial(r).set_dtype(v1::DTYPE_I64); },
       "spec.initial[0].tensor.dtype"},
      {"NegativeDimension", [](auto& r) { Initial(r).set_shape(0, -3); },
       "spec.initial[0].tensor.shape[0]"},
      {"DimensionsOverflow",
       [](auto& r) {
         Initial(r).set_shape(0, int64_t{1} << 40);
         Initial(r).set_shape(1, int64_t{1} << 40);
       },
       "spec.initial[0].tensor.shape"},
      {"TooFewBytes", [](auto& r) { Initial(r).mutable_inline_()->pop_back(); },
       "spec.initial[0].tensor.inline", "INVALID_FIELD", "takes 24"},
      {"TooManyBytes", [](auto& r) { Initial(r).mutable_inline_()->push_back(0); },
       "spec.initial[0].tensor.inline"},
      {"NoContent", [](auto& r) { Initial(r).clear_content(); }, "spec.initial[0].tensor.inline"},
      {"RankTooLow", [](auto& r) { SetDoubles({0.5}, {}, Initial(r)); },
       "spec.initial[0].tensor.shape"},
      {"RankTooHigh",
       [](auto& r) {
         SetDoubles({1, 2, 3}, {3, 1, 1}, Initial(r));
       },
       "spec.initial[0].tensor.shape"},
      {"WrongShape",
       [](auto& r) {
         SetDoubles({1, 2}, {2}, Initial(r, 1));
       },
       "spec.initial[1].tensor.shape", "INVALID_FIELD", "[1] where shared"},
      {"NoInstance",
       [](auto& r) {
         SetDoubles({}, {0, 1}, Initial(r));
       },
       "spec.initial[0].tensor.shape", "INVALID_FIELD", "at least one instance"},
      {"StatePerStep", [](auto& r) { r.mutable_spec()->mutable_initial(0)->set_per_step(true); },
       "spec.initial[0].per_step"},
      {"ParamPerStep", [](auto& r) { r.mutable_spec()->mutable_params(0)->set_per_step(true); },
       "spec.params[0].per_step"},
      {"ControlOfWrongLength",
       [](auto& r) {
         AddTensor(r.mutable_spec()->mutable_controls(), "u", {1, 2, 3, 4}, {4, 1});
         r.mutable_spec()->mutable_controls(0)->set_per_step(true);
       },
       "spec.controls[0].tensor.shape", "INVALID_FIELD", "5 steps"},
      {"Reference", [](auto& r) { Initial(r).set_ref("abc"); }, "spec.initial[0].tensor.ref",
       "NOT_SUPPORTED"},
  };
}

std::vector<Case> PolicyCases() {
  return {
      {"UnknownPreset", [](auto& r) { r.mutable_spec()->mutable_policy()->set_preset("f31"); },
       "spec.policy.preset", "INVALID_FIELD", "bf16_unsafe"},
      {"UnknownRole", [](auto& r) { RoleSettingOf(r, "soul").set_format("f32"); },
       "spec.policy.roles[0].role", "INVALID_FIELD", "termination"},
      {"RoleTwice",
       [](auto& r) {
         RoleSettingOf(r, "solver").set_format("f32");
         RoleSettingOf(r, "solver").set_format("f16");
       },
       "spec.policy.roles[1].role"},
      {"UnknownFormat", [](auto& r) { RoleSettingOf(r, "solver").set_format("f31"); },
       "spec.policy.roles[0].setting.format", "INVALID_FIELD", "bf16"},
      {"StorageFormatThatComputes", [](auto& r) { RoleSettingOf(r, "solver").set_format("e4m3"); },
       "spec.policy.roles[0].setting.format"},
      {"ShuffledWithoutASeed", [](auto& r) { RoleSettingOf(r, "solver").set_order("shuffled"); },
       "spec.policy.roles[0].setting.order", "INVALID_FIELD", "shuffled(7)"},
      {"UnknownOrder", [](auto& r) { RoleSettingOf(r, "solver").set_order("random"); },
       "spec.policy.roles[0].setting.order", "INVALID_FIELD", "pairwise"},
      {"UnknownOverflow", [](auto& r) { RoleSettingOf(r, "solver").set_overflow("wrap"); },
       "spec.policy.roles[0].setting.overflow"},
      {"UnknownAccumulator", [](auto& r) { RoleSettingOf(r, "solver").set_accumulator("x"); },
       "spec.policy.roles[0].setting.accumulator"},
      {"StorageAccumulator", [](auto& r) { RoleSettingOf(r, "solver").set_accumulator("e5m2"); },
       "spec.policy.roles[0].setting.accumulator"},
      {"UnknownProducts", [](auto& r) { RoleSettingOf(r, "solver").set_products("tree"); },
       "spec.policy.roles[0].setting.products", "INVALID_FIELD", "fma_chain, sequential"},
      {"StateInTf32", [](auto& r) { RoleSettingOf(r, "state").set_format("tf32"); },
       "spec.policy.roles[0].setting.format", "INVALID_FIELD", "no format of values"},
      {"StochasticTf32",
       [](auto& r) {
         v1::RoleSetting& setting = RoleSettingOf(r, "solver");
         setting.set_format("tf32");
         setting.set_rounding("stochastic");
       },
       "spec.policy.roles[0].setting.rounding", "INVALID_FIELD", "not stochastic"},
      {"UnknownSite",
       [](auto& r) {
         v1::SiteOverride* change = r.mutable_spec()->mutable_policy()->add_sites();
         change->set_site("moon");
         change->mutable_setting()->set_order("exact");
       },
       "spec.policy.sites[0].site", "INVALID_FIELD", "projection"},
      {"RoleSetsNothing", [](auto& r) { RoleSettingOf(r, "solver"); },
       "spec.policy.roles[0].setting", "INVALID_FIELD", "sets nothing"},
      {"SiteSetsNothing",
       [](auto& r) { r.mutable_spec()->mutable_policy()->add_sites()->set_site("projection"); },
       "spec.policy.sites[0].setting", "INVALID_FIELD", "sets nothing"},
      {"LossScaleWithoutMode",
       [](auto& r) { r.mutable_spec()->mutable_policy()->mutable_loss_scale(); },
       "spec.policy.loss_scale", "INVALID_FIELD", "set loss_scale.fixed"},
      {"LossScaleZero",
       [](auto& r) { r.mutable_spec()->mutable_policy()->mutable_loss_scale()->set_fixed(0); },
       "spec.policy.loss_scale.fixed"},
      {"LossScaleWithoutInverse",
       [](auto& r) {
         r.mutable_spec()->mutable_policy()->mutable_loss_scale()->set_fixed(0x1p128);
       },
       "spec.policy.loss_scale.fixed", "INVALID_FIELD", "2^-127 to 2^127"},
      {"LossScaleOfInfiniteInverse",
       [](auto& r) { r.mutable_spec()->mutable_policy()->mutable_loss_scale()->set_fixed(1e-39); },
       "spec.policy.loss_scale.fixed", "INVALID_FIELD", "2^-127 to 2^127"},
      {"LossScaleNan",
       [](auto& r) { r.mutable_spec()->mutable_policy()->mutable_loss_scale()->set_fixed(kNan); },
       "spec.policy.loss_scale.fixed"},
      {"DynamicScaleBelowOne", [](auto& r) { ScalerOf(r).set_scale(0.5); },
       "spec.policy.loss_scale.dynamic.scale", "INVALID_FIELD", "powers of two from 1 on"},
      {"DynamicScaleNegative",
       [](auto& r) {
         ScalerOf(r).set_scale(-1);
         ScalerOf(r).set_mode("torch");
       },
       "spec.policy.loss_scale.dynamic.scale", "INVALID_FIELD", "above 0"},
      {"DynamicScaleNoF32", [](auto& r) { ScalerOf(r).set_scale(1e300); },
       "spec.policy.loss_scale.dynamic.scale", "INVALID_FIELD", "f32"},
      {"DynamicClean", [](auto& r) { ScalerOf(r).set_clean(-1); },
       "spec.policy.loss_scale.dynamic.clean"},
      {"DynamicMode", [](auto& r) { ScalerOf(r).set_mode("jax"); },
       "spec.policy.loss_scale.dynamic.mode", "INVALID_FIELD", "guarded, torch"},
      {"DynamicGrowth", [](auto& r) { ScalerOf(r).set_growth(1); },
       "spec.policy.loss_scale.dynamic.growth"},
      {"DynamicBackoff", [](auto& r) { ScalerOf(r).set_backoff(kNan); },
       "spec.policy.loss_scale.dynamic.backoff"},
      {"DynamicInterval", [](auto& r) { ScalerOf(r).set_interval(-5); },
       "spec.policy.loss_scale.dynamic.interval"},
      {"UnknownNonFinite",
       [](auto& r) {
         r.mutable_spec()->mutable_policy()->set_non_finite(static_cast<v1::NonFinitePolicy>(5));
       },
       "spec.policy.non_finite"},
  };
}

std::vector<Case> GradientCases() {
  return {
      {"NothingToDifferentiate", [](auto& r) { r.mutable_spec()->clear_objective(); },
       "spec.objective"},
      {"TwoCotangents",
       [](auto& r) {
         r.add_cotangents();
         r.add_cotangents();
       },
       "cotangents[1]", "NOT_SUPPORTED"},
      {"ToleranceOfALoopNegative",
       [](auto& r) {
         v1::LoopDerivative& loop = *r.add_loops();
         loop.set_site("projection");
         loop.mutable_implicit()->set_tol(-1);
       },
       "loops[0].implicit.tol"},
      {"UnknownReduction", [](auto& r) { r.set_reduction(static_cast<v1::InstanceReduction>(8)); },
       "reduction"},
      {"WeightsOfWrongLength", [](auto& r) { r.add_weights(1); }, "weights"},
      {"WeightNan",
       [](auto& r) {
         for (double weight : {1.0, kNan, 1.0}) r.add_weights(weight);
       },
       "weights[1]"},
      {"UnknownCotangentState",
       [](auto& r) {
         AddCotangent(r, true, "w", {3, 1});
       },
       "cotangents[0].final_state[0].name"},
      {"CotangentOfWrongShape", [](auto& r) { AddCotangent(r, true, "y", {1}); },
       "cotangents[0].final_state[0].tensor.shape", "INVALID_FIELD", "[3, 1]"},
      {"TrajectoryOfWrongLength",
       [](auto& r) {
         AddCotangent(r, false, "y", {3, 5, 1});
       },
       "cotangents[0].trajectory[0].tensor.shape", "INVALID_FIELD", "[3, 6, 1]"},
      {"ObservableOfWrongLength",
       [](auto& r) {
         AddCotangent(r, false, "penetration", {3, 6, 1});
       },
       "cotangents[0].trajectory[0].tensor.shape", "INVALID_FIELD", "[3, 5, 1]"},
      {"EmptyCotangentBesideAnObjective", [](auto& r) { r.add_cotangents(); }, "cotangents[0]",
       "INVALID_FIELD", "is empty"},
      {"TrajectoryPerStep",
       [](auto& r) {
         AddCotangent(r, false, "y", {3, 6, 1});
         r.mutable_cotangents(0)->mutable_trajectory(0)->set_per_step(true);
       },
       "cotangents[0].trajectory[0].per_step"},
      {"UnknownTrajectory",
       [](auto& r) {
         AddCotangent(r, false, "w", {3, 6, 1});
       },
       "cotangents[0].trajectory[0].name"},
      {"CotangentTwice",
       [](auto& r) {
         AddCotangent(r, true, "y", {3, 1});
         AddCotangent(r, true, "y", {3, 1});
       },
       "cotangents[0].final_state[1].name"},
      {"UnknownWrt",
       [](auto& r) {
         r.add_wrt()->set_kind(v1::INPUT_KIND_PARAM);
         r.mutable_wrt(0)->set_name("K");
       },
       "wrt[0]", "INVALID_FIELD", "param.k"},
      {"WrtData",
       [](auto& r) {
         r.add_wrt()->set_kind(v1::INPUT_KIND_DATA);
         r.mutable_wrt(0)->set_name("target");
       },
       "wrt[0]"},
      {"WrtTwice",
       [](auto& r) {
         for (int i = 0; i < 2; ++i) {
           r.add_wrt()->set_kind(v1::INPUT_KIND_PARAM);
           r.mutable_wrt(i)->set_name("k");
         }
       },
       "wrt[1]"},
      {"LoopWithoutAChoice", [](auto& r) { r.add_loops()->set_site("penetration_solve"); },
       "loops[0]"},
      {"LoopOfAnotherWorld",
       [](auto& r) {
         r.add_loops()->set_site("newton");
         r.mutable_loops(0)->set_truncated(2);
       },
       "loops[0].site"},
      {"UnknownSolver", [](auto& r) { r.add_loops()->mutable_implicit()->set_solver("cg"); },
       "loops[0].implicit.solver"},
  };
}

class RequestValidation : public ::testing::TestWithParam<Case> {
 protected:
  conversion::ProgramCache cache_{{}, [](conversion::ProgramCache::Lookup) {}};
};

TEST_P(RequestValidation, NamesTheFieldTheReasonAndWhatWouldBeRight) {
  v1::GradientRequest request = Good();
  ASSERT_TRUE(Prepare(request, cache_, {}).ok()) << Prepare(request, cache_, {}).status();
  GetParam().spoil(request);
  const auto prepared = Prepare(request, cache_, {});
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(sim::FieldOf(prepared.status()), GetParam().field) << prepared.status();
  EXPECT_EQ(validation::ReasonOf(prepared.status()), GetParam().reason) << prepared.status();
  const bool unsupported = std::string(GetParam().reason) == "NOT_SUPPORTED";
  EXPECT_EQ(prepared.status().code(),
            unsupported ? absl::StatusCode::kUnimplemented : absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(prepared.status().message()).find(GetParam().told), std::string::npos)
      << prepared.status();
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(World, RequestValidation, ::testing::ValuesIn(WorldCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Spec, RequestValidation, ::testing::ValuesIn(SpecCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Tensor, RequestValidation, ::testing::ValuesIn(TensorCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Policy, RequestValidation, ::testing::ValuesIn(PolicyCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Gradient, RequestValidation, ::testing::ValuesIn(GradientCases()),
                         CaseName);

TEST_F(RequestValidation, NonFiniteValuesAreDataNotErrors) {
  v1::GradientRequest request = Good();
  SetDoubles({kNan, INFINITY, 0.5}, {3, 1}, Initial(request));
  SetDoubles({-INFINITY}, {}, *request.mutable_spec()->mutable_params(0)->mutable_tensor());
  const auto prepared = Prepare(request, cache_, {});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->nonfinite_inputs.state_nan, 1);
  EXPECT_EQ(prepared->nonfinite_inputs.state_inf, 1);
  EXPECT_EQ(prepared->nonfinite_inputs.other_inf, 1);
}

TEST_F(RequestValidation, ARolloutRefusesWhatOnlyAGradientHasUseFor) {
  v1::RolloutRequest request = BallRollout(5, 3);
  ASSERT_TRUE(Prepare(request, cache_, {}).ok());
  request.mutable_spec()->set_checkpoint_interval(2);
  EXPECT_EQ(sim::FieldOf(Prepare(request, cache_, {}).status()), "spec.checkpoint_interval");
}

// ADR 0024: a policy is one whole, and inputs are those of the world.
TEST_F(RequestValidation, APolicyOfGradientsAndAllInputsOfAWorldFitARolloutToo) {
  v1::RolloutRequest request = BallRollout(5, 3);
  request.mutable_spec()->mutable_policy()->mutable_loss_scale()->set_fixed(8);
  AddTensor(request.mutable_spec()->mutable_data(), "target", {0.0}, {1});
  EXPECT_TRUE(Prepare(request, cache_, {}).ok()) << Prepare(request, cache_, {}).status();
}

TEST_F(RequestValidation, AnInputThatTheObjectiveDoesNotReadMayBeLeftOut) {
  v1::GradientRequest request = Good();
  request.mutable_spec()->set_objective("target_height");
  EXPECT_FALSE(Prepare(request, cache_, {}).ok());
  AddTensor(request.mutable_spec()->mutable_data(), "target", {0.0}, {1});
  EXPECT_TRUE(Prepare(request, cache_, {}).ok());
}

TEST_F(RequestValidation, TheRankSaysWhatIsPerInstance) {
  v1::GradientRequest request = Good();
  AddTensor(request.mutable_spec()->mutable_controls(), "u", std::vector<double>(15, 0.0),
            {3, 5, 1});
  request.mutable_spec()->mutable_controls(0)->set_per_step(true);
  const auto prepared = Prepare(request, cache_, {});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->work.batch.instances, 3);
  const auto& inputs = prepared->work.batch.program->program.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const sim::Binding& binding = prepared->work.batch.inputs[i];
    if (inputs[i].name == "u") {
      EXPECT_TRUE(binding.per_instance && binding.per_step);
    }
    if (inputs[i].kind == sim::InputKind::kState) {
      EXPECT_EQ(binding.per_instance, inputs[i].name == "y");
    }
    if (inputs[i].name == "k") {
      EXPECT_FALSE(binding.per_instance);
    }
  }
}

TEST_F(RequestValidation, LoweringTwiceHitsTheCacheAndAnotherPolicyMisses) {
  std::vector<conversion::ProgramCache::Lookup> seen;
  conversion::ProgramCache cache({}, [&](auto lookup) { seen.push_back(lookup); });
  using enum conversion::ProgramCache::Lookup;
  v1::GradientRequest request = Good();
  const auto first = Prepare(request, cache, {});
  request.mutable_spec()->set_steps(9);  // no part of the program
  const auto second = Prepare(request, cache, {});
  EXPECT_EQ(first->program, second->program);
  request.mutable_spec()->mutable_policy()->set_preset("f16_safe");
  const auto third = Prepare(request, cache, {});
  EXPECT_NE(first->program->program->fingerprint, third->program->program->fingerprint);
  request.mutable_spec()->mutable_policy()->set_preset("f15");
  EXPECT_FALSE(Prepare(request, cache, {}).ok());
  EXPECT_EQ(seen, (std::vector{kMiss, kHit, kMiss, kFailed}));
}

TEST_F(RequestValidation, DescribeNamesItsOwnFields) {
  v1::DescribeProgramRequest request;
  request.mutable_world()->set_name("moon");
  EXPECT_EQ(sim::FieldOf(conversion::DescribeProgram(request, cache_).status()), "world.name");
  request.mutable_world()->set_name("bouncing_ball");
  request.set_adjoint(true);
  EXPECT_EQ(sim::FieldOf(conversion::DescribeProgram(request, cache_).status()), "objective");
  request.set_objective("fame");
  EXPECT_EQ(sim::FieldOf(conversion::DescribeProgram(request, cache_).status()), "objective");
  request.set_objective("final_height");
  request.mutable_policy()->add_sites()->set_site("moon");
  request.mutable_policy()->mutable_sites(0)->mutable_setting()->set_order("exact");
  EXPECT_EQ(sim::FieldOf(conversion::DescribeProgram(request, cache_).status()),
            "policy.sites[0].site");
  request.clear_policy();
  request.mutable_cuda()->set_mapping(static_cast<v1::CudaMapping>(7));
  EXPECT_EQ(sim::FieldOf(conversion::DescribeProgram(request, cache_).status()), "cuda.mapping");
  request.mutable_cuda()->clear_mapping();
  for (const char* name : {"u", "k"}) request.mutable_cuda()->add_per_step(name);
  EXPECT_EQ(sim::FieldOf(conversion::DescribeProgram(request, cache_).status()),
            "cuda.per_step[1]");
  request.mutable_cuda()->set_per_step(1, "u");
  EXPECT_EQ(sim::FieldOf(conversion::DescribeProgram(request, cache_).status()),
            "cuda.per_step[1]");
}

TEST_F(RequestValidation, DescribeNamesWhatIsWrongWithAnAdjoint) {
  v1::DescribeProgramRequest good;
  good.mutable_world()->set_name("bouncing_ball");
  good.set_adjoint(true);
  good.add_cotangent_final_state("y");
  EXPECT_TRUE(conversion::DescribeProgram(good, cache_).ok());
  const auto field_of = [&](const std::function<void(v1::DescribeProgramRequest&)>& spoil) {
    v1::DescribeProgramRequest request = good;
    spoil(request);
    return sim::FieldOf(conversion::DescribeProgram(request, cache_).status());
  };
  EXPECT_EQ(field_of([](auto& r) { r.clear_cotangent_final_state(); }), "objective");
  EXPECT_EQ(field_of([](auto& r) { r.set_adjoint(false); }), "cotangent_final_state");
  EXPECT_EQ(field_of([](auto& r) { r.add_cotangent_final_state("penetration"); }),
            "cotangent_final_state[1]");
  EXPECT_EQ(field_of([](auto& r) { r.add_cotangent_final_state("y"); }),
            "cotangent_final_state[1]");
  EXPECT_EQ(field_of([](auto& r) { r.add_cotangent_trajectory("w"); }), "cotangent_trajectory[0]");
  EXPECT_EQ(field_of([](auto& r) { r.add_wrt()->set_name("k"); }), "wrt[0].kind");
  EXPECT_EQ(field_of([](auto& r) {
              r.add_wrt()->set_name("k");
              r.mutable_wrt(0)->set_kind(static_cast<v1::InputKind>(99));
            }),
            "wrt[0].kind");
  EXPECT_EQ(field_of([](auto& r) {
              r.set_adjoint(false);
              r.clear_cotangent_final_state();
              r.add_wrt()->set_name("k");
            }),
            "wrt");
  EXPECT_EQ(field_of([](auto& r) { r.add_loops()->set_truncated(1); }), "loops[0].site");
}

TEST_F(RequestValidation, TheMemoryOfAnAnswerHasRoomForTheTextThatIsAskedFor) {
  v1::GradientRequest request = Good();
  const auto without = Prepare(request, cache_, {});
  ASSERT_TRUE(without.ok()) << without.status();
  request.mutable_spec()->set_program(v1::PROGRAM_DETAIL_TEXT);
  const auto with = Prepare(request, cache_, {});
  ASSERT_TRUE(with.ok()) << with.status();
  const auto text = static_cast<int64_t>(with->program->program->text.size());
  EXPECT_EQ(without->program, with->program);  // one lowered program for both
  EXPECT_EQ(with->memory_bytes - without->memory_bytes, 2 * text);
}

TEST_F(RequestValidation, TheTextOfKernelsComesInTheMappingThatWasAskedForWithItsNumbers) {
  v1::DescribeProgramRequest request;
  request.mutable_world()->set_name("bouncing_ball");
  auto& config = *request.mutable_world()->mutable_config();
  config["elements"].set_number(9);
  config["tol"].set_number(0.0078125);
  const auto without = conversion::DescribeProgram(request, cache_);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(without->has_cuda());
  for (const auto& [asked, given] :
       {std::pair{v1::CUDA_MAPPING_UNSPECIFIED, v1::CUDA_MAPPING_THREAD_PER_INSTANCE},
        std::pair{v1::CUDA_MAPPING_THREAD_PER_INSTANCE, v1::CUDA_MAPPING_THREAD_PER_INSTANCE},
        std::pair{v1::CUDA_MAPPING_BLOCK_PER_INSTANCE, v1::CUDA_MAPPING_BLOCK_PER_INSTANCE}}) {
    request.mutable_cuda()->set_mapping(asked);
    const auto answer = conversion::DescribeProgram(request, cache_);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->cuda().mapping(), given);
    EXPECT_EQ(answer->cuda().text().rfind("// bouncing_ball: ", 0), 0u);
    const auto& numbers = answer->cuda().numbers();
    EXPECT_NE(std::find(numbers.begin(), numbers.end(), 0.0078125), numbers.end());
  }
}

}  // namespace
}  // namespace simgrad::server::service
