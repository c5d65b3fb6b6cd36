#include "sim/diagnostics/diagnostics.h"

#include <algorithm>
#include <cmath>

#include "precision/rounding.h"
#include "precision/selection.h"

namespace simgrad::sim {
namespace {

// Extremes by IEEE minimum and maximum, which order -0 below +0: so no bit depends on the order.
void KeepMin(double& kept, double offered) { kept = precision::Min(kept, offered); }
void KeepMax(double& kept, double offered) { kept = precision::Max(kept, offered); }

template <size_t N, class T>
void AddEach(std::array<T, N>& to, const std::array<T, N>& from) {
  for (size_t i = 0; i < N; ++i) to[i] += from[i];
}

// Whether (value, instance, test) takes the place of what is kept: smaller magnitude, then smaller
// instance, then the negative one, then the smaller number.
bool TakesPlace(double value, uint64_t instance, uint32_t test, double kept, uint64_t kept_instance,
                uint32_t kept_test) {
  const double magnitude = std::abs(value);
  const double kept_magnitude = std::abs(kept);
  if (magnitude != kept_magnitude) return magnitude < kept_magnitude;
  if (instance != kept_instance) return instance < kept_instance;
  if (std::signbit(value) != std::signbit(kept)) return std::signbit(value);
  return test < kept_test;
}

template <class T>
void MergeColumns(std::vector<std::vector<T>>& to, const std::vector<std::vector<T>>& from) {
  for (size_t outer = 0; outer < to.size(); ++outer) {
    for (size_t step = 0; step < to[outer].size(); ++step) {
      to[outer][step].Merge(from[outer][step]);
    }
  }
}

void MergeColumns(std::vector<std::vector<MarginHistogram>>& to,
                  const std::vector<std::vector<MarginHistogram>>& from) {
  for (size_t event = 0; event < to.size(); ++event) {
    for (size_t sample = 0; sample < to[event].size(); ++sample) {
      AddEach(to[event][sample], from[event][sample]);
    }
  }
}

template <class T>
void AppendColumns(std::vector<std::vector<T>>& to, const std::vector<std::vector<T>>& from) {
  if (to.empty()) to.resize(from.size());
  for (size_t outer = 0; outer < from.size(); ++outer) {
    to[outer].insert(to[outer].end(), from[outer].begin(), from[outer].end());
  }
}

void AddCounts(std::vector<AdditionCounts>& to, const std::vector<AdditionCounts>& from) {
  if (to.empty()) {
    to = from;
    return;
  }
  for (size_t site = 0; site < from.size(); ++site) {
    to[site].additions += from[site].additions;
    to[site].absorbed += from[site].absorbed;
  }
}

}  // namespace

std::string_view StopReasonName(StopReason reason) {
  constexpr std::array<std::string_view, kStopReasonCount> kNames = {
      "converged", "max_iter", "nonfinite", "not_entered", "counter"};
  return kNames[static_cast<size_t>(reason)];
}

std::string_view PhaseName(Phase phase) {
  constexpr std::array<std::string_view, 3> kNames = {"input", "forward", "adjoint"};
  return kNames[static_cast<size_t>(phase)];
}

std::string_view NonFiniteClassName(NonFiniteClass c) {
  constexpr std::array<std::string_view, 5> kNames = {"input", "invalid", "divide_by_zero",
                                                      "overflow", "conversion"};
  return kNames[static_cast<size_t>(c)];
}

int MarginBucket(double absolute_ulps) {
  if (absolute_ulps == 0.0) return 0;
  if (absolute_ulps <= 1.0) return 1;
  if (std::isinf(absolute_ulps)) return kMarginBuckets - 1;
  int exponent = 0;  // absolute_ulps = fraction * 2^exponent, fraction in [1/2, 1)
  const double fraction = std::frexp(absolute_ulps, &exponent);
  const int ceil_log2 = fraction == 0.5 ? exponent - 1 : exponent;
  return std::min(ceil_log2 + 1, kMarginBuckets - 1);
}

size_t IterationBucket(uint64_t iterations) {
  const auto* const bound =
      std::lower_bound(kIterationBounds.begin(), kIterationBounds.end(), iterations);
  return static_cast<size_t>(bound - kIterationBounds.begin());
}

int ExponentBucket(double magnitude) {
  if (magnitude == 0.0) return 0;
  // floor((e + 136) / 8); the smallest e, -1074, is clamped below, so shift by a multiple of 8.
  constexpr int kShift = 136 * 8;
  const int bucket = (std::ilogb(magnitude) + 136 + kShift) / 8 - kShift / 8;
  return std::clamp(bucket, 1, kExponentBuckets - 1);
}

void SmallestMargin::Offer(double margin, double margin_ulps, uint64_t instance,
                           uint32_t deciding) {
  Merge({margin, instance, margin_ulps, instance, deciding, true});
}

void SmallestMargin::Merge(const SmallestMargin& other) {
  if (!other.any) return;
  if (!any) {
    *this = other;
    return;
  }
  if (TakesPlace(other.absolute, other.absolute_instance, 0, absolute, absolute_instance, 0)) {
    absolute = other.absolute;
    absolute_instance = other.absolute_instance;
  }
  if (TakesPlace(other.ulps, other.ulps_instance, other.test, ulps, ulps_instance, test)) {
    test = other.test;
    ulps = other.ulps;
    ulps_instance = other.ulps_instance;
  }
}

void TerminationStep::Merge(const TerminationStep& other) {
  runs += other.runs;
  iterations_sum += other.iterations_sum;
  iterations_min = std::min(iterations_min, other.iterations_min);
  iterations_max = std::max(iterations_max, other.iterations_max);
  AddEach(iterations, other.iterations);
  AddEach(reasons, other.reasons);
  KeepMin(tested_min, other.tested_min);
  KeepMax(tested_max, other.tested_max);
  margin.Merge(other.margin);
  AddEach(histogram, other.histogram);
  nan_margins += other.nan_margins;
  checks += other.checks;
  near_stopped += other.near_stopped;
  near_continued += other.near_continued;
}

void EventStep::Merge(const EventStep& other) {
  checks += other.checks;
  count += other.count;
  changes += other.changes;
  margin.Merge(other.margin);
  nan_margins += other.nan_margins;
}

void StateRange::Note(double x, double smallest_normal) {
  if (!std::isfinite(x)) {
    ++(std::isnan(x) ? nans : infinities);
    return;
  }
  KeepMin(min, x);
  KeepMax(max, x);
  if (x == 0.0) {
    ++zeros;
    return;
  }
  const double magnitude = std::abs(x);
  KeepMin(smallest, magnitude);
  subnormals += magnitude < smallest_normal ? 1 : 0;
}

void StateRange::Merge(const StateRange& other) {
  KeepMin(min, other.min);
  KeepMax(max, other.max);
  KeepMin(smallest, other.smallest);
  subnormals += other.subnormals;
  zeros += other.zeros;
  nans += other.nans;
  infinities += other.infinities;
}

void BackwardStep::Merge(const BackwardStep& other) {
  KeepMax(largest, other.largest);
  nonfinite += other.nonfinite;
  AddEach(exponents, other.exponents);
}

void RangeCounts::NoteCast(precision::Role role, precision::Format to, double x, double r) {
  const double smallest_normal = std::ldexp(1.0, precision::Traits(to).min_exponent);
  const size_t k = static_cast<size_t>(role);
  if (x != 0.0 && std::abs(r) < smallest_normal) ++underflows[k];
  // A saturated r is finite, so the test is on x rounded without saturation.
  if (!std::isfinite(precision::RoundTo(to, x))) ++overflows[k];
}

void AdditionCounts::Note(double x, double y, double stored) {
  if (!precision::IsFinite(x) || !precision::IsFinite(y) || x == 0.0 || y == 0.0) return;
  ++additions;
  if (stored == x || stored == y) ++absorbed;
}

void RangeCounts::Merge(const RangeCounts& other) {
  AddEach(underflows, other.underflows);
  AddEach(overflows, other.overflows);
}

StepDiagnostics StepDiagnostics::For(const std::vector<Site>& sites, size_t real_states,
                                     int64_t first_step, int64_t steps, int64_t total_steps,
                                     int32_t stride, bool event_margins) {
  StepDiagnostics made;
  made.first_step = first_step;
  made.steps = steps;
  made.stride = stride;
  const size_t columns = static_cast<size_t>(steps);
  for (const Site& site : sites) {
    if (site.kind == SiteKind::kTermination) {
      made.terminations.emplace_back(columns);
    } else {
      made.events.emplace_back(columns);
    }
  }
  for (int64_t t = first_step; t < first_step + steps; ++t) {
    const bool at_stride = stride > 0 && (t + 1) % stride == 0;
    if (at_stride || t + 1 == total_steps) made.sampled_steps.push_back(t);
  }
  made.states.assign(real_states, std::vector<StateRange>(made.sampled_steps.size()));
  if (event_margins) {
    made.event_margins.assign(made.events.size(),
                              std::vector<MarginHistogram>(made.sampled_steps.size()));
  }
  return made;
}

void StepDiagnostics::Merge(const StepDiagnostics& part) {
  MergeColumns(terminations, part.terminations);
  MergeColumns(events, part.events);
  MergeColumns(states, part.states);
  MergeColumns(event_margins, part.event_margins);
  ranges.Merge(part.ranges);
  AddCounts(additions, part.additions);
}

void StepDiagnostics::Append(const StepDiagnostics& next) {
  steps += next.steps;
  sampled_steps.insert(sampled_steps.end(), next.sampled_steps.begin(), next.sampled_steps.end());
  AppendColumns(terminations, next.terminations);
  AppendColumns(events, next.events);
  AppendColumns(states, next.states);
  AppendColumns(event_margins, next.event_margins);
  ranges.Merge(next.ranges);
  AddCounts(additions, next.additions);
}

}  // namespace simgrad::sim
