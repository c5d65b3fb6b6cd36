#include "sim/backend/compiled/kernels/plan_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/backend/compiled/group/group_inputs.h"
#include "sim/backend/compiled/kernels/kernel_cache.h"
#include "sim/plan/cut.h"
#include "sim/plan/make_plan.h"
#include "sim/plan/structure.h"
#include "sim/program/held_bytes.h"
#include "sim/program/step_work.h"

namespace simgrad::sim::compiled {
namespace {

int64_t LargestOf(const plan::Plan& plan, Part part) {
  int64_t most = 0;
  for (const plan::Function* function : FunctionsOf(plan, part)) {
    most = std::max(most, plan::LargestPiece(*function));
  }
  return most;
}

int64_t LargestOf(const plan::Plan& plan, const NumericalProgram& program) {
  const int64_t forward = LargestOf(plan, Part::kForward);
  return program.adjoint ? std::max(forward, LargestOf(plan, Part::kAdjoint)) : forward;
}

int64_t StatementsOf(const plan::Plan& plan, Part part) {
  int64_t all = 0;
  for (const plan::Function* function : FunctionsOf(plan, part)) {
    all += plan::StatementsOf(*function);
  }
  return all;
}

// A forward run, and three times as much for the replay and its reverse.
constexpr int64_t kGradientWork = 4;

int64_t OperationsIn(const Region& region) {
  int64_t count = static_cast<int64_t>(region.ops.size());
  for (const Op& op : region.ops) {
    for (const Region& nested : op.regions) count += OperationsIn(nested);
  }
  return count;
}

Mapping MappingOf(const KernelOptions& options, const StepCounts& counts, int64_t instances) {
  return options.mapping.value_or(ChooseMapping(counts, instances, FloatLanes(options.isa)));
}

std::shared_ptr<PlannedProgram> Planned(const Batch& batch, Recording recording,
                                        std::vector<InputForm> inputs, KernelOptions options,
                                        const WorkMeter::StopCallback& stop) {
  const NumericalProgram& program = *batch.program;
  const bool records = recording != Recording::kNone;
  const bool stops = program.policy.nonfinite == precision::NonFinite::kStop;
  auto planned = std::make_shared<PlannedProgram>();
  planned->program = batch.program;
  std::vector<bool> has_steps;
  for (const InputForm& form : inputs) has_steps.push_back(form.per_step);
  plan::Plan whole =
      plan::PlacedPlan(program, {.decides = records, .looks = records || stops, .ranges = records},
                       has_steps, stop, plan::WeightGradients::kFactors);
  if (options.edit) options.edit(whole);
  planned->counts = CountsOf(whole, FloatLanes(options.isa));
  options.mapping = MappingOf(options, planned->counts, batch.instances);
  if (!options.parts) options.parts = PartsFor(LargestOf(whole, program));
  WorkMeter meter(stop);
  planned->plan = std::make_shared<const plan::Plan>(
      plan::CutLargeFunctions(std::move(whole), options.cut, meter));
  const plan::Plan& plan = *planned->plan;
  planned->statements = LargestOf(plan, program);
  planned->options = options;
  planned->adjoint = {.shape = ShapeOf(options),
                      .inputs = std::move(inputs),
                      .stops = stops,
                      .looks = records || stops,
                      .ranges = records};
  planned->forward = planned->adjoint;
  planned->forward.decides = records;
  planned->forward.extremes = records && recording != Recording::kCounts;
  planned->forward.instances = recording == Recording::kInstances;
  planned->forward_statements = StatementsOf(plan, Part::kForward);
  planned->adjoint_statements = StatementsOf(plan, Part::kAdjoint);
  planned->forward_key = KeyOf(plan, Part::kForward, planned->forward, options);
  planned->has_f16 =
      std::any_of(program.program.values.begin(), program.program.values.end(),
                  [](const Value& value) { return value.format == precision::Format::kF16; });
  planned->work_per_step = WorkPerStep(program);
  if (program.adjoint) {
    planned->tape = TapeBytesOf(program);
    planned->adjoint_key = KeyOf(plan, Part::kAdjoint, planned->adjoint, options);
    planned->near_zero_key = KeyOf(plan, Part::kNearZero, planned->adjoint, options);
  }
  planned->bytes =
      plan::HeldBytes(plan) + HeldBytes(program) + static_cast<int64_t>(sizeof(PlannedProgram));
  return planned;
}

}  // namespace

double WorkPerStep(const NumericalProgram& program) {
  const double work = WorkAtCaps(program.program, program.program.step);
  return program.adjoint ? kGradientWork * work : work;
}

int64_t FewestStatements(const NumericalProgram& program) {
  const int64_t operations = OperationsIn(program.program.step);
  return program.adjoint ? kGradientWork * operations : operations;
}

std::shared_ptr<const PlannedProgram> PlanCache::Find(const Batch& batch, Recording recording) {
  const std::vector<InputForm> inputs = FormsOf(batch);
  std::lock_guard<std::mutex> lock(mutex_);
  return FindLocked(batch.program.get(), recording, inputs, batch.instances);
}

std::shared_ptr<const PlannedProgram> PlanCache::FindLocked(const NumericalProgram* program,
                                                            Recording recording,
                                                            const std::vector<InputForm>& inputs,
                                                            int64_t instances) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->planned->program.get() != program || entry->recording != recording) continue;
    const PlannedProgram& own = *entry->planned;
    if (own.forward.inputs != inputs) continue;
    if (own.options.mapping != MappingOf(options_, own.counts, instances)) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->planned;
  }
  return nullptr;
}

std::shared_ptr<const PlannedProgram> PlanCache::Get(const Batch& batch, Recording recording,
                                                     const WorkMeter::StopCallback& stop) {
  std::vector<InputForm> inputs = FormsOf(batch);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto planned = FindLocked(batch.program.get(), recording, inputs, batch.instances))
      return planned;
  }
  const std::shared_ptr<PlannedProgram> planned = Planned(batch, recording, inputs, options_, stop);
  planned->memory = watch_->ForCache(planned->bytes);
  std::list<Entry> dropped;  // freed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto other = FindLocked(batch.program.get(), recording, inputs, batch.instances))
    return other;
  if (planned->memory == nullptr) return planned;
  entries_.push_front({recording, planned});
  bytes_ += planned->bytes;
  DropLocked(std::max(most_bytes_, planned->bytes), dropped);
  return planned;
}

int64_t PlanCache::DropLocked(int64_t most_bytes, std::list<Entry>& dropped) {
  const int64_t before = bytes_;
  for (auto entry = entries_.end(); entry != entries_.begin() && bytes_ > most_bytes;) {
    const auto oldest = std::prev(entry);
    if (oldest->planned.use_count() > 1) {  // a run holds it and its memory
      entry = oldest;
      continue;
    }
    bytes_ -= oldest->planned->bytes;
    dropped.splice(dropped.end(), entries_, oldest);
  }
  return before - bytes_;
}

int64_t PlanCache::Relieve(int64_t bytes) {
  std::list<Entry> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  return DropLocked(std::max<int64_t>(bytes_ - bytes, 0), dropped);
}

int64_t PlanCache::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

int64_t PlanCache::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

}  // namespace simgrad::sim::compiled
