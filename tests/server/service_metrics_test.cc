// What a scraper sees of a server that works.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <set>

#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

std::set<std::string> Names(const std::map<std::string, double>& series) {
  std::set<std::string> names;
  for (const auto& [name, value] : series) names.insert(name);
  return names;
}

// Everything the service can be made to do.
void Load(RunningServer& server) {
  EXPECT_TRUE(Ask(server, BallRollout(50, 10)).status.ok());
  v1::RolloutRequest low = BallRollout(50, 10);
  low.mutable_spec()->mutable_policy()->set_preset("f16_unsafe");
  low.mutable_spec()->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_OFF);
  EXPECT_TRUE(Ask(server, low).status.ok());
  v1::GradientRequest counted = BallGradient(20, 5);
  counted.mutable_spec()->mutable_policy()->set_preset("f16_unsafe");
  counted.mutable_spec()->mutable_diagnostics()->set_arithmetic_instances(2);
  counted.mutable_spec()->mutable_diagnostics()->set_stride(1);
  EXPECT_TRUE(Ask(server, counted).status.ok());
  v1::GradientRequest bad = BallGradient(20, 2);
  SetDoubles({std::nan(""), 0.5}, {2, 1},
             *bad.mutable_spec()->mutable_initial(0)->mutable_tensor());
  EXPECT_TRUE(Ask(server, bad).status.ok());
  EXPECT_FALSE(Ask(server, BallRollout(-1)).status.ok());
  grpc::ClientContext describe_context, info_context, worlds_context;
  v1::DescribeProgramRequest describe;
  describe.mutable_world()->set_name("boundary_projection");
  v1::DescribeProgramResponse description;
  EXPECT_TRUE(server.stub().DescribeProgram(&describe_context, describe, &description).ok());
  v1::RolloutRequest custom = BallRollout(5);
  custom.mutable_spec()->mutable_world()->clear_config();
  *custom.mutable_spec()->mutable_world()->mutable_program() = description.source();
  custom.mutable_spec()->mutable_initial()->RemoveLast();
  EXPECT_TRUE(Ask(server, custom).status.ok());
  v1::ServerInfo info;
  EXPECT_TRUE(server.stub().GetServerInfo(&info_context, {}, &info).ok());
  v1::ListWorldsResponse worlds;
  EXPECT_TRUE(server.stub().ListWorlds(&worlds_context, {}, &worlds).ok());
  grpc::ClientContext cancelled;
  auto reader = server.Rollout(&cancelled, EndlessRollout());
  v1::RolloutPart part;
  EXPECT_TRUE(reader->Read(&part));
  cancelled.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// Waits until every RPC has been counted to its end, and has given its worker back.
std::map<std::string, double> Settled(RunningServer& server) {
  std::map<std::string, double> series;
  EXPECT_TRUE(Eventually([&] {
    series = server.Series();
    double in_flight = 0;
    for (const auto& [name, value] : series) {
      if (name.rfind("simgrad_rpc_in_flight", 0) == 0) in_flight += value;
      if (name.rfind("simgrad_workers_busy", 0) == 0) in_flight += value;
    }
    return in_flight == 0;
  }));
  // Families are read one after another: some of that scrape may be older than its last RPC's end.
  return server.Series();
}

TEST(ServiceMetrics, TheSetOfSeriesIsTheSameBeforeAndAfterLoad) {
  RunningServer server;
  const auto before = Settled(server);
  Load(server);
  const auto after = Settled(server);
  EXPECT_EQ(Names(before), Names(after));
  EXPECT_EQ(server.Scrape().find("NaN"), std::string::npos);
  EXPECT_EQ(server.Scrape().find("Nan"), std::string::npos);
  size_t server_series = 0;
  std::map<std::string, size_t> per_world;
  for (const auto& [name, value] : after) {
    const size_t world = name.find("world=\"");
    if (world == std::string::npos) {
      ++server_series;
    } else {
      ++per_world[name.substr(world, name.find('"', world + 7) - world)];
    }
  }
  EXPECT_LE(server_series, 1000u);
  EXPECT_EQ(per_world.size(), 3u);  // two built-in worlds and custom
  for (const auto& [world, count] : per_world) EXPECT_LE(count, 150u) << world;
}

