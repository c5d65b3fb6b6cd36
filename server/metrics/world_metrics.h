// The handles of one world (or "custom"), and how step diagnostics are recorded into them.
//
// Per-step counts were reduced by the executor; each chunk of steps is recorded once, in bulk.
// Threads: any. Cost of RecordSteps: linear in the steps of the chunk, no look-up.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "server/metrics/registry.h"
#include "server/metrics/series.h"
#include "sim/diagnostics/diagnostics.h"

namespace simgrad::server::metrics {

enum class Mode : uint8_t { kRollout, kGradient, kVjp, kCompare };
inline constexpr size_t kModes = 4;
enum class Outcome : uint8_t { kOk, kFailed, kCancelled, kExpired };
std::string OutcomeName(Outcome outcome);

struct TerminationMetrics {
  GuardedHistogram iterations;
  std::array<GuardedCounter, sim::kStopReasonCount> reasons;
  GuardedHistogram margin_ulps;
  GuardedCounter near_stopped, near_continued, checks;
  std::vector<double> ulp_bounds;
  void Record(const std::vector<sim::TerminationStep>& steps);
};

struct EventMetrics {
  GuardedCounter count, changes;
  void Record(const std::vector<sim::EventStep>& steps);
};

struct WorldMetrics {
  std::array<std::array<GuardedCounter, 4>, kModes> rollouts;  // [mode][outcome]
  std::array<GuardedCounter, kModes> instances;                // [mode]
  GuardedCounter gradients, gradient_zero, gradient_disconnected;
  GuardedHistogram gradient_norm;
  std::map<std::string, TerminationMetrics> terminations;  // by site
  std::map<std::string, EventMetrics> events;
  std::map<std::string, GuardedCounter> path_flips;
};

WorldMetrics MakeWorldMetrics(const Registry& registry, const WorldLabels& labels);

// The handles of one program's sites, in the order of its diagnostics. A site that the world does
// not declare counts as "custom" does where there is one.
struct SiteHandles {
  std::vector<TerminationMetrics*> terminations;
  std::vector<EventMetrics*> events;
};
SiteHandles HandlesOf(WorldMetrics& world, const std::vector<sim::Site>& sites);

// Decisions at a site that two runs took otherwise. A site that the world does not declare counts as
// "custom" does where there is one.
void AddFlips(WorldMetrics& world, const std::string& site, uint64_t flips);

// Counts per bucket, with their sum: from what the executor kept of each step. Iterations are kept
// in the buckets of the metric, margins in finer ones.
struct BucketCounts {
  std::vector<double> counts;  // bounds.size() + 1
  double sum = 0.0;
};
BucketCounts IterationCounts(const std::vector<sim::TerminationStep>& steps);
BucketCounts MarginCounts(const std::vector<sim::TerminationStep>& steps,
                          const std::vector<double>& bounds);

}  // namespace simgrad::server::metrics
