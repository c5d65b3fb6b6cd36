// Which results an executor must look at so that no non-finite number stays unseen.
//
// Maths: an instance is non-finite as soon as any executed operation gives NaN or Inf
//   (docs/semantics.md). Looking at every result would cost more than computing it. But a
//   non-finite number that arises in one place mostly arrives in another: a + NaN is NaN. So only
//   results that can be *born* non-finite matter, and of these only the ones that are not
//   *covered*: a value is covered where something that is executed whenever the value exists
//   carries its non-finiteness to a value that is looked at or is covered itself.
//   Carriers are operations that always propagate (OpInfo::propagates and OpInfo::carries), the
//   yields the caller looks at anyway, and loops: a carried slot is covered if every test reads it
//   so, or if the final result is and the body hands it on (greatest fixpoint; it is sound because
//   every iteration moves towards that result). What is computed under a mask (adjoint) is covered
//   only by what has the same mask or none.
// Cost: linear in the program. Throws PassBudget::Ended where the budget is told to stop. Threads:
//   pure.
#pragma once

#include <span>
#include <vector>

#include "precision/policy.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

struct Detection {
  // By value: its definition is followed by a look at its elements. For the yields that the caller
  // looks at, never set.
  std::vector<bool> look;
};

// For one top-level region. `looked_at`: values that the caller looks at after every execution.
Detection DetectNonFinite(const Program& program, const precision::Policy& policy,
                          const Region& region, std::span<const ValueId> looked_at,
                          PassBudget* budget = nullptr);

// The looks of a lowered program, by value: of `initial`, `step` and the terminal cost, whose
// yields (and the stage cost) the executor looks at anyway; kAll: and of its adjoint.
enum class LooksIn : uint8_t { kForward, kAll };
std::vector<bool> LooksOf(const NumericalProgram& program, LooksIn where,
                          PassBudget* budget = nullptr);

}  // namespace simgrad::sim
