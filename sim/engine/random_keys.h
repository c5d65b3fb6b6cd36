// The keys of random draws, one per instance: the input that sim/program/draws.h adds to a program.
//
// Maths: docs/numerics.md section 4: splitmix64(seed ^ splitmix64(instance_id)), so that draws do
//   not depend on where an instance stands in a batch.
// Errors: none. Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/backend/executor.h"

namespace simgrad::sim {

Binding RandomKeys(uint64_t seed, const std::vector<uint64_t>& instance_ids);

}  // namespace simgrad::sim
