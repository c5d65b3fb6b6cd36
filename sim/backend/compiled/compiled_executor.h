// The executor that compiles plans: results without diagnostics, as yet.
//
// Errors: UNIMPLEMENTED for a recording other than kNone and for adjoints.
#pragma once

#include <memory>
#include <optional>

#include "sim/backend/compiled/kernel.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::compiled {

std::unique_ptr<Executor> MakeCompiledExecutor(const KernelOptions& options = {});

}  // namespace simgrad::sim::compiled