TEST(ServiceMetrics, CountersMoveByWhatHappened) {
  RunningServer server;
  const auto before = Settled(server);
  const auto rollout = Ask(server, BallRollout(50, 10));
  ASSERT_TRUE(rollout.status.ok());
  const auto after = Settled(server);
  const auto moved = [&](const std::string& series) {
    return after.at(series) - before.at(series);
  };
  const std::string rpc =
      R"({grpc_method="Rollout",grpc_service="simgrad.v1.Simgrad",grpc_type="server_stream"})";
  EXPECT_EQ(moved("grpc_server_started_total" + rpc), 1);
  EXPECT_EQ(moved("grpc_server_handling_seconds_count" + rpc), 1);
  EXPECT_EQ(moved(R"(grpc_server_handled_total{grpc_code="OK",grpc_method="Rollout",)"
                  R"(grpc_service="simgrad.v1.Simgrad",grpc_type="server_stream"})"),
            1);
  EXPECT_EQ(moved(R"(simgrad_rpc_time_to_first_message_seconds_count{grpc_method="Rollout"})"), 1);
  EXPECT_EQ(moved("simgrad_queue_wait_seconds_count"), 1);
  EXPECT_EQ(moved(R"(simgrad_program_cache_total{result="miss"})"), 1);
  EXPECT_EQ(moved(R"(simgrad_steps_total{direction="forward"})"), 500);
  EXPECT_EQ(moved(R"(simgrad_rollouts_total{mode="rollout",outcome="ok",world="bouncing_ball"})"),
            1);
  EXPECT_EQ(moved(R"(simgrad_instances_total{mode="rollout",world="bouncing_ball"})"), 10);
  double runs = 0, iterations = 0, checks = 0, events = 0;
  for (const v1::DiagnosticsBlock& block : rollout.blocks()) {
    for (int i = 0; i < block.steps(); ++i) {
      runs += static_cast<double>(block.terminations(0).runs(i));
      iterations += block.terminations(0).iterations_mean(i) *
                    static_cast<double>(block.terminations(0).runs(i));
      checks += static_cast<double>(block.terminations(0).checks(i));
      events += static_cast<double>(block.events(0).count(i));
    }
  }
  const std::string site = R"({site="projection",world="bouncing_ball"})";
  EXPECT_EQ(moved("simgrad_solver_iterations_count" + site), runs);
  // Means are rounded; the sum is an integer below 2^20.
  EXPECT_NEAR(moved("simgrad_solver_iterations_sum" + site), iterations, 1e-6);
  EXPECT_EQ(moved("simgrad_termination_margin_ulps_count" + site), runs);
  EXPECT_EQ(moved("simgrad_termination_checks_total" + site), checks);
  EXPECT_EQ(moved(R"(simgrad_events_total{site="contact",world="bouncing_ball"})"), events);
  EXPECT_GT(events, 0);
}

TEST(ServiceMetrics, IterationsStandInTheBucketsOfTheVeryRuns) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(200, 50);
  request.mutable_spec()->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_INSTANCES);
  const auto rollout = Ask(server, request);
  ASSERT_TRUE(rollout.status.ok());
  // One run per instance and step, so the columns of the instances are the runs.
  std::vector<uint32_t> runs;
  for (const v1::DiagnosticsBlock& block : rollout.blocks()) {
    for (const v1::InstanceColumns& columns : block.instances()) {
      const std::string& bytes = columns.iterations();
      const size_t old = runs.size();
      runs.resize(old + bytes.size() / 4);
      std::memcpy(runs.data() + old, bytes.data(), bytes.size());
    }
  }
  ASSERT_EQ(runs.size(), 200u * 50u);
  const auto series = Settled(server);
  std::set<double> counts;
  for (const char* bound : {"0", "1", "2", "3", "4", "6", "8", "12", "16", "24", "32", "+Inf"}) {
    const double most = std::string(bound) == "+Inf" ? 1e9 : std::stod(bound);
    const double expected = static_cast<double>(
        std::count_if(runs.begin(), runs.end(), [&](uint32_t n) { return n <= most; }));
    counts.insert(expected);
    EXPECT_EQ(series.at("simgrad_solver_iterations_bucket{site=\"projection\","
                        "world=\"bouncing_ball\",le=\"" +
                        std::string(bound) + "\"}"),
              expected)
        << bound;
  }
  EXPECT_GT(counts.size(), 4u);  // there is something to tell apart
}

