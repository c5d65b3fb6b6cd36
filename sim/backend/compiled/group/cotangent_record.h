// Records the cotangents of a state that leave a step (Code::kTake), where lanes hold elements.
//
// Maths: as BackwardStep says of one number (sim/diagnostics/diagnostics.h), for all elements of one
//   instance: largest finite magnitude, non-finite numbers, histogram of exponents; and how many are
//   subnormal in the format. A histogram is counted bucket by bucket: a comparison of all elements
//   for each bucket between the first and the last that occur, in vectors.
// Errors: none. Threads: any, on columns of their own. Cost: linear; the more buckets lie between the
//   first and the last, the more. Nothing stops it.
#pragma once

#include <cstdint>

#include "sim/backend/columns.h"

namespace simgrad::sim::compiled {

// `values`: floats; doubles where the format is f64. `present`: by element, not 0 where it is; null:
// all are. `underflows` counts those that are subnormal in `format`, a number of precision::Format.
void TakeCotangents(BackwardColumn* column, unsigned long long* underflows, const void* values,
                    const uint32_t* present, int64_t count, int32_t format);

}  // namespace simgrad::sim::compiled
