// Rollouts that are kept, and their reversals, through a real channel.
#include <algorithm>
#include <cstring>
#include <fstream>

#include "tests/server/deterministic_bytes.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

using Asked = std::function<void(grpc::ClientContext&)>;

Answer<v1::GradientPart> Vjp(
    RunningServer& server, const v1::VjpRequest& request,
    const Asked& how = [](grpc::ClientContext&) {}) {
  Answer<v1::GradientPart> answer;
  grpc::ClientContext context;
  how(context);
  PartReader<v1::GradientResponse> reader(server.stub().Vjp(&context, request));
  for (v1::GradientPart part; reader.Read(&part);) answer.parts.push_back(part);
  answer.status = reader.Finish();
  return answer;
}

std::vector<v1::GradientResult> ResultsOf(const Answer<v1::GradientPart>& answer) {
  std::vector<v1::GradientResult> results;
  for (const v1::GradientPart& part : answer.parts) {
    if (part.has_result()) results.push_back(part.result());
  }
  return results;
}

// What a Vjp and a Gradient both say, but for how long it took.
std::string BitsOf(v1::GradientResult result) {
  v1::RolloutResult& rollout = *result.mutable_rollout();
  rollout.clear_phase_seconds();
  rollout.clear_final_state();
  rollout.clear_path_signatures();
  rollout.clear_first_events();
  result.clear_reused();
  return DeterministicBytes(result);
}

constexpr int64_t kInstances = 8;

// The cotangents of final y and of the trajectory of v, that differ by `seed`.
v1::Cotangent SomeCotangent(int64_t steps, int seed) {
  const auto numbers = [&](int64_t count) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(0.25 * static_cast<double>((7 * i + 3 * seed) % 11) - 1.0);
    }
    return values;
  };
  v1::Cotangent cotangent;
  AddTensor(cotangent.mutable_final_state(), "y", numbers(kInstances), {kInstances, 1});
  AddTensor(cotangent.mutable_trajectory(), "v", numbers(kInstances * (steps + 1)),
            {kInstances, steps + 1, 1});
  return cotangent;
}

v1::RolloutRequest KeptRollout(int64_t steps, int64_t instances = kInstances) {
  v1::RolloutRequest request;
  *request.mutable_spec() = BallGradient(steps, instances).spec();
  request.mutable_keep()->add_cotangent_final_state("y");
  request.mutable_keep()->add_cotangent_trajectory("v");
  return request;
}

std::string HandleOf(const Answer<v1::RolloutPart>& answer) {
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  if (!answer.status.ok()) return "";
  EXPECT_TRUE(answer.result().has_kept());
  return answer.result().kept().handle();
}

v1::VjpRequest ObjectiveOf(const std::string& handle) {
  v1::VjpRequest request;
  request.set_handle(handle);
  return request;
}

void ExpectGone(const grpc::Status& status) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
  const Details details = DetailsOf(status);
  EXPECT_EQ(details.info.reason(), "TAPE_GONE");
  ASSERT_EQ(details.bad_request.field_violations_size(), 1);
  EXPECT_EQ(details.bad_request.field_violations(0).field(), "handle");
}

TEST(KeptRollout, AVjpHasTheBitsOfTheGradientAndDoesNotSimulateAgain) {
  constexpr int64_t kSteps = 60;
  for (const char* preset : {"f64", "bf16_safe"}) {
    SCOPED_TRACE(preset);
    RunningServer server;
    v1::RolloutRequest rollout = KeptRollout(kSteps);
    rollout.mutable_spec()->mutable_policy()->set_preset(preset);
    const auto kept = Ask(server, rollout);
    const std::string handle = HandleOf(kept);
    EXPECT_GT(kept.result().kept().seconds(), 0);
    const double forward_steps = server.Series().at("simgrad_steps_total{direction=\"forward\"}");

    v1::VjpRequest vjp = ObjectiveOf(handle);
    for (int seed = 0; seed < 3; ++seed) *vjp.add_cotangents() = SomeCotangent(kSteps, seed);
    for (int64_t i = 0; i < kInstances; ++i) vjp.add_weights(0.5 + static_cast<double>(i));
    const auto answer = Vjp(server, vjp);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    const auto series = server.Series();
    EXPECT_EQ(series.at("simgrad_steps_total{direction=\"forward\"}"), forward_steps);
    EXPECT_EQ(series.at("simgrad_batch_instances_count{direction=\"forward\"}"), 1);
    EXPECT_EQ(series.at("simgrad_batch_instances_count{direction=\"adjoint\"}"), 1);
    const auto results = ResultsOf(answer);
    ASSERT_EQ(results.size(), 3u);
    for (int seed = 0; seed < 3; ++seed) {
      v1::GradientRequest gradient;
      *gradient.mutable_spec() = rollout.spec();
      *gradient.add_cotangents() = SomeCotangent(kSteps, seed);
      *gradient.mutable_weights() = vjp.weights();
      const auto expected = Ask(server, gradient);
      ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
      EXPECT_TRUE(results[seed].reused());
      EXPECT_EQ(BitsOf(results[seed]), BitsOf(expected.result())) << seed;
    }
    EXPECT_NE(BitsOf(results[0]), BitsOf(results[1]));
  }
}

