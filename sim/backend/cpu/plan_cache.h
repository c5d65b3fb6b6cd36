// Plans of the programs that ran last. Without them, small work that is repeated would spend most
// of its time compiling.
//
// Threads: any. If two threads miss at once, both compile and one plan is kept.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/backend/cpu/compile.h"

namespace simgrad::sim::cpu {

class PlanCache {
 public:
  explicit PlanCache(const KernelTable& kernels) : kernels_(kernels) {}

  // As CompilePlan. A plan keeps its program, so a program is known by its address.
  std::shared_ptr<const Plan> Get(const std::shared_ptr<const NumericalProgram>& program,
                                  const std::vector<InputForm>& inputs, const PlanOptions& options,
                                  const WorkMeter::StopCallback& stop = {});
  const KernelTable& kernels() const { return kernels_; }

 private:
  // A thousand values may take a megabyte; what is larger than the limit runs longer than it
  // compiles.
  static constexpr size_t kMostPlans = 64;
  static constexpr size_t kMostValues = 8192;  // of one
  static constexpr size_t kMostValuesInAll = size_t{1} << 16;
  static constexpr int64_t kMostBytesPerLane = int64_t{1} << 20;

  struct Entry {
    const NumericalProgram* program = nullptr;
    std::vector<InputForm> inputs;
    PlanOptions options;
    std::shared_ptr<const Plan> plan;
  };
  // mutex_ held; null where it is not there.
  std::shared_ptr<const Plan> Find(const NumericalProgram* program,
                                   const std::vector<InputForm>& inputs,
                                   const PlanOptions& options);

  const KernelTable& kernels_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  size_t values_ = 0;         // of all
};

}  // namespace simgrad::sim::cpu
