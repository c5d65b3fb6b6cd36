// Finds the additions that a state is stored from: those of which absorption is counted.
//
// Maths: x + y is absorbed where the sum, rounded as the state stores it, is x or y although neither is
//   zero: a step that does nothing, while its derivative is 1. Definition: docs/semantics.md,
//   "Absorption".
// Which: every `add`, `sub` and `fma` of reals in `step` that is reached backward from a stored state
//   through select, min, max, casts, stop_gradient, the operations of shape, concat, update, the yields
//   of a `for`, the regions of a `cond` and halts. What a `while` gives is not followed: its last
//   corrections are absorbed where it has converged. Nor is what a cast rounds stochastically, which
//   moves in the mean, nor what lies behind more than kMostAdditionCasts casts: each addition repeats
//   the casts in front of it.
// Threads: pure. Cost: linear in the program.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/program/numerical_program.h"

namespace simgrad::sim {

// The most sites, in the order of the text, at which additions are counted. Programs have few. The
// additions behind them share one site for each role: kOtherAdditions.
inline constexpr size_t kMostAdditionSites = 64;
inline constexpr char kOtherAdditions[] = "others";
// The most casts between a sum and the state that are followed. A policy writes one where roles meet.
inline constexpr size_t kMostAdditionCasts = 8;
struct AdditionSite {
  std::string state;  // that is stored
  std::string label;  // of the operation; may be empty
  Role role = Role::kDynamics;
};

struct Addition {
  int32_t site = 0;
  // The casts between the sum and the state, in order of execution. The program owns them.
  std::vector<const Op*> casts;
};

struct Additions {
  std::vector<AdditionSite> sites;
  std::unordered_map<ValueId, Addition> by_sum;
  const Addition* Of(ValueId sum) const {
    const auto found = by_sum.find(sum);
    return found == by_sum.end() ? nullptr : &found->second;
  }
};

// Finds them. A sum that is reached along several ways belongs to the first: states, then operands.
Additions AdditionsOf(const NumericalProgram& program);

}  // namespace simgrad::sim
