// Results of an adjoint beside gradients: how the solves of its implicit derivatives ended.
//
// The adjoint has no records as the forward pass has. A solve accumulates its results as if they
// were the gradients of two inputs that nothing reads, of kind data and behind all others: "SITE
// counted" adds up [solves, turns, capped], "SITE largest" keeps the largest [turns, residual]. So
// every executor adds them up per instance, over steps and over runs in a step, with no code for
// it. These inputs stand in the text of the adjoint alone.
// Formats: they are rounded in role gradient, so what is counted is exact up to 2^24 in f32. Where
//   that role is narrower than f32, nothing is told.
#pragma once

#include <cstdint>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

enum class ToldPart : uint8_t { kCounted, kLargest };
inline constexpr int64_t kToldParts = 2;
// Numbers of each part.
inline constexpr int64_t kCountedNumbers = 3;  // solves, turns, capped
inline constexpr int64_t kLargestNumbers = 2;  // turns, residual

bool Tells(const precision::Policy& policy);

// The input that `accumulate` names, until PlaceTold, for site `number` of those told of.
inline int32_t UnplacedTold(int64_t number, ToldPart part) {
  return static_cast<int32_t>(-2 - kToldParts * number - static_cast<int64_t>(part));
}

// Adds the inputs that the adjoint tells by, and lets its operations name them.
NumericalProgram PlaceTold(NumericalProgram numerical, PassBudget& budget);

// The index of the input that holds a part of what is told of site `number`.
int32_t ToldInput(const Adjoint& adjoint, size_t number, ToldPart part);

// The number of inputs before the told ones: the inputs of the forward pass.
size_t UntoldInputs(const NumericalProgram& numerical);

}  // namespace simgrad::sim
