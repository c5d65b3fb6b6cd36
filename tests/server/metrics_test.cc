// The manifest, and what is recorded into it.
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "server/metrics/manifest.h"
#include "server/metrics/process_collector.h"
#include "server/metrics/series.h"
#include "server/metrics/server_metrics.h"
#include "tests/source_tree.h"

namespace simgrad::server::metrics {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const ServerLabels kServer = {"1.2.3", "abc", "cpu", "a cpu"};
const std::vector<WorldLabels> kWorlds = {{"bouncing_ball", {"projection"}, {"contact", "rest"}},
                                          {"custom", {"custom"}, {"custom"}}};

std::string Page(const ServerMetrics& metrics) {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& collectable : metrics.collectables()) {
    for (auto& family : collectable->Collect()) families.push_back(family);
  }
  std::ostringstream page;
  prometheus::TextSerializer().Serialize(page, families);
  return page.str();
}

double Value(const std::string& page, const std::string& series) {
  const size_t at = page.find("\n" + series + " ");
  EXPECT_NE(at, std::string::npos) << series;
  return at == std::string::npos ? kNan : std::stod(page.substr(at + series.size() + 2));
}

// Series that a scraper sees of one label set: a histogram has one per bucket, +Inf, sum and count.
size_t SeriesSeen(const Family& family) {
  return family.type == MetricType::kHistogram ? family.buckets.size() + 3 : 1;
}

TEST(Manifest, KeepsItsSeriesBudget) {
  size_t without_worlds = 0;
  std::map<std::string, size_t> per_world;
  for (const Family& family : Manifest(kServer)) {
    for (const LabelSet& labels : SeriesOf(family, kWorlds)) {
      if (!labels.empty() && labels[0].first == "world") {
        per_world[labels[0].second] += SeriesSeen(family);
      } else {
        without_worlds += SeriesSeen(family);
      }
    }
  }
  EXPECT_LE(without_worlds, kServerSeriesBudget);
  EXPECT_EQ(per_world.size(), kWorlds.size());
  for (const auto& [world, count] : per_world) EXPECT_LE(count, kWorldSeriesBudget) << world;
}

TEST(Manifest, NamesFollowTheConventions) {
  std::set<std::string> seen;
  for (const Family& family : Manifest(kServer)) {
    EXPECT_TRUE(seen.insert(family.name).second) << family.name;
    const bool total =
        family.name.size() > 6 && family.name.substr(family.name.size() - 6) == "_total";
    EXPECT_EQ(total, family.type == MetricType::kCounter) << family.name;
    const bool known = family.name.rfind("simgrad_", 0) == 0 ||
                       family.name.rfind("grpc_server_", 0) == 0 ||
                       family.name.rfind("process_", 0) == 0;
    EXPECT_TRUE(known) << family.name;
    ASSERT_FALSE(family.help.empty()) << family.name;
    EXPECT_EQ(family.help.back(), '.') << family.name;
    EXPECT_EQ(family.buckets.empty(), family.type != MetricType::kHistogram) << family.name;
    EXPECT_TRUE(std::is_sorted(family.buckets.begin(), family.buckets.end())) << family.name;
    for (const auto& row : family.rows) EXPECT_EQ(row.size(), family.labels.size());
  }
}

// The phases of a small request take less than a millisecond each.
TEST(Manifest, TimesAreToldFromTenMicroseconds) {
  int found = 0;
  for (const Family& family : Manifest(kServer)) {
    const bool in_seconds = family.name.find("_seconds") != std::string::npos;
    if (family.type != MetricType::kHistogram || !in_seconds) continue;
    EXPECT_EQ(family.buckets.front(), 1e-5) << family.name;
    EXPECT_GE(std::lower_bound(family.buckets.begin(), family.buckets.end(), 1e-3),
              family.buckets.begin() + 6)
        << family.name;
    ++found;
  }
  EXPECT_GE(found, 4);
}