// What its rollout told is not counted again for each cotangent.
TEST(KeptRollout, AVjpCountsWhatItsReversalDid) {
  RunningServer server;
  v1::RolloutRequest rollout = KeptRollout(3);
  rollout.mutable_spec()->mutable_policy()->set_preset("f16_unsafe");
  // Beyond 65504 within a step.
  AddTensor(rollout.mutable_spec()->mutable_params(), "g", {60000.0}, {});
  AddTensor(rollout.mutable_spec()->mutable_params(), "h", {4.0}, {});
  const std::string handle = HandleOf(Ask(server, rollout));
  const auto before = server.Series();
  const std::vector<std::string> told = {
      R"(simgrad_nonfinite_instances_total{action="reported",phase="forward"})",
      R"(simgrad_nonfinite_first_step_count{phase="forward"})",
      R"(simgrad_nonfinite_values_total{kind="inf",phase="forward",role="state"})",
      R"(simgrad_phase_duration_seconds_count{phase="forward"})"};
  EXPECT_EQ(before.at(told[0]), kInstances);
  v1::VjpRequest vjp = ObjectiveOf(handle);
  for (int seed = 0; seed < 3; ++seed) *vjp.add_cotangents() = SomeCotangent(3, seed);
  ASSERT_TRUE(Vjp(server, vjp).status.ok());
  const std::string world = R"(,world="bouncing_ball")";
  const std::string ended = R"(simgrad_rollouts_total{mode="vjp",outcome="ok")" + world + "}";
  EXPECT_TRUE(Eventually([&] { return server.Series().at(ended) == 1; }));
  const auto after = server.Series();
  for (const std::string& series : told) EXPECT_EQ(after.at(series), before.at(series)) << series;
  EXPECT_EQ(after.at(R"(simgrad_instances_total{mode="vjp")" + world + "}"), 3 * kInstances);
  EXPECT_EQ(after.at(R"(simgrad_instances_total{mode="gradient")" + world + "}"), 0);
  EXPECT_EQ(after.at(R"(simgrad_phase_duration_seconds_count{phase="adjoint"})"), 3);
}

TEST(KeptRollout, KeepingChangesNoBitOfTheRollout) {
  RunningServer server;
  v1::RolloutRequest request = KeptRollout(40);
  request.mutable_spec()->add_record("y");
  const auto kept = Ask(server, request);
  request.clear_keep();
  const auto plain = Ask(server, request);
  ASSERT_TRUE(kept.status.ok() && plain.status.ok());
  v1::RolloutResult one = kept.result(), other = plain.result();
  EXPECT_FALSE(other.has_kept());
  one.clear_kept();
  one.clear_phase_seconds();
  other.clear_phase_seconds();
  EXPECT_EQ(DeterministicBytes(one), DeterministicBytes(other));
  EXPECT_EQ(kept.trajectory("y"), plain.trajectory("y"));
}

TEST(KeptRollout, AnotherAdjointThanTheOneKeptForHasTheBitsOfItsGradient) {
  RunningServer server;
  const v1::RolloutRequest rollout = KeptRollout(30);
  v1::VjpRequest vjp = ObjectiveOf(HandleOf(Ask(server, rollout)));
  vjp.add_wrt()->set_kind(v1::INPUT_KIND_PARAM);
  vjp.mutable_wrt(0)->set_name("k");
  v1::GradientRequest gradient;
  *gradient.mutable_spec() = rollout.spec();
  *gradient.mutable_wrt() = vjp.wrt();
  const auto answer = Vjp(server, vjp);
  const auto expected = Ask(server, gradient);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
  v1::GradientResult result = answer.result();
  EXPECT_EQ(result.gradients_size(), 1);
  EXPECT_EQ(BitsOf(result), BitsOf(expected.result()));
}

