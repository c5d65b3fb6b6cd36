// The executor that compiles plans (sim/backend/compiled/README.md).
//
// Errors: those of Executor; INTERNAL with the compiler's words.
#pragma once

#include <memory>
#include <optional>

#include "sim/backend/compiled/kernel.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::compiled {

std::unique_ptr<Executor> MakeCompiledExecutor(const KernelOptions& options = {});

}  // namespace simgrad::sim::compiled
