// Upper bounds of what a piece of work allocates, before anything runs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/engine.h"
#include "sim/engine/reversal_budget.h"
#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

// Every bound is clamped here, so that products of hostile sizes do not wrap.
constexpr double kLimit = 4e18;

int64_t Clamped(double bytes) { return static_cast<int64_t>(std::min(bytes, kLimit)); }

double Elements(const Program& program, ValueId id) {
  return static_cast<double>(ElementCount(program[id].type.shape));
}

// How often a region inside a step is counted: once, as each value has one place to stand, or as
// often as its loops' caps allow, as a record for the adjoint might keep every iteration.
enum class Trips { kOnce, kAtCaps };

double TripsOf(const Op& op, Trips trips) {
  return trips == Trips::kOnce ? 1 : ElementRunsAtCap(op);
}

// Elements of all values that one execution of a region computes.
double ComputedElements(const Program& program, const Region& region, Trips trips) {
  double elements = 0;
  for (ValueId id : region.args) {
    if (id != ValueId::kNone) elements += Elements(program, id);
  }
  for (const Op& op : region.ops) {
    for (ValueId id : op.results) {
      if (id != ValueId::kNone) elements += Elements(program, id);
    }
    for (const Region& nested : op.regions) {
      elements += TripsOf(op, trips) * ComputedElements(program, nested, trips);
    }
  }
  return elements;
}

double StateElements(const Program& program) {
  double elements = 0;
  for (int32_t i : program.InputsOf(InputKind::kState)) {
    elements += Elements(program, program.inputs[static_cast<size_t>(i)].value);
  }
  for (const Export& item : program.exports) elements += Elements(program, item.value);
  return elements;
}

double BindingBytes(const Batch& batch) {
  double bytes = 0;
  for (const Binding& binding : batch.inputs)
    bytes += static_cast<double>(binding.tensor.bytes.size());
  for (const auto* sent : {&batch.cotangents.final_state, &batch.cotangents.trajectory_state,
                           &batch.cotangents.trajectory_export}) {
    for (const std::vector<double>& array : *sent) bytes += 8.0 * static_cast<double>(array.size());
  }
  return bytes;
}

// How many sums of one input an answer holds: a shared one is summed in a tree, whose partial sums
// stand at once, and whose nodes the caller may have asked for.
double SumsOf(const Work& work, bool per_instance) {
  if (per_instance) return 1;
  const auto instances = static_cast<uint64_t>(work.batch.instances);
  const int partial = std::bit_width(instances) + 1;
  const std::vector<uint64_t>& ids = work.batch.instance_ids;
  if (!work.gradient->return_tree || ids.empty()) return 1 + partial;
  const auto [first, last] = std::minmax_element(ids.begin(), ids.end());
  const uint64_t blocks = 2 * static_cast<uint64_t>(std::bit_width(*first ^ *last)) + 1;
  return 1 + partial + 2 * static_cast<double>(std::min(instances, blocks));
}

// Gradients of every wanted input as the answer has them, and one of them on its way there.
double GradientAnswerBytes(const Work& work) {
  const NumericalProgram& numerical = *work.batch.program;
  if (!work.gradient || !numerical.adjoint_spec) return 0;
  double answer = 0;
  double largest = 0;
  for (size_t i = 0; i < numerical.program.inputs.size(); ++i) {
    if (i >= numerical.adjoint_spec->wanted.size() || !numerical.adjoint_spec->wanted[i]) continue;
    const bool bound = i < work.batch.inputs.size();
    double elements = Elements(numerical.program, numerical.program.inputs[i].value);
    if (bound && work.batch.inputs[i].per_step) elements *= static_cast<double>(work.batch.steps);
    const bool per_instance = bound && work.batch.inputs[i].per_instance;
    if (per_instance) elements *= static_cast<double>(work.batch.instances);
    elements *= SumsOf(work, per_instance);
    answer += 8 * elements;
    largest = std::max(largest, 8 * elements);
  }
  return answer + largest;
}

// The same, and the sums of every instance, which a run holds twice.
double GradientBytes(const Work& work) {
  const NumericalProgram& numerical = *work.batch.program;
  if (!work.gradient || !numerical.adjoint_spec) return 0;
  const double instances = static_cast<double>(work.batch.instances);
  double numbers = 0;
  for (size_t i = 0; i < numerical.program.inputs.size(); ++i) {
    if (i >= numerical.adjoint_spec->wanted.size() || !numerical.adjoint_spec->wanted[i]) continue;
    const double elements = Elements(numerical.program, numerical.program.inputs[i].value);
    if (numerical.program.inputs[i].weights) {
      // The totals of blocks; what waits to be summed is part of the budget of the reversal.
      constexpr double kBlock = 1 << BlockSums::kLevel;
      numbers += elements * std::min(instances, instances / kBlock + 1);
      continue;
    }
    const bool per_step = i < work.batch.inputs.size() && work.batch.inputs[i].per_step;
    numbers += elements * instances * (per_step ? static_cast<double>(work.batch.steps) : 1.0);
  }
  return 3 * 8 * numbers;
}

