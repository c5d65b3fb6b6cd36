#include "sim/backend/cpu/memory_need.h"

#include <algorithm>
#include <memory>

#include "sim/backend/cpu/block_adjoint.h"
#include "sim/backend/cpu/input_reader.h"
#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/margin_window.h"
#include "sim/backend/cpu/tape.h"

namespace simgrad::sim::cpu {
namespace {

// Every bound is clamped here, so that caps of loops in loops do not wrap.
int64_t Clamped(double bytes) {
  constexpr double kLimit = 1e17;
  return static_cast<int64_t>(std::min(bytes, kLimit));
}

// Beside what is counted: buffers of the recorder, of loops, of reversed loops.
constexpr int64_t kPerThread = int64_t{256} << 10;

double RecordAtCaps(const RegionPlan& region, double width);

// Packing a loop takes what its iterations read, in widths that halve.
double RecordOfWhile(const WhilePlan& plan, double width) {
  double packed = 0;
  for (const CarriedPlan& c : plan.carried) packed += static_cast<double>(c.count * c.lane_bytes);
  for (const auto& e : plan.exports) packed += static_cast<double>(e.count * e.lane_bytes);
  for (const CapturePlan& c : plan.captures) packed += static_cast<double>(c.count * c.lane_bytes);
  const double slots =
      static_cast<double>(plan.carried.size() + plan.exports.size() + plan.captures.size());
  constexpr double kPacks = 6;  // 512 lanes to 16
  const double runs = static_cast<double>(std::max<int64_t>(plan.elements, 1));
  const double iterations = static_cast<double>(plan.max_iter) + 1;
  const double run = 192 + 4 * width + packed * width + kPacks * (64 * slots + 64 + 4 * width);
  const double rest = RecordAtCaps(plan.test, width) + RecordAtCaps(plan.body, width);
  return runs * (run + iterations * rest);
}

double RecordAtCaps(const RegionPlan& region, double width) {
  double bytes = static_cast<double>(RecordBytesOf(region, static_cast<int64_t>(width)));
  for (const Instruction& i : region.code) {
    if (i.run == RunWhile) bytes += RecordOfWhile(*static_cast<const WhilePlan*>(i.plan), width);
    if (i.run != RunFor) continue;
    const ForPlan& loop = *static_cast<const ForPlan*>(i.plan);
    bytes += 192 + static_cast<double>(loop.trips) * RecordAtCaps(loop.body, width);
  }
  return bytes;
}

double MachineBytes(const Plan& plan, int64_t width) {
  return static_cast<double>(plan.varying_bytes * width + plan.uniform_bytes * kLaneGroup) +
         static_cast<double>(plan.slots.size()) * 32;
}

double LanesOf(int64_t instances) {
  return static_cast<double>((instances + kLaneGroup - 1) / kLaneGroup * kLaneGroup);
}

// The cotangents and sums of all blocks, and the gradients per instance.
double AdjointStateBytes(const Batch& batch) {
  const NumericalProgram& program = *batch.program;
  const Program& p = program.program;
  const auto lane_bytes = [&](precision::Role role) {
    return program.policy[role].format == Format::kF64 ? 8.0 : 4.0;
  };
  const auto elements = [&](ValueId id) {
    return static_cast<double>(ElementCount(p[id].type.shape));
  };
  double held = 0;
  for (int32_t input : p.InputsOf(InputKind::kState)) {
    held += elements(p.inputs[static_cast<size_t>(input)].value);
  }
  for (const Export& exported : p.exports) held += elements(exported.value);
  double per_lane = held * (2 * lane_bytes(precision::Role::kAdjoint) + 4);
  double per_instance = 0;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    per_instance += 1;  // connected
    if (!program.adjoint_spec->wanted[i]) continue;
    const double n = elements(p.inputs[i].value);
    const bool per_step = p.inputs[i].kind != InputKind::kState && batch.inputs[i].per_step;
    per_lane += n * lane_bytes(precision::Role::kGradient);
    per_instance += 8 * n * (per_step ? static_cast<double>(batch.steps) : 1.0);
  }
  return LanesOf(batch.instances) * per_lane + static_cast<double>(batch.instances) * per_instance;
}

// What one chunk of steps is written to: diagnostics by thread, trajectories.
double ChunkBytes(const Batch& batch, const RunOptions& options, int64_t steps, int threads) {
  const Program& p = batch.program->program;
  double by_thread = 0;
  double by_instance = 0;
  for (const Site& site : batch.program->sites) {
    const bool loop = site.kind == SiteKind::kTermination;
    by_thread += static_cast<double>(loop ? sizeof(TerminationStep) + sizeof(MarginWindow)
                                          : sizeof(EventStep));
    if (loop && options.recording == Recording::kInstances) by_instance += 9;
  }
  by_thread += static_cast<double>(p.inputs.size() * sizeof(StateRange)) / options.stride;
  if (options.recording == Recording::kNone) by_thread = 0;
  const auto trajectory = [&](ValueId id) {
    by_instance += 8 * static_cast<double>(ElementCount(p[id].type.shape));
  };
  for (int32_t input : options.record_states) {
    trajectory(p.inputs[static_cast<size_t>(input)].value);
  }
  for (int32_t index : options.record_exports) {
    trajectory(p.exports[static_cast<size_t>(index)].value);
  }
  return static_cast<double>(steps) *
         (by_thread * threads + by_instance * static_cast<double>(batch.instances));
}

}  // namespace

