// The executors whose decisions are compared.
#pragma once

#include <memory>
#include <vector>

#include "sim/backend/reference/reference_executor.h"
#include "tests/sim/cpu_executor.h"

namespace simgrad::sim {

inline std::vector<std::shared_ptr<Executor>> TestedExecutors() {
  return {MakeReferenceExecutor(), MakeCpuExecutor()};
}

}  // namespace simgrad::sim
