// One piece of work in several variants, through a real channel.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "server/conversion/run_comparison.h"
#include "server/service/variants.h"
#include "tests/server/deterministic_bytes.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

using Parts = Answer<v1::ComparePart>;

Parts Compare(RunningServer& server, const v1::CompareRequest& request) {
  Parts answer;
  grpc::ClientContext context;
  PartReader<v1::CompareResponse> reader(server.stub().Compare(&context, request));
  for (v1::ComparePart part; reader.Read(&part);) answer.parts.push_back(part);
  answer.status = reader.Finish();
  return answer;
}

// The parts of each run, from its header on.
std::vector<Parts> RunsOf(const Parts& answer) {
  std::vector<Parts> runs;
  for (const v1::ComparePart& part : answer.parts) {
    if (part.has_header()) runs.emplace_back();
    runs.back().parts.push_back(part);
  }
  return runs;
}

std::vector<v1::Comparison> ComparisonsOf(const Parts& answer) {
  std::vector<v1::Comparison> found;
  for (const v1::ComparePart& part : answer.parts) {
    if (part.has_comparison()) found.push_back(part.comparison());
  }
  return found;
}

// What differs from call to call.
template <class Message>
std::string Bits(Message result) {
  if constexpr (std::is_same_v<Message, v1::GradientResult>) {
    result.mutable_rollout()->clear_phase_seconds();
  } else {
    result.clear_phase_seconds();
  }
  return DeterministicBytes(result);
}

template <class Run>
std::string BlocksOf(const Run& run) {
  // However the steps were cut into messages.
  v1::DiagnosticsBlock all;
  for (v1::DiagnosticsBlock block : run.blocks()) {
    block.clear_first_step();
    const int64_t steps = all.steps() + block.steps();
    all.MergeFrom(block);
    all.set_steps(steps);
  }
  std::string counts;
  for (const v1::TerminationColumns& site : all.terminations()) {
    counts += site.site() + ":";
    for (const uint64_t runs : site.runs()) counts += std::to_string(runs) + ",";
    for (const double margin : site.margin_ulps()) counts += std::to_string(margin) + ",";
  }
  return counts + std::to_string(all.steps());
}

v1::Policy Preset(const char* name) {
  v1::Policy policy;
  policy.set_preset(name);
  return policy;
}

template <class T>
std::vector<T> NumbersOf(const std::string& bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

constexpr int64_t kSteps = 60, kInstances = 12;

v1::CompareRequest Work() {
  v1::CompareRequest request;
  *request.mutable_gradient() = BallGradient(kSteps, kInstances);
  request.mutable_gradient()->mutable_spec()->add_record("y");
  *request.mutable_gradient()->mutable_spec()->mutable_policy() = Preset("f64");
  return request;
}

void ExpectField(const grpc::Status& status, const std::string& field, const std::string& text) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  const Details details = DetailsOf(status);
  ASSERT_EQ(details.bad_request.field_violations_size(), 1);
  EXPECT_EQ(details.bad_request.field_violations(0).field(), field);
  EXPECT_NE(status.error_message().find(text), std::string::npos) << status.error_message();
}

