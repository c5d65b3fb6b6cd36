// The counts of what rounding did inside operations, as an answer tells them, through a real channel.
#include <algorithm>
#include <set>
#include <string>

#include "tests/server/deterministic_bytes.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

using Rows = google::protobuf::RepeatedPtrField<v1::Arithmetic>;

constexpr int64_t kSteps = 60, kInstances = 6;

v1::GradientRequest Work(int32_t instances, const char* preset = "f16_unsafe") {
  v1::GradientRequest request = BallGradient(kSteps, kInstances);
  request.mutable_spec()->mutable_policy()->set_preset(preset);
  request.mutable_spec()->mutable_diagnostics()->set_arithmetic_instances(instances);
  request.mutable_spec()->mutable_diagnostics()->set_stride(1);
  return request;
}

uint64_t Lost(const v1::Arithmetic& row) {
  return row.underflows() + row.overflows() + row.absorbed();
}

v1::GradientResult ResultOf(const Answer<v1::GradientPart>& answer) {
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  return answer.status.ok() ? answer.result() : v1::GradientResult();
}

std::string Bits(const Rows& rows) {
  std::string bits;
  for (const v1::Arithmetic& row : rows) bits += DeterministicBytes(row) + ";";
  return bits;
}

// Roles, each of them once, then operations, those that lost most first.
void ExpectInOrder(const Rows& rows) {
  std::set<std::string> roles;
  std::map<std::string, uint64_t> of_roles, of_operations;
  uint64_t before = 0;
  for (const v1::Arithmetic& row : rows) {
    if (row.operation().empty()) {
      EXPECT_TRUE(of_operations.empty());
      EXPECT_TRUE(roles.insert(row.role()).second);
      EXPECT_GT(row.results(), 0u);
      of_roles[row.role()] = Lost(row);
      continue;
    }
    if (!of_operations.empty()) {
      EXPECT_LE(Lost(row), before);
    }
    before = Lost(row);
    of_operations[row.role()] += Lost(row);
    EXPECT_LE(row.underflows() + row.overflows(), row.results() + row.additions());
    EXPECT_LE(row.absorbed(), row.additions());
  }
  // Few enough that all are told.
  for (const auto& [role, lost] : of_roles) EXPECT_EQ(of_operations[role], lost) << role;
}

TEST(ArithmeticAnswer, TellsBothPasses) {
  RunningServer server;
  const v1::GradientResult result = ResultOf(Ask(server, Work(kInstances)));
  ASSERT_FALSE(result.arithmetic().empty());
  ASSERT_FALSE(result.rollout().arithmetic().empty());
  ExpectInOrder(result.rollout().arithmetic());
  ExpectInOrder(result.arithmetic());
  EXPECT_GT(result.rollout().phase_seconds().at("arithmetic"), 0.0);
  const auto losing = [](const Rows& rows) {
    return std::any_of(rows.begin(), rows.end(), [](const auto& row) { return Lost(row) > 0; });
  };
  EXPECT_TRUE(losing(result.rollout().arithmetic()));
  EXPECT_TRUE(losing(result.arithmetic()));
}

TEST(ArithmeticAnswer, ChangesNothingElse) {
  RunningServer server;
  v1::GradientResult asked = ResultOf(Ask(server, Work(2)));
  v1::GradientResult unasked = ResultOf(Ask(server, Work(0)));
  EXPECT_TRUE(unasked.arithmetic().empty());
  EXPECT_TRUE(unasked.rollout().arithmetic().empty());
  for (v1::GradientResult* result : {&asked, &unasked}) {
    result->clear_arithmetic();
    result->mutable_rollout()->clear_arithmetic();
    result->mutable_rollout()->clear_phase_seconds();
  }
  EXPECT_EQ(DeterministicBytes(asked), DeterministicBytes(unasked));
}