TEST(ServiceMetrics, MetricsAreCountedAtLevelOffToo) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(50, 10);
  const auto start = Settled(server);
  ASSERT_TRUE(Ask(server, request).status.ok());
  const auto summary = Settled(server);
  request.mutable_spec()->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_OFF);
  ASSERT_TRUE(Ask(server, request).status.ok());
  const auto off = Settled(server);
  for (const auto& [name, value] : off) {
    if (name.find("world=\"bouncing_ball\"") == std::string::npos) continue;
    EXPECT_EQ(value - summary.at(name), summary.at(name) - start.at(name)) << name;
  }
}

TEST(ServiceMetrics, GradientsCountInputsTimesInstances) {
  RunningServer server;
  const auto before = Settled(server);
  ASSERT_TRUE(Ask(server, BallGradient(20, 5)).status.ok());
  const auto after = Settled(server);
  const std::string world = R"({world="bouncing_ball"})";
  EXPECT_EQ(
      after.at("simgrad_gradients_total" + world) - before.at("simgrad_gradients_total" + world),
      15);
  EXPECT_EQ(after.at("simgrad_gradient_norm_count" + world), 3);
  EXPECT_EQ(after.at(R"(simgrad_steps_total{direction="adjoint"})"), 100);
}

TEST(ServiceMetrics, AGradientNormIsObservedForEveryInputOfEveryRequestThatIsFinite) {
  RunningServer server;
  const std::string count = R"(simgrad_gradient_norm_count{world="bouncing_ball"})";
  ASSERT_TRUE(Ask(server, BallGradient(20, 5)).status.ok());  // y, v, k
  EXPECT_EQ(Settled(server).at(count), 3);
  v1::GradientRequest of_one = BallGradient(20, 5);
  v1::InputName* k = of_one.add_wrt();
  k->set_kind(v1::INPUT_KIND_PARAM);
  k->set_name("k");
  ASSERT_TRUE(Ask(server, of_one).status.ok());
  EXPECT_EQ(Settled(server).at(count), 4);
  // A target that is infinite: every cotangent is, and so is the gradient.
  of_one.mutable_wrt(0)->set_kind(v1::INPUT_KIND_STATE);
  of_one.mutable_wrt(0)->set_name("v");
  of_one.mutable_spec()->set_objective("target_height");
  AddTensor(of_one.mutable_spec()->mutable_data(), "target", {INFINITY}, {1});
  const auto answer = Ask(server, of_one);
  ASSERT_TRUE(answer.status.ok());
  float gradient = 0;
  std::memcpy(&gradient, answer.result().gradients(0).gradient().inline_().data(), 4);
  ASSERT_FALSE(std::isfinite(gradient));
  const auto after = Settled(server);
  EXPECT_EQ(after.at(count), 4);
  const auto seen = [&](const std::string& kind) {
    return after.at("simgrad_nonfinite_values_total{kind=\"" + kind +
                    "\",phase=\"adjoint\",role=\"gradient\"}");
  };
  EXPECT_GE(seen("nan") + seen("inf"), 1);
}

// Boundary projections of one element from `y`, in f32.
v1::RolloutRequest Boundary(double y, double k, double tol_enter) {
  v1::RolloutRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  spec->mutable_world()->set_name("boundary_projection");
  if (tol_enter > 0) {
    (*spec->mutable_world()->mutable_config())["tol_enter"].set_number(tol_enter);
  }
  spec->set_steps(1);
  AddTensor(spec->mutable_initial(), "y", {y}, {1});
  AddTensor(spec->mutable_params(), "k", {k}, {});
  return request;
}

