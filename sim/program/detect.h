// Finds the results that an executor must check for NaN and Inf, so that none goes unseen.
//
// Maths: an instance is non-finite as soon as any executed operation gives NaN or Inf
//   (docs/semantics.md). Checking every result would cost more than computing it, but most
//   operations pass a NaN on: a + NaN is NaN. So a result needs a check only if it can be *born*
//   non-finite and is not *covered*. A value is covered if an operation that always runs when the
//   value exists carries its NaN or Inf to a value that is checked or covered itself.
//   Three things carry: operations that always propagate (OpInfo::propagates, OpInfo::carries),
//   yields that the caller checks anyway, and loops. A carried slot is covered if every test covers
//   it, or if the final result is covered and the body hands the slot on. That is a greatest
//   fixpoint; it is sound because every iteration moves towards the final result. A value computed
//   under a mask (in the adjoint) is covered only by an operation under the same mask, or none.
//   A value that may be infinite by intent (infinities.h) is looked at for NaN alone, and covers
//   only values of its kind.
//   What an adjoint reads of the primal (primal_reads.h) is looked at through its readers: through the
//   reader's result, if that is always non-finite with it, else just before the reader.
// Errors: throws PassBudget::Ended if the budget is told to stop. Cost: linear in the program.
// Threads: pure.
#pragma once

#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "precision/policy.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"
#include "sim/program/primal_reads.h"

namespace simgrad::sim {

struct Detection {
  // By value: whether its elements are checked after its definition. Never set for the yields that
  // the caller checks.
  std::vector<bool> look;
  // By operation: what is checked before it, where it reads it (PrimalRead).
  absl::flat_hash_map<const Op*, std::vector<PrimalRead>> reads;
};

// Finds them in one top-level region. The caller checks `looked_at` after every execution.
Detection DetectNonFinite(const NumericalProgram& numerical, const Region& region,
                          std::span<const ValueId> looked_at, PassBudget* budget = nullptr);

// Returns what executors check of a lowered program, which must outlive it: in `initial`, `step` and the
// terminal cost, whose yields (and the stage cost) they check anyway; with kAll in its adjoint too.
enum class LooksIn : uint8_t { kForward, kAll };
Detection LooksOf(const NumericalProgram& program, LooksIn where, PassBudget* budget = nullptr);

}  // namespace simgrad::sim
