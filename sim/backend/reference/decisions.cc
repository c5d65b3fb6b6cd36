#include "sim/backend/reference/decisions.h"

#include <algorithm>
#include <cmath>

#include "precision/hash.h"
#include "precision/selection.h"

namespace simgrad::sim::reference {
namespace {

bool IsNan(const precision::Margin& margin) {
  return std::isnan(margin.absolute) || std::isnan(margin.ulps);
}

}  // namespace

DecisionRecorder::DecisionRecorder(const std::vector<Site>& sites, uint64_t instance_id,
                                   double near_band_ulps)
    : instance_id_(instance_id), near_band_ulps_(near_band_ulps) {
  for (const Site& site : sites) {
    if (site.kind == SiteKind::kEvent) event_elements_.push_back(site.elements);
    sites_[site.name] = {HashOfSite(site.name), static_cast<size_t>(site.number), site.elements};
  }
}

PathState DecisionRecorder::InitialState() const {
  PathState state;
  for (int64_t elements : event_elements_) {
    state.last_events.emplace_back(static_cast<size_t>(elements), uint32_t{0});
    state.first_event_steps.push_back(-1);
  }
  return state;
}

void DecisionRecorder::BeginStep(int64_t t, PathState* state, StepColumn column) {
  step_ = t;
  state_ = state;
  column_ = column;
}

InstanceSite* DecisionRecorder::InstanceAt(const SiteState& site) {
  if (column_.instance_sites == nullptr) return nullptr;
  return &(*column_.instance_sites)[site.index];
}

void DecisionRecorder::Test(const std::string& site, const TestedPair& pair, bool entered) {
  const SiteState& at = sites_.find(site)->second;
  if (!entered) NoteTested(at, pair.tested);
  CountTest(at, pair, pair.held);
}

void DecisionRecorder::EntryTest(const std::string& site, const TestedPair& pair) {
  const SiteState& at = sites_.find(site)->second;
  NoteTested(at, pair.tested);
  CountTest(at, pair, !pair.held);
}

void DecisionRecorder::CountTest(const SiteState& site, const TestedPair& pair, bool ends) {
  const precision::Margin& margin = pair.margin;
  if (column_.diagnostics == nullptr) return;
  TerminationStep& step = column_.diagnostics->terminations[site.index][column_.column];
  ++step.checks;
  if (IsNan(margin)) {
    ++step.nan_margins;
    return;
  }
  step.margin.Offer(margin.absolute, margin.ulps, instance_id_, pair.test);
  if (std::abs(margin.ulps) <= near_band_ulps_) {
    ++(ends ? step.near_stopped : step.near_continued);
  }
}

void DecisionRecorder::NoteTested(const SiteState& site, double tested) {
  if (InstanceSite* record = InstanceAt(site)) {
    ++record->value_counts[Cell()];
    record->values[column_.row].push_back(tested);
  }
}

void DecisionRecorder::EndRun(const std::string& site, DecisionPlace place, int64_t iterations,
                              StopReason reason, const TestedPair& last) {
  const SiteState& at = sites_.find(site)->second;
  const uint64_t count = static_cast<uint64_t>(iterations);
  state_->signature += precision::DecisionHash(
      at.hash, static_cast<uint64_t>(step_), static_cast<uint64_t>(place.iteration),
      static_cast<uint64_t>(place.element),
      precision::LoopOutcome(count, static_cast<uint64_t>(reason)));
  if (InstanceSite* record = InstanceAt(at)) {
    record->iterations[Cell()] += static_cast<uint32_t>(iterations);
    record->reasons[Cell()] = static_cast<uint8_t>(reason);
  }
  if (column_.diagnostics == nullptr) return;
  TerminationStep run;
  run.runs = 1;
  run.iterations_sum = count;
  run.iterations_min = run.iterations_max = static_cast<uint32_t>(iterations);
  run.iterations[IterationBucket(count)] = 1;
  run.reasons[static_cast<size_t>(reason)] = 1;
  if (!std::isnan(last.tested)) run.tested_min = run.tested_max = last.tested;
  if (!IsNan(last.margin)) {
    run.histogram[static_cast<size_t>(MarginBucket(std::abs(last.margin.ulps)))] = 1;
  }
  column_.diagnostics->terminations[at.index][column_.column].Merge(run);
}

void DecisionRecorder::Event(const std::string& site, DecisionPlace place, bool guard,
                             const TestedPair& pair) {
  Decide(site, place, guard, guard && pair.held ? 1 : 0, pair.margin);
}

void DecisionRecorder::Choice(const std::string& site, DecisionPlace place, uint32_t chosen,
                              const precision::Margin& margin) {
  Decide(site, place, true, chosen, margin);
}

void DecisionRecorder::Decide(const std::string& site, DecisionPlace place, bool guard,
                              uint32_t value, const precision::Margin& margin) {
  const SiteState& at = sites_.find(site)->second;
  uint32_t& last = state_->last_events[at.index][static_cast<size_t>(place.element)];
  const bool changed = value != last;
  last = value;
  if (changed) {
    state_->signature += precision::DecisionHash(at.hash, static_cast<uint64_t>(step_),
                                                 static_cast<uint64_t>(place.iteration),
                                                 static_cast<uint64_t>(place.element), value);
  }
  int64_t& first = state_->first_event_steps[at.index];
  if (value != 0 && first < 0) first = step_;
  if (column_.diagnostics == nullptr) return;
  EventStep& step = column_.diagnostics->events[at.index][column_.column];
  step.changes += changed ? 1 : 0;
  step.count += value != 0 ? 1 : 0;
  if (!guard) return;
  ++step.checks;
  if (IsNan(margin)) {
    ++step.nan_margins;
  } else {
    step.margin.Offer(margin.absolute, margin.ulps, instance_id_);
    CountMargin(at, std::abs(margin.ulps));
  }
}

void DecisionRecorder::CountMargin(const SiteState& event, double ulps) {
  auto& margins = column_.diagnostics->event_margins;
  if (margins.empty() || !column_.sample) return;
  ++margins[event.index][*column_.sample][static_cast<size_t>(MarginBucket(ulps))];
}

}  // namespace simgrad::sim::reference
