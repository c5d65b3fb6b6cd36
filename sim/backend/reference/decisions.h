// Counts what one instance decides at its sites: diagnostics, path signature, event history.
//
// The rules are docs/semantics.md, "Decisions" and "Margins".
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "precision/ulp.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::reference {

// The memory that an instance has of its decisions from step to step.
struct PathState {
  uint64_t signature = 0;
  std::vector<std::vector<uint32_t>> last_events;  // [event site][element]
  std::vector<int64_t> first_event_steps;          // [event site]; -1: never
};

// The sinks of the decisions of one step.
struct StepColumn {
  StepDiagnostics* diagnostics = nullptr;
  std::vector<InstanceSite>* instance_sites = nullptr;  // null below level `instances`
  size_t column = 0;                                    // the step's place in the chunk
  std::optional<size_t> sample;                         // among the sampled steps, if it is one
  size_t row = 0;                                       // the instance's
  size_t instances = 0;
};

// A comparison that was evaluated.
struct TestedPair {
  double tested = 0.0;  // the left side
  precision::Margin margin{0.0, 0.0};
  bool held = false;
  bool by_counter = false;  // a predicate: integers alone decided
  bool has_nan = false;     // a predicate: some real test of it has a NaN margin
  uint32_t test = 0;        // a predicate: the deciding test, by number
};

// The place of a decision in the loops around it.
struct DecisionPlace {
  int64_t iteration = 0;  // j
  int64_t element = 0;    // e
};

class DecisionRecorder {
 public:
  DecisionRecorder(const std::vector<Site>& sites, uint64_t instance_id, double near_band_ulps);
  PathState InitialState() const;

  // From here on decisions belong to step t.
  void BeginStep(int64_t t, PathState* state, StepColumn column);

  // A test of a loop that would end it; `entered`: its value passed the entry test just before.
  void Test(const std::string& site, const TestedPair& pair, bool entered);
  void EntryTest(const std::string& site, const TestedPair& pair);
  // The end of a run after its last test.
  void EndRun(const std::string& site, DecisionPlace place, int64_t iterations, StopReason reason,
              const TestedPair& last);
  // One element of an event; not decided where the guard is false (pair.held is false then).
  void Event(const std::string& site, DecisionPlace place, bool guard, const TestedPair& pair);
  // One element of a choice.
  void Choice(const std::string& site, DecisionPlace place, uint32_t chosen,
              const precision::Margin& margin);

 private:
  struct SiteState {
    uint64_t hash = 0;
    size_t index = 0;  // among the sites of its kind
    int64_t elements = 1;
  };
  InstanceSite* InstanceAt(const SiteState& site);
  void NoteTested(const SiteState& site, double tested);
  void Decide(const std::string& site, DecisionPlace place, bool guard, uint32_t value,
              const precision::Margin& margin);
  void CountTest(const SiteState& site, const TestedPair& pair, bool ends);
  // Counts the margin of an event or choice, a magnitude in ulps, if the step is sampled.
  void CountMargin(const SiteState& event, double ulps);
  size_t Cell() const { return column_.column * column_.instances + column_.row; }

  std::map<std::string, SiteState, std::less<>> sites_;
  std::vector<int64_t> event_elements_;
  uint64_t instance_id_;
  double near_band_ulps_;
  int64_t step_ = 0;
  PathState* state_ = nullptr;
  StepColumn column_;
};

}  // namespace simgrad::sim::reference