// Two instances are the first two, however many there are; more than there are, all.
TEST(ArithmeticAnswer, IsOfTheFirstInstances) {
  RunningServer server;
  const auto of = [&](int32_t counted, int64_t instances) {
    v1::GradientRequest request = Work(counted);
    if (instances < kInstances) {
      v1::Tensor* y = request.mutable_spec()->mutable_initial(0)->mutable_tensor();
      y->set_shape(0, instances);
      y->set_inline_(y->inline_().substr(0, static_cast<size_t>(8 * instances)));
    }
    const v1::GradientResult result = ResultOf(Ask(server, request));
    return Bits(result.rollout().arithmetic()) + "/" + Bits(result.arithmetic());
  };
  EXPECT_EQ(of(2, kInstances), of(kInstances, 2));
  EXPECT_EQ(of(1024, kInstances), of(kInstances, kInstances));
  EXPECT_NE(of(2, kInstances), of(3, kInstances));
}

TEST(ArithmeticAnswer, AVjpTellsItsReversal) {
  RunningServer server;
  const v1::GradientRequest gradient = Work(kInstances);
  const v1::GradientResult whole = ResultOf(Ask(server, gradient));
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = gradient.spec();
  rollout.mutable_keep();
  const auto kept = Ask(server, rollout);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  EXPECT_EQ(Bits(kept.result().arithmetic()), Bits(whole.rollout().arithmetic()));
  v1::VjpRequest request;
  request.set_handle(kept.result().kept().handle());
  grpc::ClientContext context;
  PartReader<v1::GradientResponse> reader(server.stub().Vjp(&context, request));
  v1::GradientResult reversed;
  for (v1::GradientPart part; reader.Read(&part);) {
    if (part.has_result()) reversed = part.result();
  }
  ASSERT_TRUE(reader.Finish().ok());
  EXPECT_TRUE(reversed.rollout().arithmetic().empty());
  EXPECT_EQ(Bits(reversed.arithmetic()), Bits(whole.arithmetic()));
}

TEST(ArithmeticAnswer, MovesItsMetrics) {
  RunningServer server;
  const v1::GradientResult result = ResultOf(Ask(server, Work(3)));
  std::map<std::string, v1::Arithmetic> roles;  // of both passes
  for (const Rows* rows : {&result.rollout().arithmetic(), &result.arithmetic()}) {
    for (const v1::Arithmetic& row : *rows) {
      if (!row.operation().empty()) continue;
      v1::Arithmetic& sum = roles[row.role()];
      sum.set_results(sum.results() + row.results());
      sum.set_additions(sum.additions() + row.additions());
      sum.set_underflows(sum.underflows() + row.underflows());
      sum.set_overflows(sum.overflows() + row.overflows());
      sum.set_absorbed(sum.absorbed() + row.absorbed());
    }
  }
  const auto series = server.Series();
  for (const auto& [role, sum] : roles) {
    const auto at = [&](const std::string& name) {
      return static_cast<uint64_t>(
          series.at("simgrad_arithmetic_" + name + "role=\"" + role + "\"}"));
    };
    EXPECT_EQ(at("results_total{"), sum.results());
    EXPECT_EQ(at("additions_total{"), sum.additions());
    EXPECT_EQ(at("losses_total{loss=\"underflow\","), sum.underflows());
    EXPECT_EQ(at("losses_total{loss=\"overflow\","), sum.overflows());
    EXPECT_EQ(at("losses_total{loss=\"absorbed\","), sum.absorbed());
  }
}

TEST(ArithmeticAnswer, RefusesTooMany) {
  RunningServer server;
  for (const int32_t instances : {-1, 1025}) {
    const auto answer = Ask(server, Work(instances));
    const Details details = DetailsOf(answer.status);
    ASSERT_EQ(details.bad_request.field_violations_size(), 1) << instances;
    EXPECT_EQ(details.bad_request.field_violations(0).field(),
              "spec.diagnostics.arithmetic_instances");
    EXPECT_NE(answer.status.error_message().find("1024"), std::string::npos)
        << answer.status.error_message();
  }
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.limits().max_arithmetic_instances(), 1024);
}

// The run takes milliseconds, its replays minutes.
TEST(ArithmeticAnswer, ADeadlineEndsTheReplay) {
  RunningServer server;
  v1::GradientRequest request = BallGradient(20'000, 1000);
  request.mutable_spec()->mutable_diagnostics()->set_arithmetic_instances(1000);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(4));
  auto reader = server.Gradient(&context, request);
  for (v1::GradientPart part; reader->Read(&part);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(AllGivenBack(server));
}

}  // namespace
}  // namespace simgrad::server
