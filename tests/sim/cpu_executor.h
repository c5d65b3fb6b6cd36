// The executor of the CPU as tests want it: everything is compiled, quickly, and kept.
//
// A build without LLVM has none; tests then compare the reference executor with itself.
#pragma once

#include <memory>

#include "sim/backend/executor.h"
#if defined(SIMGRAD_WITH_COMPILED)
#include "sim/backend/compiled/compiled_executor.h"
#else
#include "sim/backend/reference/reference_executor.h"
#endif

namespace simgrad::sim {

inline std::shared_ptr<Executor> MakeCpuExecutor() {
#if defined(SIMGRAD_WITH_COMPILED)
  static const std::shared_ptr<Executor> executor =
      compiled::MakeCompiledExecutor(compiled::KernelOptions{.effort = compiled::Effort::kQuick});
  return executor;
#else
  return MakeReferenceExecutor();
#endif
}

}  // namespace simgrad::sim