// Requests that together do everything the manifest counts, one thing each.
void DoEverything(RunningServer& server, RunningServer& narrow) {
  Load(server);
  // A parameter that no executed path uses: nothing touches the floor.
  EXPECT_TRUE(Ask(server, BallGradient(1, 3)).status.ok());
  // Three, because one that arrives late on a busy machine is told to the server as a cancellation.
  for (int k = 0; k < 3; ++k) {
    grpc::ClientContext late;
    late.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    auto expired = server.Rollout(&late, EndlessRollout());
    for (v1::RolloutPart part; expired->Read(&part);) {
    }
    EXPECT_EQ(expired->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_FALSE(Ask(narrow, BallRollout(100, 100)).status.ok());
  const_cast<scheduling::Scheduler&>(narrow.server().queue()).StopArrivals();
  EXPECT_FALSE(Ask(narrow, BallRollout(1)).status.ok());
  EXPECT_TRUE(Ask(server, Boundary(-static_cast<double>(1e-4f), 1, 0)).status.ok());
  // Beyond 65504 within a step.
  v1::RolloutRequest fast = BallRollout(3);
  fast.mutable_spec()->mutable_policy()->set_preset("f16_unsafe");
  AddTensor(fast.mutable_spec()->mutable_params(), "g", {60000.0}, {});
  AddTensor(fast.mutable_spec()->mutable_params(), "h", {4.0}, {});
  EXPECT_TRUE(Ask(server, fast).status.ok());
  // What it falls in a step is nothing beside its height.
  v1::RolloutRequest floats = BallRollout(3);
  AddTensor(floats.mutable_spec()->mutable_params(), "g", {1e-30}, {});
  EXPECT_TRUE(Ask(server, floats).status.ok());
  v1::GradientRequest scaled = BallGradient(200, 4);
  scaled.mutable_spec()->mutable_policy()->set_preset("f16_safe");
  EXPECT_TRUE(Ask(server, scaled).status.ok());
  v1::GradientRequest grows = BallGradient(20, 2);
  v1::DynamicLossScale* scaler =
      grows.mutable_spec()->mutable_policy()->mutable_loss_scale()->mutable_dynamic();
  scaler->set_scale(1024);
  scaler->set_interval(1);
  EXPECT_TRUE(Ask(server, grows).status.ok());
  v1::CompareRequest compare;
  *compare.mutable_rollout() = BallRollout(60, 8);
  compare.add_variants()->mutable_policy()->set_preset("bf16_unsafe");
  compare.add_variants();
  grpc::ClientContext context;
  PartReader<v1::CompareResponse> reader(server.stub().Compare(&context, compare));
  for (v1::ComparePart part; reader.Read(&part);) continue;
  EXPECT_TRUE(reader.Finish().ok());
}

std::string FamilyOf(const std::string& series) {
  std::string name = series.substr(0, series.find('{'));
  for (const std::string suffix : {"_bucket", "_sum", "_count"}) {
    const size_t at = name.size() - std::min(name.size(), suffix.size());
    if (name.substr(at) == suffix) name.erase(at);
  }
  return name;
}

TEST(ServiceMetrics, EveryMetricMovesWhenWhatItCountsHappens) {
  RunningServer server;
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = 1000;
  RunningServer narrow(config);
  auto before = Settled(server);
  const auto narrow_before = Settled(narrow);
  DoEverything(server, narrow);
  auto after = Settled(server);
  std::set<std::string> still;
  for (const auto& [series, value] : before) still.insert(FamilyOf(series));
  for (const auto& [series, value] : before) {
    if (after.at(series) != value) still.erase(FamilyOf(series));
  }
  for (const auto& [series, value] : Settled(narrow)) {
    if (narrow_before.at(series) != value) still.erase(FamilyOf(series));
  }
  const std::set<std::string> constant = {
      // What was configured, built and started.
      "simgrad_queue_capacity_requests", "simgrad_termination_near_band_ulps", "simgrad_build_info",
      "simgrad_device_info", "process_max_fds", "process_start_time_seconds", "simgrad_workers",
      "simgrad_memory_limit_bytes",
      // Of a GPU that fails: tests/server/device_test.cc.
      "simgrad_cuda_errors_total",
      // Of rollouts that are kept: tests/server/kept_rollout_test.cc.
      "simgrad_tape_bytes", "simgrad_tape_limit_bytes", "simgrad_tape_evictions_total",
      // Of a crowd: tests/integration/transport_test.py.
      "simgrad_connections_rejected_total",
      // Of the certificate and the token file, where there are any: tests/integration/security_test.py.
      "simgrad_tls_certificate_expiry_timestamp_seconds", "simgrad_reload_failures_total",
      // Of a collector of traces: tests/integration/tracing_test.py.
      "simgrad_trace_spans_total",
      // Back where they were; their tests are DrainingRefusesNewWork... and those of what is in
      // flight and waits, below.
      "simgrad_ready", "simgrad_rpc_in_flight", "simgrad_queue_requests", "simgrad_workers_busy"};
  // May move, where progress is faster than its reader; its test is in slow_reader_test.cc.
  still.erase("simgrad_stream_dropped_messages_total");
  // May happen to be as before, to a page, a descriptor or a clock tick.
  for (const char* process : {"process_resident_memory_bytes", "process_virtual_memory_bytes",
                              "process_open_fds", "process_cpu_seconds_total"}) {
    still.erase(process);
  }
  EXPECT_EQ(still, constant);
}

TEST(ServiceMetrics, WhatIsInFlightAndWhatWaitsAreGaugesOfNow) {
  config::ServerConfig config = FreePorts();
  config.workers = 1;
  RunningServer server(config);
  grpc::ClientContext first_context, second_context;
  auto first = server.Rollout(&first_context, EndlessRollout());
  v1::RolloutPart part;
  ASSERT_TRUE(first->Read(&part));
  second_context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  auto second = server.Rollout(&second_context, EndlessRollout());
  const std::string in_flight = R"(simgrad_rpc_in_flight{grpc_method="Rollout"})";
  EXPECT_TRUE(Eventually([&] {
    const auto series = server.Series();
    return series.at(in_flight) == 2 && series.at("simgrad_queue_requests") == 1 &&
           series.at(R"(simgrad_workers_busy{lane="large"})") == 1;
  }));
  // The one that waits expires where it is.
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] {
    const auto series = server.Series();
    return series.at(in_flight) == 1 && series.at("simgrad_queue_requests") == 0;
  }));
  first_context.TryCancel();
  EXPECT_EQ(first->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const auto after = Settled(server);
  EXPECT_EQ(after.at(in_flight), 0);
  EXPECT_EQ(after.at("simgrad_queue_wait_seconds_count"), 1);  // of the one that ran
  EXPECT_EQ(after.at(R"(simgrad_queue_rejected_total{reason="expired"})"), 1);
  EXPECT_EQ(after.at(R"(simgrad_queue_rejected_total{reason="deadline"})"), 0);
  EXPECT_EQ(
      after.at(R"(simgrad_rpc_deadline_exceeded_total{grpc_method="Rollout",phase="queued"})"), 1);
}

