// Plans of the programs that ran last, so that a repeated request neither plans nor compiles.
//
// A program that runs for few instances and for many has a plan for each mapping (mapping.h).
// Threads: any. If two threads miss at once, both plan and one plan is kept. Errors: Get throws StopRequested.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sim/backend/compile_watch.h"
#include "sim/backend/compiled/kernels/kernel.h"
#include "sim/backend/compiled/kernels/mapping.h"
#include "sim/backend/compiled/kernels/memory_need.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::compiled {

// A program as one kind of run needs it.
struct PlannedProgram {
  std::shared_ptr<const NumericalProgram> program;  // known by its address, which it keeps
  std::shared_ptr<const plan::Plan> plan;
  StepCounts counts;
  KernelOptions options;  // with its mapping and parts
  WriterOptions forward, adjoint;
  std::string forward_key, adjoint_key, near_zero_key;     // the latter two empty: no adjoint
  int64_t statements = 0;                                  // of the largest function or piece
  int64_t forward_statements = 0, adjoint_statements = 0;  // in all
  bool has_f16 = false;                                    // among its values
  double work_per_step = 0;  // of an instance, at the caps, gradient included
  TapeBytes tape;            // 0: no adjoint
  int64_t bytes = 0;
  HeldMemory memory;  // for so many bytes; null: there was none, and the cache does not keep it
  mutable std::atomic<int64_t> uses{0};
  mutable std::atomic<bool> is_too_deep{
      false};  // its code takes too much stack, as compiling showed
};

// Element-operations of an instance's step with every loop at its cap, gradient included.
double WorkPerStep(const NumericalProgram& program);
// The least number of statements that its plan has: one an operation of a step, gradient included.
int64_t FewestStatements(const NumericalProgram& program);

class PlanCache {
 public:
  PlanCache(const KernelOptions& options, int64_t most_bytes, std::shared_ptr<CompileWatch> watch)
      : options_(options), most_bytes_(most_bytes), watch_(std::move(watch)) {}
  // Null: it has none.
  std::shared_ptr<const PlannedProgram> Find(const Batch& batch, Recording recording);
  std::shared_ptr<const PlannedProgram> Get(const Batch& batch, Recording recording,
                                            const WorkMeter::StopCallback& stop);
  // Gives up about so many bytes; returns how many.
  int64_t Relieve(int64_t bytes);
  int64_t bytes() const;
  int64_t size() const;

 private:
  struct Entry {
    Recording recording;
    std::shared_ptr<const PlannedProgram> planned;
  };
  // Entries that go and that no run uses are freed without the lock.
  int64_t DropLocked(int64_t most_bytes, std::list<Entry>& dropped);
  std::shared_ptr<const PlannedProgram> FindLocked(const NumericalProgram* program,
                                                   Recording recording,
                                                   const std::vector<InputForm>& inputs,
                                                   int64_t instances);

  const KernelOptions options_;
  const int64_t most_bytes_;
  const std::shared_ptr<CompileWatch> watch_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used first
  int64_t bytes_ = 0;
};

}  // namespace simgrad::sim::compiled