// Values, the frame, and an entry of a growing list, old copies included.
int64_t RecordBytesOf(const RegionPlan& region, int64_t width) {
  return region.stored_bytes_per_lane * width + 64 * static_cast<int64_t>(region.stored.size()) +
         512 + 8 * static_cast<int64_t>(std::max(region.taped.size(), region.stored.size()));
}

int64_t CheckpointBytes(const NumericalProgram& program, const BlockLayout& layout,
                        int64_t instances) {
  int64_t per_lane = layout.bytes_per_lane() + 8 + static_cast<int64_t>(sizeof(InstanceHealth));
  int64_t per_block = static_cast<int64_t>(sizeof(BlockState));
  for (const Site& site : program.sites) {
    if (site.kind != SiteKind::kEvent) continue;
    per_lane += 8;
    per_block += (site.elements + 1) * static_cast<int64_t>(sizeof(LaneBits)) +
                 2 * static_cast<int64_t>(sizeof(std::vector<int64_t>));
  }
  return layout.blocks() * per_block + static_cast<int64_t>(LanesOf(instances)) * per_lane;
}

int64_t RangeRecordBytes(const BlockLayout& layout, int threads, const StepRecords& of) {
  const int64_t records = Tape::MemoryOf(std::min(of.all, kSegmentBytes + of.largest));
  const int64_t segments = std::min(of.all / kSegmentBytes + 1, of.steps);
  const int64_t states = layout.bytes_per_lane() * layout.width();
  return threads * (records + segments * states);
}

int ThreadsOf(const RunOptions& options, const BlockLayout& layout) {
  return static_cast<int>(
      std::clamp<int64_t>(options.threads, 1, std::max<int64_t>(layout.blocks(), 1)));
}

MemoryNeed NeedOfPlans(const Batch& batch, const RunOptions& options, const RangeSteps& steps,
                       const BlockLayout& layout, const Plan& forward, const Plan* adjoint) {
  const int64_t width = layout.width();
  const int threads = ThreadsOf(options, layout);
  MemoryNeed need;
  need.saved = CheckpointBytes(*batch.program, layout, batch.instances);
  double by_thread = MachineBytes(forward, width) + static_cast<double>(kPerThread);
  double run = static_cast<double>(need.saved) + 32.0 * static_cast<double>(batch.instances) +
               ChunkBytes(batch, options, steps.chunk, threads);
  if (batch.program->adjoint) {
    by_thread += 8 * static_cast<double>(batch.steps);
    run += 8 * static_cast<double>(batch.steps) + AdjointStateBytes(batch);
    if (adjoint != nullptr) by_thread += MachineBytes(*adjoint, width);
    const auto range = [&](const auto& record_of) {
      const double one = std::max(
          {record_of(forward.initial), record_of(forward.step), record_of(forward.terminal)});
      const int64_t all = Clamped(one * static_cast<double>(steps.range));
      return RangeRecordBytes(layout, threads, {steps.range, all, Clamped(one)});
    };
    need.record_once = range([&](const RegionPlan& region) {
      return static_cast<double>(RecordBytesOf(region, width));
    });
    need.record_at_caps = range(
        [&](const RegionPlan& region) { return RecordAtCaps(region, static_cast<double>(width)); });
  }
  need.run = Clamped(run + by_thread * threads);
  return need;
}

MemoryNeed NeedOfRun(const Batch& batch, const RunOptions& options, const RangeSteps& steps,
                     PlanCache& plans, int64_t block_width) {
  const NumericalProgram& program = *batch.program;
  const bool counts = options.recording != Recording::kNone;
  const bool looks = counts || program.policy.nonfinite == precision::NonFinite::kStop;
  const std::vector<InputForm> forms = InputReader::FormsOf(batch);
  const auto plan = [&](const PlanOptions& purpose) {
    return plans.Get(batch.program, forms, purpose, options.stop);
  };
  const auto forward = plan({.diagnostics = counts, .looks = looks, .adjoint = false});
  std::shared_ptr<const Plan> adjoint;
  if (program.adjoint) adjoint = plan({.diagnostics = false, .looks = looks, .adjoint = true});
  const int64_t width =
      block_width > 0 ? block_width
                      : ChooseBlockWidth(forward->varying_bytes, batch.instances, options.threads);
  return NeedOfPlans(batch, options, steps, BlockLayout(program, batch.instances, width), *forward,
                     adjoint.get());
}

}  // namespace simgrad::sim::cpu