// The workers that prepare costly requests are busy with others.
TEST(ServiceMetrics, ARequestThatWaitsToBePreparedWaits) {
  RunningServer server;
  auto& scheduler = const_cast<scheduling::Scheduler&>(server.server().queue());
  std::promise<void> release;
  const auto released = release.get_future().share();
  for (int worker = 0; worker < scheduler.preparation().workers(); ++worker) {
    scheduling::WorkQueue::Job job;
    job.caller = scheduler.callers().Find("other");
    job.cancellation = std::make_shared<scheduling::Cancellation>(absl::InfiniteFuture());
    job.run = [released](const absl::Status&, absl::Duration, scheduling::WorkQueue::Turn&) {
      released.wait();
    };
    ASSERT_FALSE(scheduler.preparation().Enqueue(job).has_value());
  }
  v1::VjpRequest request;
  request.set_handle("none");
  request.add_cotangents();
  const auto waits = [&](double requests) {
    return Eventually([&] { return server.Series().at("simgrad_queue_requests") == requests; });
  };
  {
    grpc::ClientContext context;
    PartReader<v1::GradientResponse> reader(server.stub().Vjp(&context, request));
    EXPECT_TRUE(waits(1));
    context.TryCancel();
    EXPECT_EQ(reader.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(waits(0));
  auto after = Settled(server);
  EXPECT_EQ(after.at("simgrad_queue_capacity_requests"), scheduler.capacity());
  EXPECT_EQ(after.at("simgrad_queue_wait_seconds_count"), 0);
  EXPECT_EQ(after.at(R"(simgrad_queue_rejected_total{reason="expired"})"), 0);
  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  PartReader<v1::GradientResponse> reader(server.stub().Vjp(&late, request));
  EXPECT_TRUE(waits(1));
  EXPECT_EQ(reader.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(waits(0));
  after = Settled(server);
  EXPECT_EQ(after.at("simgrad_queue_wait_seconds_count"), 0);
  EXPECT_EQ(after.at(R"(simgrad_queue_rejected_total{reason="expired"})"), 1);
  grpc::ClientContext patient;
  PartReader<v1::GradientResponse> taken_up(server.stub().Vjp(&patient, request));
  EXPECT_TRUE(waits(1));
  absl::SleepFor(absl::Milliseconds(100));
  release.set_value();
  EXPECT_EQ(taken_up.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  after = Settled(server);
  EXPECT_EQ(after.at("simgrad_queue_wait_seconds_count"), 1);
  EXPECT_GT(after.at("simgrad_queue_wait_seconds_sum"), 0.1);
  scheduler.preparation().AwaitIdle(absl::InfiniteDuration());
}

TEST(ServiceMetrics, EveryReasonAndSideOfALoopHasAPathThatIsCounted) {
  RunningServer server;
  const auto moved = [&](const v1::RolloutRequest& request, const std::string& family,
                         const std::string& labels) {
    const std::string series =
        "simgrad_termination" + family + "{" + labels + ",world=\"boundary_projection\"}";
    const double before = Settled(server).at(series);
    const auto answer = Ask(server, request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    return Settled(server).at(series) - before;
  };
  const auto stopped = [&](const v1::RolloutRequest& request, const std::string& reason) {
    return moved(request, "s_total", "reason=\"" + reason + "\",site=\"projection\"");
  };
  EXPECT_EQ(stopped(Boundary(-1, 1, 0), "converged"), 1);
  EXPECT_EQ(stopped(Boundary(-1, 1e-9, 0), "max_iter"), 1);
  EXPECT_EQ(stopped(Boundary(std::nan(""), 1, 0), "nonfinite"), 1);
  EXPECT_EQ(stopped(Boundary(-1e-3, 1, 0.5), "not_entered"), 1);
  // tol is 1e-4 in f32: at it the test does not hold, an ulp below it does; eight ulps are near.
  const double tol = static_cast<double>(1e-4f);
  const double below = static_cast<double>(std::nextafter(1e-4f, 0.0f));
  const auto near = [&](double depth, const std::string& side) {
    return moved(Boundary(-depth, 1, 0), "_near_boundary_total",
                 "side=\"" + side + "\",site=\"projection\"");
  };
  EXPECT_EQ(near(tol, "continued"), 1);
  EXPECT_EQ(near(below, "stopped"), 1);
}

TEST(ServiceMetrics, NonFiniteInputsAndInstancesAreCounted) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(10, 3);
  SetDoubles({std::nan(""), 0.5, INFINITY}, {3, 1},
             *request.mutable_spec()->mutable_initial(0)->mutable_tensor());
  ASSERT_TRUE(Ask(server, request).status.ok());
  const auto after = Settled(server);
  const std::string values = "simgrad_nonfinite_values_total";
  EXPECT_EQ(after.at(values + R"({kind="nan",phase="input",role="state"})"), 1);
  EXPECT_EQ(after.at(values + R"({kind="inf",phase="input",role="state"})"), 1);
  EXPECT_EQ(after.at(R"(simgrad_nonfinite_instances_total{action="reported",phase="input"})"), 2);
  EXPECT_EQ(after.at(R"(simgrad_nonfinite_first_step_count{phase="input"})"), 2);
}

TEST(ServiceMetrics, WhatIsCountedDoesNotDependOnTheDiagnosticsThatAreAskedFor) {
  RunningServer server;
  const auto counted = [&](int32_t stride, v1::DiagnosticsLevel level) {
    const auto before = Settled(server);
    v1::RolloutRequest request = BallRollout(40, 3);
    SetDoubles({std::nan(""), 0.5, INFINITY}, {3, 1},
               *request.mutable_spec()->mutable_initial(0)->mutable_tensor());
    request.mutable_spec()->mutable_diagnostics()->set_stride(stride);
    request.mutable_spec()->mutable_diagnostics()->set_level(level);
    EXPECT_TRUE(Ask(server, request).status.ok());
    std::map<std::string, double> moved;
    for (const auto& [name, value] : Settled(server)) {
      const bool of_time =
          name.find("_seconds") != std::string::npos || name.rfind("process_", 0) == 0 ||
          name.find("stream_dropped") != std::string::npos || name == "simgrad_connections" ||
          name.find("_cache_") != std::string::npos || name.rfind("simgrad_kernel_", 0) == 0 ||
          name.rfind("simgrad_memory_reserved", 0) == 0;
      // Additions are counted at the steps that the caller's stride samples.
      const bool of_samples = name.rfind("simgrad_additions_total", 0) == 0 ||
                              name.rfind("simgrad_absorbed_total", 0) == 0;
      if (!of_time && !of_samples && value != before.at(name))
        moved[name] = value - before.at(name);
    }
    return moved;
  };
  const auto expected = counted(1, v1::DIAGNOSTICS_LEVEL_SUMMARY);
  EXPECT_GE(
      expected.at(R"(simgrad_nonfinite_values_total{kind="nan",phase="forward",role="state"})"), 1);
  EXPECT_EQ(counted(7, v1::DIAGNOSTICS_LEVEL_SUMMARY), expected);
  EXPECT_EQ(counted(1000, v1::DIAGNOSTICS_LEVEL_SUMMARY), expected);
  EXPECT_EQ(counted(0, v1::DIAGNOSTICS_LEVEL_OFF), expected);
  EXPECT_EQ(counted(3, v1::DIAGNOSTICS_LEVEL_INSTANCES), expected);
}

TEST(ServiceMetrics, ACancelledRolloutTellsWhereItWasLost) {
  RunningServer server;
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, EndlessRollout());
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const auto after = Settled(server);
  EXPECT_EQ(after.at(R"(simgrad_rpc_cancelled_total{grpc_method="Rollout",phase="forward"})"), 1);
  EXPECT_EQ(after.at(R"(simgrad_rollouts_total{mode="rollout",outcome="cancelled",)"
                     R"(world="bouncing_ball"})"),
            1);
}

TEST(ServiceMetrics, PromtoolFindsNothingToComplainAbout) {
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed (Debian package prometheus)";
  }
  RunningServer server;
  Load(server);
  const std::string page = server.Scrape();
  const std::string body = page.substr(page.find("\r\n\r\n") + 4);
  FILE* promtool = popen("promtool check metrics", "w");
  ASSERT_NE(promtool, nullptr);
  std::fwrite(body.data(), 1, body.size(), promtool);
  EXPECT_EQ(pclose(promtool), 0);
}

}  // namespace
}  // namespace simgrad::server
