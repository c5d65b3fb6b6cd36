// The executor that compiles plans; forward runs, up to the recording kSummary.
//
// Errors: UNIMPLEMENTED for the recording kInstances and for adjoints.
#pragma once

#include <memory>
#include <optional>

#include "sim/backend/compiled/kernel.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::compiled {

std::unique_ptr<Executor> MakeCompiledExecutor(const KernelOptions& options = {});

}  // namespace simgrad::sim::compiled
