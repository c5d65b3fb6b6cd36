// The Instance of a program for device/instance.h: its members, and how they are loaded, stored,
// cleared, checked, sampled and reversed.
//
// Errors: none. Cost: linear in fields, inputs and sites. Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "sim/backend/cuda/text/program_layout.h"

namespace simgrad::sim::cuda {

// `workspace`: the bytes that the arrays of a block take, known when all functions are written.
std::string InstanceText(const ProgramLayout& layout, int64_t workspace);

}  // namespace simgrad::sim::cuda
