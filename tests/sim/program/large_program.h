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

// A world of at most `operations` of them, and no more than one block (about 180) fewer.
Program LargeProgram(int64_t operations);

}  // namespace simgrad::sim::large
