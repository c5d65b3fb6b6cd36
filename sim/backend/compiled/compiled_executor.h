// The executor that compiles plans (sim/backend/compiled/README.md).
//
// Maths: the bits of the reference executor, whatever code is ready and runs.
// Cost: little work that is new is run by the reference executor, which needs neither a plan nor a
//   compile; other work waits for a quick compile, unless its kernel is kept. The best code follows in
//   the background and is used from the next chunk of steps on.
// Errors: those of Executor; INTERNAL with the compiler's words.
// Threads: immutable but for what it keeps. A run may outlive its executor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "sim/backend/compiled/kernels/kernel.h"
#include "sim/backend/compiled/kernels/kernel_cache.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::compiled {

struct CompiledOptions {
  Isa isa = BestIsa();
  std::optional<int> parts;                     // as KernelOptions
  std::optional<Mapping> mapping;               // else as mapping.h says
  bool near_zero = false;                       // as KernelOptions
  plan::CutLimits cut;                          // of large functions
  uint64_t most_frame_bytes = kMostFrameBytes;  // of a function; with more the reference runs it
  std::function<void(plan::Plan&)> edit;        // as KernelOptions
  // Element-operations of a run at its caps: at most that many, or at most that many for each
  // statement to be compiled (each operation, before there is a plan), are left to the reference executor where there is no kernel yet; both
  // 0: none. A gradient of 20,000 operations: 9 s to compile it, 0.2 s for the reference.
  double little_work = 1 << 18;
  double little_work_per_statement = 64;
  // The most of one function or piece; a program with more is left to the reference executor.
  int64_t most_statements = 40'000;
  int64_t most_plan_bytes = int64_t{64} << 20;  // the newest is kept whatever its size
  KernelCacheOptions kernels;
};

// Counts of what ran where, and of what is kept.
struct CompiledUse {
  CompilerUse compiler;
  int64_t plans = 0;
  int64_t plan_bytes = 0;
  uint64_t runs_compiled = 0;
  uint64_t runs_by_reference = 0;
};

class CompiledExecutor : public Executor {
 public:
  virtual CompiledUse use() const = 0;
};

std::unique_ptr<CompiledExecutor> MakeCompiledExecutor(const CompiledOptions& options);
// Compiles every program with this effort and waits for it.
std::unique_ptr<CompiledExecutor> MakeCompiledExecutor(const KernelOptions& options = {});

}  // namespace simgrad::sim::compiled
