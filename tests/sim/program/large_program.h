// A world of the size and make of a physics step: blocks of arithmetic on arrays of 3 to 729
// elements, events and choices, and loops in loops.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "sim/program/program.h"

namespace simgrad::sim::large {

// Operations of all regions of a program, each once.
int64_t OperationsOf(const Program& program);

// How a step makes the next states of what its blocks compute.
enum class Step : uint8_t {
  kReplaces,  // as it is: behind choices, a cotangent may be absent
  kAdvances,  // z + h times it: every cotangent is present everywhere
};

// A world of at most `operations` of them, and no more than one block (about 180) fewer.
Program LargeProgram(int64_t operations, Step step = Step::kReplaces);

}  // namespace simgrad::sim::large
