#include "server/metrics/world_metrics.h"

#include <algorithm>
#include <cmath>

#include "sim/program/paths.h"

namespace simgrad::server::metrics {
namespace {

// Index of the first bound not below the value; bounds.size() where there is none.
size_t BucketOf(const std::vector<double>& bounds, double value) {
  return static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) -
                             bounds.begin());
}

TerminationMetrics MakeTermination(const Registry& registry, const std::string& world,
                                   const std::string& site) {
  TerminationMetrics metrics;
  metrics.iterations = registry.Histogram("simgrad_solver_iterations", {world, site});
  for (int i = 0; i < sim::kStopReasonCount; ++i) {
    const std::string reason(sim::StopReasonName(static_cast<sim::StopReason>(i)));
    metrics.reasons[i] = registry.Counter("simgrad_terminations_total", {world, site, reason});
  }
  metrics.margin_ulps = registry.Histogram("simgrad_termination_margin_ulps", {world, site});
  const std::string near = "simgrad_termination_near_boundary_total";
  metrics.near_stopped = registry.Counter(near, {world, site, "stopped"});
  metrics.near_continued = registry.Counter(near, {world, site, "continued"});
  metrics.checks = registry.Counter("simgrad_termination_checks_total", {world, site});
  metrics.ulp_bounds = registry.Buckets("simgrad_termination_margin_ulps");
  return metrics;
}

template <class Metrics>
Metrics* Find(std::map<std::string, Metrics>& sites, const std::string& name) {
  const auto found = sites.find(name);
  if (found != sites.end()) return &found->second;
  const auto custom = sites.find("custom");
  return custom == sites.end() ? nullptr : &custom->second;
}

}  // namespace

std::string OutcomeName(Outcome outcome) {
  constexpr std::array<const char*, 4> kNames = {"ok", "failed", "cancelled", "expired"};
  return kNames[static_cast<size_t>(outcome)];
}

BucketCounts IterationCounts(const std::vector<sim::TerminationStep>& steps) {
  BucketCounts result{std::vector<double>(sim::kIterationBuckets, 0.0), 0.0};
  uint64_t sum = 0;
  for (const sim::TerminationStep& step : steps) {
    for (size_t k = 0; k < sim::kIterationBuckets; ++k) result.counts[k] += step.iterations[k];
    sum += step.iterations_sum;
  }
  result.sum = static_cast<double>(sum);
  return result;
}

BucketCounts MarginCounts(const std::vector<sim::TerminationStep>& steps,
                          const std::vector<double>& bounds) {
  BucketCounts result{std::vector<double>(bounds.size() + 1, 0.0), 0.0};
  std::array<uint64_t, sim::kMarginBuckets> counts{};
  for (const sim::TerminationStep& step : steps) {
    for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
      counts[bucket] += step.histogram[bucket];
    }
  }
  for (int bucket = 0; bucket < sim::kMarginBuckets; ++bucket) {
    const double count = static_cast<double>(counts[static_cast<size_t>(bucket)]);
    if (count == 0) continue;
    // Bucket k ends at 2^(k-1); bucket 0 is zero itself, the last is open.
    const bool open = bucket == sim::kMarginBuckets - 1;
    const double end = bucket == 0 ? 0.0 : std::ldexp(1.0, bucket - 1);
    result.counts[open ? bounds.size() : BucketOf(bounds, end)] += count;
    result.sum += end * count;
  }
  return result;
}

void TerminationMetrics::Record(const std::vector<sim::TerminationStep>& steps) {
  std::array<uint64_t, sim::kStopReasonCount> why{};
  uint64_t stopped = 0, continued = 0, tests = 0;
  for (const sim::TerminationStep& step : steps) {
    for (int i = 0; i < sim::kStopReasonCount; ++i) why[i] += step.reasons[i];
    stopped += step.near_stopped;
    continued += step.near_continued;
    tests += step.checks;
  }
  for (int i = 0; i < sim::kStopReasonCount; ++i) reasons[i].Add(why[i]);
  near_stopped.Add(stopped);
  near_continued.Add(continued);
  checks.Add(tests);
  const BucketCounts runs = IterationCounts(steps);
  iterations.ObserveMany(runs.counts, runs.sum);
  const BucketCounts margins = MarginCounts(steps, ulp_bounds);
  margin_ulps.ObserveMany(margins.counts, margins.sum);
}

void EventMetrics::Record(const std::vector<sim::EventStep>& steps) {
  uint64_t held = 0, differed = 0;
  for (const sim::EventStep& step : steps) {
    held += step.count;
    differed += step.changes;
  }
  count.Add(held);
  changes.Add(differed);
}

WorldMetrics MakeWorldMetrics(const Registry& registry, const WorldLabels& labels) {
  WorldMetrics metrics;
  const std::array<std::string, kModes> modes = {"rollout", "gradient", "vjp", "compare"};
  for (size_t mode = 0; mode < modes.size(); ++mode) {
    for (int outcome = 0; outcome < 4; ++outcome) {
      metrics.rollouts[mode][outcome] =
          registry.Counter("simgrad_rollouts_total",
                           {labels.world, modes[mode], OutcomeName(static_cast<Outcome>(outcome))});
    }
    metrics.instances[mode] =
        registry.Counter("simgrad_instances_total", {labels.world, modes[mode]});
  }
  metrics.gradients = registry.Counter("simgrad_gradients_total", {labels.world});
  metrics.gradient_zero = registry.Counter("simgrad_gradient_zero_total", {labels.world});
  metrics.gradient_disconnected =
      registry.Counter("simgrad_gradient_disconnected_total", {labels.world});
  metrics.gradient_norm =
      registry.Histogram("simgrad_gradient_norm", {labels.world}, "adjoint", "gradient");
  for (const std::string& site : labels.termination_sites) {
    metrics.terminations[site] = MakeTermination(registry, labels.world, site);
  }
  for (const std::string& site : labels.event_sites) {
    metrics.events[site] = {registry.Counter("simgrad_events_total", {labels.world, site}),
                            registry.Counter("simgrad_event_changes_total", {labels.world, site})};
  }
  for (const std::string& site : AllSites(labels)) {
    metrics.path_flips[site] = registry.Counter("simgrad_path_flips_total", {labels.world, site});
  }
  return metrics;
}

void AddFlips(WorldMetrics& world, const std::string& site, uint64_t flips) {
  if (GuardedCounter* counter = Find(world.path_flips, site)) counter->Add(flips);
}

SiteHandles HandlesOf(WorldMetrics& world, const std::vector<sim::Site>& sites) {
  SiteHandles handles;
  for (const sim::Site& site : sites) {
    if (site.kind == sim::SiteKind::kTermination) {
      handles.terminations.push_back(Find(world.terminations, site.name));
    } else if (sim::WorldSite(site.name) != site.name) {
      handles.events.push_back(nullptr);  // tells of a path
    } else {
      handles.events.push_back(Find(world.events, site.name));
    }
  }
  return handles;
}

}  // namespace simgrad::server::metrics
