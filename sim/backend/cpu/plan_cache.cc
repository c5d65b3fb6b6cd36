#include "sim/backend/cpu/plan_cache.h"

#include <iterator>
#include <utility>

namespace simgrad::sim::cpu {

std::shared_ptr<const Plan> PlanCache::Find(const NumericalProgram* program,
                                            const std::vector<InputForm>& inputs,
                                            const PlanOptions& options) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->program != program || entry->options != options || entry->inputs != inputs) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->plan;
  }
  return nullptr;
}

std::shared_ptr<const Plan> PlanCache::Get(const std::shared_ptr<const NumericalProgram>& program,
                                           const std::vector<InputForm>& inputs,
                                           const PlanOptions& options,
                                           const WorkMeter::StopCallback& stop) {
  {
    std::lock_guard lock(mutex_);
    if (auto plan = Find(program.get(), inputs, options)) return plan;
  }
  std::shared_ptr<const Plan> plan =
      CompilePlan(program, inputs, kernels_, options, WorkMeter(stop));
  if (program->program.values.size() > kMostValues || plan->varying_bytes > kMostBytesPerLane) {
    return plan;
  }
  std::list<Entry> dropped;  // freed without the lock
  std::lock_guard lock(mutex_);
  if (auto other = Find(program.get(), inputs, options)) return other;
  entries_.push_front({program.get(), inputs, options, plan});
  values_ += program->program.values.size();
  while (entries_.size() > kMostPlans || values_ > kMostValuesInAll) {
    values_ -= entries_.back().program->program.values.size();
    dropped.splice(dropped.end(), entries_, std::prev(entries_.end()));
  }
  return plan;
}

}  // namespace simgrad::sim::cpu