// Final states, values, signatures, health, first events; the reverse pass by step, once in the
// answer and once on its way there.
double AnswerBytes(const Work& work, int64_t steps_at_once) {
  const Program& program = work.batch.program->program;
  double per_instance = 8 + 8 + 2 * 8 + 2 * static_cast<double>(sizeof(InstanceHealth));
  for (int32_t i : program.InputsOf(InputKind::kState)) {
    per_instance += 8 * Elements(program, program.inputs[static_cast<size_t>(i)].value);
  }
  for (const Site& site : work.batch.program->sites) {
    per_instance += site.kind == SiteKind::kEvent ? 8 : 0;
  }
  double bytes = static_cast<double>(work.batch.instances) * per_instance;
  if (!work.gradient) return bytes;
  const double steps = static_cast<double>(work.batch.steps);
  if (work.gradient->tell_steps) bytes += steps * static_cast<double>(sizeof(BackwardStep));
  const double range = static_cast<double>(RangeStepsOf(work, steps_at_once).range);
  return bytes + static_cast<double>(work.options.threads + 2) * range *
                     static_cast<double>(sizeof(BackwardStep));
}

// The bytes that a kept run holds beside its checkpoints.
double KeptInputBytes(const Work& work) { return BindingBytes(work.batch) + AnswerBytes(work, 0); }

bool WritesCertificates(const Work& work) {
  return work.options.recording != Recording::kNone && work.max_certificates > 0;
}

// Instances are replayed one by one. A replay holds every value of a step; and where it is reversed
// to be counted, the states between which it runs again.
double ReplayBytes(const Work& work) {
  if (!WritesCertificates(work) && work.arithmetic_instances == 0) return 0;
  const Program& program = work.batch.program->program;
  constexpr double kPerValue = 128;
  const double values = 8 * ComputedElements(program, program.step, Trips::kOnce) +
                        kPerValue * static_cast<double>(program.values.size());
  if (!work.gradient || work.arithmetic_instances == 0) return values;
  const double states = 2 * std::sqrt(static_cast<double>(work.batch.steps)) + 2;
  return values + states * 8 * StateElements(program);
}

// The state before a chunk and the one after it, where an instance is born non-finite.
double CertificateBytes(const Work& work, const MemoryNeed& need) {
  return WritesCertificates(work) ? 2 * static_cast<double>(need.saved) : 0;
}

}  // namespace

absl::StatusOr<int64_t> EstimateBytes(const Work& work, const Executor& executor) {
  const auto need = NeedForItsRanges(work, [&](const RangeSteps& steps) {
    return executor.NeedOf(work.batch, work.options, steps);
  });
  if (!need.ok()) return need.status();
  if (!need->has_value()) return EstimateBytes(work);
  // Inputs are held by the engine and by the run.
  double bytes = 2 * BindingBytes(work.batch) + 16 * static_cast<double>(work.batch.instances) +
                 static_cast<double>((*need)->run) + CertificateBytes(work, **need) +
                 ReplayBytes(work) + AnswerBytes(work, (*need)->steps_at_once) +
                 GradientAnswerBytes(work);
  if (work.gradient) {
    bytes += static_cast<double>(ReversalBudgetOf(work, *need, (*need)->saved).held);
    // The state at the end, from which a reversal of weights may run again.
    const bool again = work.gradient->reduction == InstanceReduction::kFiniteOnly &&
                       !BlockSums::WantedOf(*work.batch.program).empty();
    if (again) bytes += static_cast<double>((*need)->saved);
  }
  if (work.keep) {
    bytes += static_cast<double>(ReversalBudgetOf(work, *need, (*need)->saved).checkpoints +
                                 (*need)->saved) +
             KeptInputBytes(work);
  }
  return Clamped(bytes);
}

int64_t EstimateBytes(const Work& work) {
  const NumericalProgram& numerical = *work.batch.program;
  const Program& program = numerical.program;
  const double instances = static_cast<double>(work.batch.instances);
  const double steps = static_cast<double>(work.batch.steps);
  // An instance beside its numbers: health, path, bookkeeping of the executor.
  constexpr double kPerInstance = 512;
  const double state = 8 * StateElements(program) + kPerInstance;
  const double values = 8 * ComputedElements(program, program.step, Trips::kOnce);
  // Inputs are held by the engine and by the run; two states travel with every chunk. Iterations
  // follow each other in the same place: a cap costs nothing.
  double bytes =
      2 * BindingBytes(work.batch) + instances * (4 * state + values) + ReplayBytes(work);
  bytes += GradientBytes(work);
  if (work.keep) {
    const double states = instances * (steps + 2) * state;
    bytes += std::min(states, static_cast<double>(work.memory_budget_bytes)) + KeptInputBytes(work);
  }
  if (!work.gradient) return Clamped(bytes);
  // It is not yet known how often the loops will run: what is sure is the budget, against which the
  // counts of the forward run are checked before anything is reversed (checkpoints.h). Less only
  // where a checkpoint at every step and a tape of the whole run at the caps would be less.
  const double record = 8 * ComputedElements(program, program.step, Trips::kAtCaps);
  const double unlimited = instances * steps * (state + record);
  bytes += std::min(unlimited, static_cast<double>(work.memory_budget_bytes));
  return Clamped(bytes);
}

}  // namespace simgrad::sim
