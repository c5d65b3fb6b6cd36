// Reverses regions: straight lists of operations, and the loops in them (loop.h).
#pragma once

#include "sim/program/adjoint_writer.h"
#include "sim/program/loop_captures.h"
#include "sim/program/numerical_program.h"
#include "sim/program/presence_plan.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// The state that all regions of one differentiation share.
struct Reversal {
  AdjointWriter& writer;
  const LoopCaptures& captures;
  const PresencePlan& plan;
  ReadOrder& order;
  const std::vector<LoopChoice>& choices;  // loop_choice.h
  const precision::Policy& policy;
};

// Writes the adjoint of `primal` into the innermost scope of `writer`, whose slots hold what was
// contributed to the region's yields. The caller has called writer.DefinesPrimal(primal). Adds the
// kink comparisons that the adjoint reads to `primal`. `scope` is the region in the plan; every
// region is written once, with the presence that was planned.
void ReverseRegion(const Reversal& reversal, Region& primal, PresencePlan::ScopeId scope);

}  // namespace simgrad::sim
