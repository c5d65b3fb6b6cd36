// Cuts large functions of a plan into pieces, which a compiler takes one at a time.
//
// Maths: the same statements in the same order. What one piece makes and a later one reads lies in
//   the workspace; what depends on nothing (numbers, inputs at a fixed place) is made again. A
//   statement with a body is never cut, nor the tests of a run from its end.
// Cost: n log n. Threads: pure.
#pragma once

#include "sim/plan/plan.h"
#include "sim/work_meter.h"

namespace simgrad::sim::plan {

// Statements, those of bodies included.
struct CutLimits {
  int64_t whole = 4000;  // a function of so many stays whole
  int64_t piece = 1000;  // a piece ends before it has more, where it can
};

// Expects a placed plan; its locals get new places. Throws StopRequested.
Plan CutLargeFunctions(Plan plan, const CutLimits& limits, WorkMeter& meter);
inline Plan CutLargeFunctions(Plan plan, const CutLimits& limits = {}) {
  WorkMeter meter;
  return CutLargeFunctions(std::move(plan), limits, meter);
}

}  // namespace simgrad::sim::plan