TEST(Manifest, IsWhatTheDocumentSays) {
  std::ifstream file(tests::SourcePath("docs/metrics.md"));
  const std::string document((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(document, ManifestMarkdown()) << "print it anew with simgrad-metrics-doc";
}

TEST(ServerMetrics, ExposesExactlyTheManifest) {
  const ServerMetrics metrics(kServer, kWorlds);
  std::map<std::string, size_t> exposed;
  for (const auto& collectable : metrics.collectables()) {
    for (const auto& family : collectable->Collect()) exposed[family.name] = family.metric.size();
  }
  std::map<std::string, size_t> declared;
  for (const Family& family : Manifest(kServer)) {
    declared[family.name] = SeriesOf(family, kWorlds).size();
  }
  EXPECT_EQ(exposed, declared);
}

TEST(ServerMetrics, ANonFiniteObservationIsCountedAndPoisonsNothing) {
  ServerMetrics metrics(kServer, kWorlds);
  metrics.queue_wait_seconds.Observe(kNan);
  metrics.queue_wait_seconds.Observe(std::numeric_limits<double>::infinity());
  metrics.queue_wait_seconds.ObserveMany(std::vector<double>(18, 1.0), kNan);
  metrics.queue_wait_seconds.Observe(0.5);
  metrics.ready.Set(kNan);
  metrics.queue_rejected.at("full").Add(kNan);
  metrics.world("bouncing_ball").gradient_norm.Observe(kNan);
  const std::string page = Page(metrics);
  EXPECT_EQ(page.find("NaN"), std::string::npos);
  EXPECT_EQ(page.find("Nan"), std::string::npos);
  EXPECT_EQ(page.find(" nan"), std::string::npos);
  EXPECT_EQ(Value(page, "simgrad_queue_wait_seconds_sum"), 0.5);
  EXPECT_EQ(Value(page, "simgrad_queue_wait_seconds_count"), 1);
  const std::string family = "simgrad_nonfinite_values_total";
  EXPECT_EQ(Value(page, family + R"({kind="nan",phase="forward",role="state"})"), 4);
  EXPECT_EQ(Value(page, family + R"({kind="inf",phase="forward",role="state"})"), 1);
  EXPECT_EQ(Value(page, family + R"({kind="nan",phase="adjoint",role="gradient"})"), 1);
}

TEST(ServerMetrics, FiniteObservationsDoNotAddUpToInfinity) {
  ServerMetrics metrics(kServer, kWorlds);
  for (int i = 0; i < 4; ++i) {
    metrics.world("bouncing_ball").gradient_norm.Observe(std::numeric_limits<double>::max());
    metrics.queue_wait_seconds.ObserveMany(std::vector<double>(24, 1.0), 1.5e308);
    metrics.queue_rejected.at("full").Add(1.7e308);
  }
  const std::string page = Page(metrics);
  for (const char* sum :
       {R"(simgrad_gradient_norm_sum{world="bouncing_ball"})", "simgrad_queue_wait_seconds_sum",
        R"(simgrad_queue_rejected_total{reason="full"})"}) {
    EXPECT_EQ(Value(page, sum), 0x1p961) << sum;
  }
  EXPECT_EQ(Value(page, R"(simgrad_gradient_norm_count{world="bouncing_ball"})"), 4);
}

TEST(ServerMetrics, LossScaleIsTheLowestInFlight) {
  ServerMetrics metrics(kServer, kWorlds);
  const std::string series = "simgrad_loss_scale";
  metrics.BeginLossScale(65536);
  EXPECT_EQ(Value(Page(metrics), series), 65536);
  metrics.BeginLossScale(1);
  EXPECT_EQ(Value(Page(metrics), series), 1);
  metrics.EndLossScale(1);
  EXPECT_EQ(Value(Page(metrics), series), 65536);
  metrics.EndLossScale(65536);
  EXPECT_EQ(Value(Page(metrics), series), 65536);  // of the last one
}

TEST(IterationCounts, EveryRunStandsInTheBucketOfItsOwnIterations) {
  sim::TerminationStep first, second;
  for (uint32_t iterations : {0u, 5u, 5u, 9u}) {
    ++first.iterations[sim::IterationBucket(iterations)];
    first.iterations_sum += iterations;
  }
  ++second.iterations[sim::IterationBucket(1000)];
  second.iterations_sum = 1000;
  const auto counts = IterationCounts({first, second});
  std::vector<double> expected(16, 0.0);
  expected[0] = 1;   // up to 0
  expected[5] = 2;   // up to 6
  expected[7] = 1;   // up to 12
  expected[15] = 1;  // above 256
  EXPECT_EQ(counts.counts, expected);
  EXPECT_EQ(counts.sum, 1019);
}

TEST(IterationCounts, TheExecutorsBucketsAreThoseOfTheMetric) {
  const std::vector<double> spelt_out = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256};
  for (const Family& family : Manifest(kServer)) {
    if (family.name == "simgrad_solver_iterations") {
      EXPECT_EQ(family.buckets, spelt_out);
    }
  }
}

TEST(MarginCounts, EveryBucketOfTheExecutorFallsIntoOneOfOurs) {
  std::vector<double> bounds;
  for (const Family& family : Manifest(kServer)) {
    if (family.name == "simgrad_termination_margin_ulps") bounds = family.buckets;
  }
  sim::TerminationStep step;
  step.histogram.fill(1);
  const auto counts = MarginCounts({step}, bounds);
  // Executor bucket 0 is 0, bucket k is (2^(k-2), 2^(k-1)], the last is open.
  const std::vector<double> expected = {1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 4, 4, 38};
  EXPECT_EQ(counts.counts, expected);
  EXPECT_TRUE(std::isfinite(counts.sum));
}

TEST(ProcessCollector, ReadsTheOperatingSystem) {
  for (const auto& family : ProcessCollector(Manifest(kServer)).Collect()) {
    const auto& metric = family.metric.at(0);
    const double value =
        family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
    // CPU time may still be below one clock tick.
    if (family.name != "process_cpu_seconds_total") {
      EXPECT_GT(value, 0) << family.name;
    }
  }
}

// The kernel tells the boot by the clock of now, less the time since: NTP would look like a restart.
TEST(ProcessCollector, TheStartStaysWhereItWasWhenTheClockIsStepped) {
  std::string name = (std::filesystem::temp_directory_path() / "proc-XXXXXX").string();
  const std::filesystem::path proc = mkdtemp(name.data());
  std::filesystem::create_directory(proc / "self");
  std::ofstream(proc / "self" / "stat") << std::ifstream("/proc/self/stat").rdbuf();
  const auto set_boot = [&](int seconds) {
    std::ofstream(proc / "stat") << "cpu 1 2 3\nbtime " << seconds << "\n";
  };
  const auto start = [](const ProcessCollector& collector) {
    for (const auto& family : collector.Collect()) {
      if (family.name == "process_start_time_seconds") return family.metric.at(0).gauge.value;
    }
    return 0.0;
  };
  set_boot(1'700'000'000);
  const ProcessCollector collector(Manifest(kServer), proc.string());
  const double before = start(collector);
  EXPECT_GE(before, 1.7e9);
  set_boot(1'700'000'030);
  EXPECT_EQ(start(collector), before);
  std::filesystem::remove_all(proc);
}

}  // namespace
}  // namespace simgrad::server::metrics
