// The words of C++ for types, formats and hashes that a text names.
//
// Errors: none. Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "precision/format.h"
#include "sim/backend/cuda/kernel_abi.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::cuda {

std::string TypeText(plan::Carrier carrier);
std::string TypeText(MemoryType memory_type);
std::string FormatText(precision::Format format);  // "Format::kF32"
std::string HashText(uint64_t hash);

}  // namespace simgrad::sim::cuda
