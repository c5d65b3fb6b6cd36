// The expectations that random cases put to an executor. Environment: SIMGRAD_SEED=n runs case n alone,
// SIMGRAD_LONG=1 twenty times as many.
#pragma once

#include <memory>

#include "sim/backend/executor.h"
#include "tests/sim/equality/coverage.h"

namespace simgrad::sim::equality {

// Every case gives the bits of the reference, though it is cut into other chunks, with other
// checkpoints and threads.
void ExpectEqualToReference(std::shared_ptr<Executor> executor, Coverage& coverage);

// One instance of a case, alone, gives what it gives among the others. Every fifth case.
void ExpectInstancesAlone(std::shared_ptr<Executor> executor);

// Whether so many cases ran that their coverage says something.
bool IsWholeSeries(const Coverage& coverage);

}  // namespace simgrad::sim::equality