TEST(Compare, EachRunHasTheBitsOfACallOfItsOwn) {
  RunningServer server;
  v1::CompareRequest request = Work();
  *request.add_variants()->mutable_policy() = Preset("bf16_unsafe");
  request.add_variants()->set_steps(7);
  v1::Variant* inputs = request.add_variants();
  AddTensor(inputs->mutable_params(), "k", {0.5}, {});  // in the place of the one of the work
  AddTensor(inputs->mutable_params(), "g", {1.0}, {});  // beside those
  v1::Variant* world = request.add_variants();
  *world->mutable_world() = request.gradient().spec().world();
  (*world->mutable_world()->mutable_config())["tol"].set_number(0.25);
  *request.add_variants()->mutable_policy() = Preset("f64");

  std::vector<v1::GradientRequest> own(6, request.gradient());
  *own[1].mutable_spec()->mutable_policy() = Preset("bf16_unsafe");
  own[2].mutable_spec()->set_steps(7);
  SetDoubles({0.5}, {}, *own[3].mutable_spec()->mutable_params(0)->mutable_tensor());
  AddTensor(own[3].mutable_spec()->mutable_params(), "g", {1.0}, {});
  *own[4].mutable_spec()->mutable_world() = world->world();

  const Parts answer = Compare(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const std::vector<Parts> runs = RunsOf(answer);
  ASSERT_EQ(runs.size(), own.size());
  std::vector<std::string> told;
  for (size_t i = 0; i < own.size(); ++i) {
    SCOPED_TRACE(i);
    own[i].mutable_spec()->mutable_path()->set_record(true);
    const auto expected = Ask(server, own[i]);
    ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
    std::optional<v1::GradientResult> result;
    for (const v1::ComparePart& part : runs[i].parts) {
      if (part.has_gradient()) result = part.gradient();
    }
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(Bits(*result), Bits(expected.result()));
    EXPECT_EQ(runs[i].trajectory("y"), expected.trajectory("y"));
    EXPECT_EQ(BlocksOf(runs[i]), BlocksOf(expected));
    EXPECT_EQ(runs[i].header().program().fingerprint(), expected.header().program().fingerprint());
    EXPECT_EQ(runs[i].trajectory("path taken"), "");  // it was not asked for
    told.push_back(Bits(*result));
  }
  EXPECT_EQ(told[5], told[0]);  // the exchange leaves the work as it was
  for (size_t i = 1; i < 5; ++i) EXPECT_NE(told[i], told[0]) << i;
  EXPECT_TRUE(AllGivenBack(server));
}

TEST(Compare, ARolloutEndsWithARolloutResult) {
  RunningServer server;
  v1::CompareRequest request;
  *request.mutable_rollout() = BallRollout(kSteps, kInstances);
  *request.add_variants()->mutable_policy() = Preset("f16_unsafe");
  const Parts answer = Compare(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  std::vector<v1::RolloutResult> results;
  for (const v1::ComparePart& part : answer.parts) {
    EXPECT_FALSE(part.has_gradient());
    if (part.has_rollout()) results.push_back(part.rollout());
  }
  ASSERT_EQ(results.size(), 2u);
  v1::RolloutRequest own = request.rollout();
  own.mutable_spec()->mutable_path()->set_record(true);
  EXPECT_EQ(Bits(results[0]), Bits(Ask(server, own).result()));
  *own.mutable_spec()->mutable_policy() = Preset("f16_unsafe");
  EXPECT_EQ(Bits(results[1]), Bits(Ask(server, own).result()));
  ASSERT_EQ(ComparisonsOf(answer).size(), 1u);
}

// Paths are sent where they are asked for; the comparison is what they say.
TEST(Compare, ForksAndFlipsAreThoseOfThePaths) {
  RunningServer server;
  v1::CompareRequest request = Work();
  request.mutable_gradient()->mutable_spec()->mutable_path()->set_record(true);
  *request.add_variants()->mutable_policy() = Preset("bf16_unsafe");
  const Parts answer = Compare(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const std::vector<Parts> runs = RunsOf(answer);
  const v1::PathLayout& layout = runs[0].header().path();
  std::vector<std::string> paths;
  for (const Parts& run : runs) {
    std::string path(static_cast<size_t>(kInstances * kSteps * layout.bytes()), '\0');
    for (const v1::ComparePart& part : run.parts) {
      const v1::TrajectoryChunk& chunk = part.trajectory();
      if (!part.has_trajectory() || chunk.name() != "path taken") continue;
      const int64_t row = chunk.times() * layout.bytes();
      for (int64_t i = 0; i < chunk.instances(); ++i) {
        const int64_t to =
            ((chunk.first_instance_index() + i) * kSteps + chunk.first_time()) * layout.bytes();
        path.replace(static_cast<size_t>(to), static_cast<size_t>(row), chunk.data(),
                     static_cast<size_t>(i * row), static_cast<size_t>(row));
      }
    }
    paths.push_back(path);
  }
  const v1::Comparison comparison = ComparisonsOf(answer).at(0);
  EXPECT_TRUE(comparison.by_path());
  EXPECT_EQ(comparison.instances(), kInstances);
  const auto steps = NumbersOf<int64_t>(comparison.first_steps());
  const auto sites = NumbersOf<int32_t>(comparison.first_sites());
  ASSERT_EQ(steps.size(), static_cast<size_t>(kInstances));
  int64_t parted = 0;
  for (int64_t i = 0; i < kInstances; ++i) {
    int64_t first = -1;
    for (int64_t t = kSteps; t-- > 0;) {
      const size_t at = static_cast<size_t>((i * kSteps + t) * layout.bytes());
      const size_t bytes = static_cast<size_t>(layout.bytes());
      if (paths[0].compare(at, bytes, paths[1], at, bytes) != 0) first = t;
    }
    EXPECT_EQ(steps[static_cast<size_t>(i)], first) << i;
    EXPECT_EQ(sites[static_cast<size_t>(i)] >= 0, first >= 0) << i;
    parted += first >= 0 ? 1 : 0;
  }
  EXPECT_EQ(comparison.parted(), parted);
  EXPECT_GT(parted, 0);
  int64_t by_site = 0;
  uint64_t flips = 0;
  for (const v1::SiteComparison& site : comparison.sites()) {
    by_site += site.parted();
    flips += site.flips();
    EXPECT_TRUE(site.has_reference_count() && site.has_variant_count()) << site.site();
  }
  EXPECT_EQ(by_site, parted);
  EXPECT_GE(flips, static_cast<uint64_t>(parted));

  const auto series = server.Series();
  EXPECT_EQ(series.at("simgrad_path_comparisons_total{result=\"diverged\"}"), parted);
  EXPECT_EQ(series.at("simgrad_path_comparisons_total{result=\"equal\"}"), kInstances - parted);
  double counted = 0;
  for (const auto& [name, value] : series) {
    if (name.starts_with("simgrad_path_flips_total")) counted += value;
  }
  EXPECT_EQ(counted, static_cast<double>(flips));
  // The last one counts once its answer was taken.
  const std::string ok =
      "simgrad_rollouts_total{mode=\"compare\",outcome=\"ok\",world=\"bouncing_ball\"}";
  EXPECT_TRUE(Eventually([&] { return server.Series().at(ok) == 2; }));
  EXPECT_EQ(series.at("simgrad_instances_total{mode=\"compare\",world=\"bouncing_ball\"}"),
            2 * kInstances);
}

TEST(Compare, WithoutPathsSignaturesAreCompared) {
  RunningServer server;
  v1::CompareRequest request = Work();
  *request.add_variants()->mutable_policy() = Preset("bf16_unsafe");
  request.add_variants()->set_steps(kSteps - 1);
  const v1::Comparison by_path = ComparisonsOf(Compare(server, request)).at(0);
  request.set_without_paths(true);
  const Parts answer = Compare(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Comparison plain = ComparisonsOf(answer).at(0);
  EXPECT_FALSE(plain.by_path());
  EXPECT_FALSE(RunsOf(answer)[0].header().has_path());
  EXPECT_EQ(plain.unlike(), "no paths were recorded");
  EXPECT_EQ(plain.parted(), by_path.parted());
  EXPECT_EQ(plain.first_steps(), "");
  EXPECT_EQ(plain.differences_size(), by_path.differences_size());
  const v1::Comparison shorter = ComparisonsOf(answer).at(1);
  EXPECT_EQ(shorter.instances(), 0);
  EXPECT_EQ(shorter.unlike(), "the run has 59 steps, the reference 60");
}

// A run of other caps has another structure of paths.
TEST(Compare, PathsOfOtherStructuresAreNotCompared) {
  RunningServer server;
  v1::CompareRequest request = Work();
  v1::Variant* world = request.add_variants();
  *world->mutable_world() = request.gradient().spec().world();
  (*world->mutable_world()->mutable_config())["max_iter"].set_number(3);
  const v1::Comparison comparison = ComparisonsOf(Compare(server, request)).at(0);
  EXPECT_FALSE(comparison.by_path());
  EXPECT_NE(comparison.unlike().find("different structures"), std::string::npos);
  EXPECT_EQ(comparison.instances(), kInstances);
}

// What does not fit into a message comes in pieces.
TEST(Compare, LargeAnswersComeInPieces) {
  config::ServerConfig config = FreePorts();
  config.max_message_bytes = config::kSmallestMessageLimit;
  RunningServer server(config);
  constexpr int64_t kMany = 40'000;
  v1::CompareRequest request;
  *request.mutable_rollout() = BallRollout(2, kMany);
  *request.mutable_rollout()->mutable_spec()->mutable_policy() = Preset("f64");
  *request.add_variants()->mutable_policy() = Preset("bf16_unsafe");
  const Parts answer = Compare(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Comparison comparison = ComparisonsOf(answer).at(0);
  std::string steps = comparison.first_steps() + answer.pieces("comparison.first_steps");
  EXPECT_EQ(steps.size(), static_cast<size_t>(8 * kMany));
  const auto numbers = NumbersOf<int64_t>(steps);
  EXPECT_EQ(std::count_if(numbers.begin(), numbers.end(), [](int64_t t) { return t >= 0; }),
            comparison.parted());
  EXPECT_NE(answer.pieces("comparison.first_steps"), "");
}

TEST(Compare, ErrorsNameTheVariantAndNothingRuns) {
  RunningServer server;
  const v1::CompareRequest work = Work();
  const auto refused = [&](const std::function<void(v1::CompareRequest&)>& spoil) {
    v1::CompareRequest request = work;
    *request.add_variants()->mutable_policy() = Preset("f32");
    request.add_variants();
    spoil(request);
    const Parts answer = Compare(server, request);
    EXPECT_TRUE(answer.parts.empty());
    return answer.status;
  };
  ExpectField(refused([](auto& r) { *r.mutable_variants(1)->mutable_policy() = Preset("f65"); }),
              "variants[1].policy.preset", "f65");
  ExpectField(refused([](auto& r) { r.mutable_variants(1)->mutable_world()->set_name("nowhere"); }),
              "variants[1].world.name", "nowhere");
  ExpectField(refused([](auto& r) { r.mutable_variants(1)->set_steps(-1); }), "variants[1].steps",
              "-1");
  // An input of the work's name stands in its place, another behind: both are told as the variant sent them.
  ExpectField(refused([](auto& r) {
                AddTensor(r.mutable_variants(1)->mutable_params(), "g", {1}, {});
                AddTensor(r.mutable_variants(1)->mutable_params(), "k", {1, 2, 3}, {3});
              }),
              "variants[1].params[1].tensor.shape", "");
  ExpectField(
      refused([](auto& r) { AddTensor(r.mutable_variants(1)->mutable_params(), "nope", {1}, {}); }),
      "variants[1].params[0].name", "nope");
  for (const char* name : {"k", "g"}) {
    ExpectField(refused([name](auto& r) {
                  for (int i = 0; i < 2; ++i) {
                    AddTensor(r.mutable_variants(1)->mutable_params(), name, {1}, {});
                  }
                }),
                "variants[1].params[1].name", "is sent twice");
  }
  // The other input is the work's.
  ExpectField(refused([](auto& r) {
                v1::NamedTensor& v = *r.mutable_gradient()->mutable_spec()->mutable_initial(1);
                SetDoubles(std::vector<double>(12, 0.0), {12, 1}, *v.mutable_tensor());
                AddTensor(r.mutable_variants(1)->mutable_initial(), "y", {0.5, 0.5}, {2, 1});
              }),
              "spec.initial[1].tensor.shape", "variants[1].initial[0]");
  ExpectField(refused([](auto& r) { r.mutable_gradient()->mutable_spec()->set_steps(-1); }),
              "spec.steps", "-1");
  ExpectField(refused([](auto& r) { r.clear_variants(); }), "variants", "at least one");
  ExpectField(refused([](auto& r) { r.clear_work(); }), "work", "rollout");
  ExpectField(refused([](auto& r) {
                while (r.variants_size() <= service::kMostVariants) r.add_variants();
              }),
              "variants", "limit of 64");
  ExpectField(refused([](auto& r) {
                *r.mutable_rollout() = BallRollout(3);
                r.mutable_rollout()->mutable_keep();
              }),
              "keep", "not kept");
  ExpectField(refused([](auto& r) {
                r.mutable_gradient()->mutable_spec()->mutable_path()->mutable_forced();
              }),
              "spec.path.forced", "their own paths");
  ExpectField(refused([](auto& r) {
                r.set_without_paths(true);
                r.mutable_gradient()->mutable_spec()->mutable_path()->set_record(true);
              }),
              "without_paths", "spec.path.record");
  // Other instances.
  ExpectField(refused([](auto& r) {
                AddTensor(r.mutable_variants(1)->mutable_initial(), "y", {0.5, 0.5}, {2, 1});
              }),
              "variants[1]", "is of 2 instances, the work as it stands of 12");
  // A path that is held while others run, of more than a quarter of the memory limit.
  ExpectField(refused([](auto& r) {
                r.clear_gradient();
                *r.mutable_rollout() = BallRollout(20'000, 1 << 15);
              }),
              "spec.path.record", "without_paths");
  EXPECT_EQ(server.Series().at("simgrad_steps_total{direction=\"forward\"}"), 0);
  EXPECT_TRUE(AllGivenBack(server));
}

// An error in the middle ends the answer behind the runs that are complete.
TEST(Compare, ADeadlineInASecondRunEndsTheCall) {
  RunningServer server;
  v1::CompareRequest request;
  *request.mutable_rollout() = EndlessRollout();
  request.mutable_rollout()->mutable_spec()->set_steps(4);
  request.set_without_paths(true);
  request.add_variants()->set_steps(10'000'000);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1500));
  PartReader<v1::CompareResponse> reader(server.stub().Compare(&context, request));
  int headers = 0, results = 0;
  for (v1::ComparePart part; reader.Read(&part);) {
    headers += part.has_header() ? 1 : 0;
    results += part.has_rollout() ? 1 : 0;
  }
  EXPECT_EQ(reader.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(headers, 2);
  EXPECT_EQ(results, 1);
  EXPECT_TRUE(AllGivenBack(server));
  EXPECT_TRUE(Eventually([&] {
    const auto series = server.Series();
    const std::string runs = "simgrad_rollouts_total{mode=\"compare\",outcome=\"";
    return series.at(runs + "ok\",world=\"bouncing_ball\"}") == 1 &&
           series.at(runs + "expired\",world=\"bouncing_ball\"}") == 1;
  }));
}

// ---- Differences of numbers ----

sim::Tensor F64(const std::vector<double>& values) {
  sim::Tensor tensor = sim::Tensor::Zeros(sim::DType::kF64, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.Set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

v1::FieldDifference Off(const sim::Tensor& reference, const sim::Tensor& other) {
  sim::WorkMeter meter;
  return conversion::DifferenceOf("x", reference, other, meter);
}

TEST(DifferenceOf, HoldsIntegersThatNoRealDoes) {
  sim::Tensor a = sim::Tensor::Zeros(sim::DType::kI64, {2}), b = a;
  a.SetInt(1, int64_t{1} << 60);
  b.SetInt(1, (int64_t{1} << 60) + 1);
  EXPECT_EQ(Off(a, b).largest(), 1.0);
  EXPECT_EQ(Off(a, b).at(), 1);
  a.SetInt(0, std::numeric_limits<int64_t>::min());
  b.SetInt(0, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Off(a, b).largest(), 0x1p64);
}

TEST(DifferenceOf, EndsWhereItIsAsked) {
  const sim::Tensor many = sim::Tensor::Zeros(sim::DType::kF64, {1 << 20});
  int asked = 0;
  sim::WorkMeter meter([&] { return ++asked == 3; });
  EXPECT_FALSE(sim::UntilStopped([&] { conversion::DifferenceOf("x", many, many, meter); }).ok());
  EXPECT_EQ(asked, 3);
}

TEST(DifferenceOf, IsTheLargestAndTheRelativeOne) {
  const v1::FieldDifference off = Off(F64({3.0, 4.0, 0.0}), F64({3.0, 4.5, -1.0}));
  EXPECT_EQ(off.field(), "x");
  EXPECT_EQ(off.largest(), 1.0);
  EXPECT_EQ(off.at(), 2);
  EXPECT_DOUBLE_EQ(off.relative(), std::sqrt(1.25) / 5.0);
}

TEST(DifferenceOf, HoldsWhereSquaresDoNot) {
  const v1::FieldDifference off = Off(F64({1e300}), F64({1e300 * 1.5}));
  EXPECT_DOUBLE_EQ(off.relative(), 0.5);
  const v1::FieldDifference tiny = Off(F64({1e-300}), F64({2e-300}));
  EXPECT_DOUBLE_EQ(tiny.relative(), 1.0);
}

TEST(DifferenceOf, EqualNonFiniteNumbersAreNoDifference) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const v1::FieldDifference same = Off(F64({nan, inf}), F64({nan, inf}));
  EXPECT_EQ(same.at(), -1);
  EXPECT_EQ(same.relative(), 0.0);
  const v1::FieldDifference off = Off(F64({1.0, inf}), F64({1.0, 2.0}));
  EXPECT_EQ(off.at(), 1);
  EXPECT_EQ(off.largest(), inf);
  EXPECT_TRUE(std::isnan(off.relative()));
  EXPECT_EQ(Off(F64({0.0}), F64({1.0})).relative(), inf);
}

}  // namespace
}  // namespace simgrad::server