TEST(KeptRollout, AHandleThatWasNeverGivenIsGone) {
  RunningServer server;
  const std::string handle = HandleOf(Ask(server, KeptRollout(5)));
  std::string other = handle;
  other.back() = other.back() == '0' ? '1' : '0';
  ExpectGone(Vjp(server, ObjectiveOf(other)).status);
  ExpectGone(Vjp(server, ObjectiveOf("")).status);
  EXPECT_TRUE(Vjp(server, ObjectiveOf(handle)).status.ok());
}

TEST(KeptRollout, AnotherCallerIsToldWhatAnUnknownHandleIsTold) {
  const std::string path = testing::TempDir() + "/kept_" + std::to_string(getpid());
  std::ofstream(path) << "ada-token name=ada\neve-token name=eve\n";
  config::ServerConfig config = FreePorts();
  config.token_file = path;
  RunningServer server(config);
  const auto as = [](const std::string& who) {
    return [who](grpc::ClientContext& context) {
      context.AddMetadata("authorization", "Bearer " + who + "-token");
    };
  };
  Answer<v1::RolloutPart> kept;
  grpc::ClientContext context;
  as("ada")(context);
  const auto reader = server.Rollout(&context, KeptRollout(5));
  for (v1::RolloutPart part; reader->Read(&part);) kept.parts.push_back(part);
  kept.status = reader->Finish();
  const v1::VjpRequest request = ObjectiveOf(HandleOf(kept));
  const grpc::Status stranger = Vjp(server, request, as("eve")).status;
  ExpectGone(stranger);
  EXPECT_EQ(stranger.error_message(),
            Vjp(server, ObjectiveOf("nothing"), as("eve")).status.error_message());
  EXPECT_TRUE(Vjp(server, request, as("ada")).status.ok());
  std::remove(path.c_str());
}

TEST(KeptRollout, WhatDoesNotFitIsNotKeptAndTheLeastRecentlyUsedGoesForANewerOne) {
  config::ServerConfig config = FreePorts();
  config.kept_run_bytes = 1;
  RunningServer none(config);
  const auto plain = Ask(none, KeptRollout(5));
  ASSERT_TRUE(plain.status.ok()) << plain.status.error_message();
  EXPECT_FALSE(plain.result().has_kept());

  // The second rollout shares the program of the first.
  RunningServer measured;
  const auto bytes = [&] { return measured.Series().at("simgrad_tape_bytes{tier=\"host\"}"); };
  HandleOf(Ask(measured, KeptRollout(5)));
  const double one = bytes();
  HandleOf(Ask(measured, KeptRollout(5)));
  const double another = bytes() - one;
  EXPECT_LT(another, one);
  config.kept_run_bytes = static_cast<int64_t>(one + 1.5 * another);
  RunningServer two(config);
  std::vector<std::string> handles;
  for (int i = 0; i < 2; ++i) handles.push_back(HandleOf(Ask(two, KeptRollout(5))));
  EXPECT_TRUE(Vjp(two, ObjectiveOf(handles[0])).status.ok());
  handles.push_back(HandleOf(Ask(two, KeptRollout(5))));
  EXPECT_TRUE(Vjp(two, ObjectiveOf(handles[0])).status.ok());
  ExpectGone(Vjp(two, ObjectiveOf(handles[1])).status);
  EXPECT_EQ(two.Series().at("simgrad_tape_evictions_total{reason=\"limit\"}"), 1);
  const auto series = two.Series();
  EXPECT_NEAR(series.at("simgrad_tape_bytes{tier=\"host\"}"), one + another, 0.1 * another);
  EXPECT_EQ(series.at("simgrad_tape_limit_bytes{tier=\"host\"}"), config.kept_run_bytes);
}

TEST(KeptRollout, WorkThatNeedsTheMemoryGetsIt) {
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = int64_t{64} << 20;
  config.kept_run_bytes = config.memory_limit_bytes;
  RunningServer server(config);
  const std::string released = "simgrad_tape_evictions_total{reason=\"released\"}";
  const auto kept_bytes = [&] {
    return server.Series().at("simgrad_memory_reserved_bytes{use=\"kept\"}");
  };
  for (int i = 0; i < 500 && kept_bytes() < (40 << 20); ++i) {
    HandleOf(Ask(server, KeptRollout(50, 500)));
  }
  ASSERT_GE(kept_bytes(), 40 << 20);
  const double before = server.Series().at(released);
  const auto large = Ask(server, BallRollout(50, 60'000));
  EXPECT_TRUE(large.status.ok()) << large.status.error_message();
  EXPECT_GT(server.Series().at(released), before);
  EXPECT_LT(kept_bytes(), 40 << 20);
}

TEST(KeptRollout, AKeptRunExpiresAndGivesItsMemoryBack) {
  config::ServerConfig config = FreePorts();
  config.kept_run_ttl = absl::Milliseconds(50);
  RunningServer server(config);
  const std::string handle = HandleOf(Ask(server, KeptRollout(5)));
  ASSERT_TRUE(Eventually(
      [&] { return server.Series().at("simgrad_tape_evictions_total{reason=\"ttl\"}") == 1; }));
  ExpectGone(Vjp(server, ObjectiveOf(handle)).status);
  EXPECT_EQ(server.Series().at("simgrad_memory_reserved_bytes{use=\"kept\"}"), 0);
}

TEST(KeptRollout, ACancelledVjpLeavesTheRunForTheNext) {
  RunningServer server;
  v1::RolloutRequest rollout = KeptRollout(2000, 64);
  const std::string handle = HandleOf(Ask(server, rollout));
  v1::VjpRequest many = ObjectiveOf(handle);
  for (int i = 0; i < 200; ++i) {
    AddTensor(many.add_cotangents()->mutable_final_state(), "y", {1.0}, {1});
  }
  for (v1::Cotangent& each : *many.mutable_cotangents()) {
    SetDoubles(std::vector<double>(64, 1.0), {64, 1},
               *each.mutable_final_state(0)->mutable_tensor());
  }
  grpc::ClientContext context;
  PartReader<v1::GradientResponse> reader(server.stub().Vjp(&context, many));
  v1::GradientPart part;
  ASSERT_TRUE(reader.Read(&part));
  EXPECT_TRUE(part.has_header());
  context.TryCancel();
  int results = 0;
  while (reader.Read(&part)) results += part.has_result() ? 1 : 0;
  EXPECT_EQ(reader.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_LT(results, 200);

  const grpc::Status late =
      Vjp(server, many, [](grpc::ClientContext& late_context) {
        late_context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
      }).status;
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Vjp(server, ObjectiveOf(handle)).status.ok());
  EXPECT_TRUE(Eventually(
      [&] { return server.Series().at("simgrad_memory_reserved_bytes{use=\"work\"}") == 0; }));
}

TEST(KeptRollout, WhatIsWrongIsNamedByItsField) {
  RunningServer server;
  const auto field_of = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    const Details details = DetailsOf(status);
    return details.bad_request.field_violations_size() == 0
               ? ""
               : details.bad_request.field_violations(0).field();
  };
  v1::RolloutRequest rollout = KeptRollout(5);
  rollout.mutable_keep()->add_cotangent_final_state("nothing");
  EXPECT_EQ(field_of(Ask(server, rollout).status), "keep.cotangent_final_state[1]");
  rollout = KeptRollout(5);
  rollout.mutable_keep()->add_wrt()->set_name("nothing");
  EXPECT_EQ(field_of(Ask(server, rollout).status).rfind("keep.wrt[0]", 0), 0u);

  const std::string handle = HandleOf(Ask(server, KeptRollout(5)));
  v1::VjpRequest vjp = ObjectiveOf(handle);
  *vjp.add_cotangents() = SomeCotangent(5, 0);
  *vjp.add_cotangents() = SomeCotangent(4, 1);
  EXPECT_EQ(field_of(Vjp(server, vjp).status).rfind("cotangents[1].trajectory[0]", 0), 0u);
  *vjp.mutable_cotangents(1) = SomeCotangent(5, 1);
  vjp.mutable_cotangents(1)->clear_trajectory();
  EXPECT_EQ(field_of(Vjp(server, vjp).status), "cotangents[1]");
  vjp = ObjectiveOf(handle);
  vjp.add_weights(1.0);
  EXPECT_EQ(field_of(Vjp(server, vjp).status), "weights");

  rollout = KeptRollout(5);
  rollout.mutable_spec()->clear_objective();
  EXPECT_EQ(field_of(Vjp(server, ObjectiveOf(HandleOf(Ask(server, rollout)))).status),
            "cotangents");
}

TEST(KeptRollout, ADrainingServerTakesNoVjp) {
  RunningServer server;
  const std::string handle = HandleOf(Ask(server, KeptRollout(5)));
  server.server().Drain(absl::ZeroDuration());
  EXPECT_EQ(Vjp(server, ObjectiveOf(handle)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace simgrad::server
