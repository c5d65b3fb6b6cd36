#include "sim/backend/compiled/kernels/memory_need.h"

#include <algorithm>

#include "sim/backend/columns.h"
#include "sim/backend/compiled/group/group_inputs.h"
#include "sim/backend/compiled/group/group_state.h"
#include "sim/plan/structure.h"
#include "sim/plan/tape_plan.h"
#include "sim/program/loop.h"

namespace simgrad::sim::compiled {
namespace {

// Every bound is clamped here, so that caps of loops in loops do not wrap.
int64_t Clamped(double bytes) {
  constexpr double kLimit = 1e17;
  return static_cast<int64_t>(std::min(bytes, kLimit));
}

// Beside what is counted: margins to look at again, lists of pointers.
constexpr double kPerThread = 128 << 10;
// Bytes of an allocation beside its own: its header, what is rounded up, and what lies before a cache line.
constexpr double kPerVector = 96;

double BytesPerLane(const NumericalProgram& program, Role role) {
  return program.policy[role].format == Format::kF64 ? 8.0 : 4.0;
}

double Elements(const Program& program, ValueId id) {
  return static_cast<double>(ElementCount(program[id].type.shape));
}

// ---- tapes, bytes per lane ----
double FrameOf(const plan::TapePlan& tape, const Region& region) {
  const plan::FrameLayout* const layout = tape.Of(region);
  return layout == nullptr ? 0 : static_cast<double>(layout->bytes);
}

// How often a while turns; a `for` makes all of its turns.
enum class Whiles { kTurnOnce, kReachTheirCaps };

// The bytes that loops of a region keep: each turn has one frame for test and body.
double LoopBytes(const plan::TapePlan& tape, const Region& region, Whiles whiles) {
  double bytes = 0;
  for (const Op& op : region.ops) {
    const bool is_short = op.code == OpCode::kWhile && whiles == Whiles::kTurnOnce;
    const double cap = static_cast<double>(std::max<int64_t>(op.attributes.max_iter, 1));
    const double turns = ElementRunsAtCap(op) / (is_short ? cap : 1.0);
    double frame = 0;
    double inside = 0;
    for (const Region& nested : op.regions) {
      frame = std::max(frame, FrameOf(tape, nested));
      inside += LoopBytes(tape, nested, whiles);
    }
    const bool loops = op.code == OpCode::kFor || op.code == OpCode::kWhile;
    bytes += turns * ((loops ? frame : 0) + inside);
  }
  return bytes;
}

constexpr double kPaddedFactors = 16;  // SumProducts fills whole vectors

struct Sizes {
  double lanes = 1;
  double groups = 1;
  double threads = 1;
  double instances = 1;
  double travelling = 0;  // bytes of the fields of a group that travel
  double others = 0;      // of its cotangents
  double given = 0;       // what a step of a group gives to weights
  double sent = 0;        // cotangents that are sent for a step of a group
  double sent_final = 0;  // and for the final states
  double products = 0;    // to sum products of factors in (SumProducts)
  double totals = 0;      // sums of blocks
  double waiting = 0;     // sums of a step that wait for other groups
};

Sizes SizesOf(const Batch& batch, const RunOptions& options, const plan::Plan& plan,
              const LaneShape& shape, const WeightsNeed& weights) {
  Sizes sizes;
  const int64_t lanes = shape.lanes();
  const int64_t groups = (batch.instances + lanes - 1) / lanes;
  sizes.lanes = static_cast<double>(lanes);
  sizes.groups = static_cast<double>(groups);
  sizes.threads =
      static_cast<double>(std::clamp<int64_t>(options.threads, 1, std::max<int64_t>(groups, 1)));
  sizes.instances = static_cast<double>(batch.instances);
  sizes.travelling = static_cast<double>(GroupLayout(plan, shape.lanes()).health);
  sizes.others =
      static_cast<double>(FieldLayout(plan.fields, shape.lanes()).bytes()) - sizes.travelling;
  const Program& program = batch.program->program;
  const std::vector<int32_t> states = program.InputsOf(InputKind::kState);
  for (const plan::Sent& s : plan.sent) {
    const size_t index = static_cast<size_t>(s.index);
    const ValueId id = s.kind == plan::SentKind::kTrajectoryExport
                           ? program.exports[index].value
                           : program.inputs[static_cast<size_t>(states[index])].value;
    double& sent = s.kind == plan::SentKind::kFinalState ? sizes.sent_final : sizes.sent;
    sent += Elements(program, id) * BytesPerLane(*batch.program, Role::kAdjoint) * sizes.lanes;
  }
  for (const BlockSums::Wanted& wanted : BlockSums::WantedOf(*batch.program)) {
    const GivenNumbers numbers = GivenTo(plan, wanted);
    const double count = static_cast<double>(numbers.count);
    const double bytes = BytesPerLane(*batch.program, Role::kGradient);
    sizes.given += count * sizes.lanes * bytes;
    if (numbers.product == nullptr) continue;
    sizes.products = std::max(sizes.products, (count + kPaddedFactors) * (sizes.lanes + 1) * bytes);
  }
  sizes.waiting = static_cast<double>(weights.waiting);
  sizes.totals = static_cast<double>(weights.held);
  return sizes;
}

// The bytes to reverse `range` steps that tape `taped` bytes each: the tape of a segment with what
// its steps give to weights, the states at the beginnings of all segments, and sums that wait.
double RangeTapes(const Sizes& sizes, double taped, double range) {
  const double segment = static_cast<double>(kSegmentBytes);
  const double one = taped + sizes.given;
  const double tape = std::min(one * range, std::max(segment, one));
  const double segments = std::min(range, one * range * 2 / segment + 1);
  return sizes.threads * (tape + segments * (sizes.travelling + kPerVector)) +
         range * sizes.waiting;
}

double InputBytes(const Batch& batch, const Sizes& sizes, double steps) {
  const Program& program = batch.program->program;
  const std::vector<InputForm> forms = FormsOf(batch);
  double bytes = 0;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i].kind == InputKind::kState) continue;
    bytes += kPerVector + 8 * Elements(program, program.inputs[i].value) *
                              (forms[i].per_step ? steps : 1) *
                              (forms[i].per_lane ? sizes.lanes : 1);
  }
  return bytes;
}

// The memory that a chunk is written to: a part for every thread, and the joined one.
double ChunkBytes(const Batch& batch, const RunOptions& options, const Sizes& sizes, double steps) {
  const Program& program = batch.program->program;
  double by_thread = 8;  // what a replay would put on the tape
  double joined = 0;
  double by_instance = 0;
  for (const Site& site : batch.program->sites) {
    const bool loop = site.kind == SiteKind::kTermination;
    by_thread += static_cast<double>(loop ? sizeof(TerminationColumn) : sizeof(EventColumn));
    joined += static_cast<double>(loop ? sizeof(TerminationStep) : sizeof(EventStep));
    if (loop && options.recording == Recording::kInstances) by_instance += 16;
  }
  double at_sample = static_cast<double>(program.inputs.size() * sizeof(StateRange));
  if (program.level != TestLevel::kDeclared) {
    at_sample += static_cast<double>(CountOf(batch.program->sites, SiteKind::kEvent) *
                                     sizeof(MarginHistogram));
  }
  // Every stride-th step is sampled, and the last.
  const double samples = std::min(steps, std::ceil(steps / options.stride) + 1);
  const double sampled = at_sample * samples / std::max(steps, 1.0);
  by_thread += sampled;
  joined += sampled;
  if (options.recording == Recording::kNone) joined = 0, by_thread = 8;
  for (int32_t input : options.record_states) {
    by_instance += 8 * Elements(program, program.inputs[static_cast<size_t>(input)].value);
  }
  for (int32_t index : options.record_exports) {
    by_instance += 8 * Elements(program, program.exports[static_cast<size_t>(index)].value);
  }
  return steps * (by_thread * sizes.threads + joined + by_instance * sizes.instances);
}

// Cotangents and sums of all groups, and the gradients per instance.
double AdjointStateBytes(const Batch& batch, const Sizes& sizes) {
  const NumericalProgram& program = *batch.program;
  const std::vector<InputForm> forms = FormsOf(batch);
  double per_group = sizes.others + sizes.lanes * 8 + 2 * kPerVector;
  double per_instance = 0;
  for (size_t i = 0; i < program.program.inputs.size(); ++i) {
    per_group += 2 * sizeof(LaneMemory);
    per_instance += 1;  // connected
    if (!program.adjoint_spec->wanted[i]) continue;
    if (program.program.inputs[i].weights) {
      per_group += sizes.lanes * 4 + 2 * kPerVector;
      continue;
    }
    const double n = Elements(program.program, program.program.inputs[i].value) *
                     (forms[i].sums_per_step ? static_cast<double>(batch.steps) : 1.0);
    per_group += sizes.lanes * (n * BytesPerLane(program, Role::kGradient) + 4) + 2 * kPerVector;
    per_instance += 8 * n;
  }
  return sizes.groups * per_group + sizes.instances * per_instance + sizes.totals;
}

// The memory of one thread that reverses `range` steps.
double AdjointThreadBytes(const Sizes& sizes, double range) {
  const double by_step = 8 + sizeof(BackwardColumn) + sizes.sent;
  return sizes.travelling + sizes.products + sizes.sent_final + range * by_step;
}

}  // namespace

GivenNumbers GivenTo(const plan::Plan& plan, const BlockSums::Wanted& wanted) {
  for (const plan::OuterProduct& product : plan.outer_products) {
    if (product.input == wanted.input) return {product.rows + product.columns, &product};
  }
  return {wanted.elements, nullptr};
}

// Measured (live bytes of the allocator, compile_bench): 2 to 5 MiB for the smallest programs; 1.1 KiB for
// each statement, and 2 to 5 for those of the largest function.
int64_t CompileBytes(const plan::Plan& plan, Part part) {
  constexpr int64_t kLeast = int64_t{4} << 20;
  constexpr int64_t kOfAll = 1200;
  constexpr int64_t kOfLargest = 5 << 10;
  int64_t all = 0;
  int64_t largest = 0;
  for (const plan::Function* function : FunctionsOf(plan, part)) {
    all += plan::StatementsOf(*function);
    largest = std::max(largest, plan::LargestPiece(*function));
  }
  return kLeast + kOfAll * all + kOfLargest * largest;
}

int64_t WorkspaceBytes(const plan::Plan& plan, const LaneShape& shape) {
  int64_t most = 0;
  int64_t kept = 0;
  for (const plan::Function* function :
       {&plan.start, &plan.step, &plan.finish, &plan.replay, &plan.reverse_terminal,
        &plan.reverse_last, &plan.reverse, &plan.reverse_initial}) {
    most = std::max(most, function->workspace);
    kept += function->kept;
  }
  return (most + kept) * shape.lanes();
}

int64_t SavedBytesOf(const plan::Plan& plan, const LaneShape& shape, int64_t groups) {
  constexpr int64_t kShared = 64;  // what a shared pointer counts with
  return groups * GroupLayout(plan, shape.lanes()).bytes + kShared +
         static_cast<int64_t>(sizeof(LaneMemory) + kPerVector);
}

WeightsNeed WeightsNeedOf(const Batch& batch, const RunOptions& options, const LaneShape& shape,
                          WorkMeter& meter) {
  if (!batch.program->adjoint || BlockSums::WantedOf(*batch.program).empty()) return {};
  const int64_t lanes = shape.lanes();
  const int64_t groups = std::max<int64_t>((batch.instances + lanes - 1) / lanes, 1);
  const auto threads = static_cast<int>(std::clamp<int64_t>(options.threads, 1, groups));
  const BlockSums sums(*batch.program, WeightsOf(batch.instance_ids, {}, {}, meter), lanes, 1.0,
                       meter);
  return {sums.BytesPerEntry(threads), sums.HeldBytes()};
}

TapeBytes TapeBytesOf(const NumericalProgram& program) {
  const plan::TapePlan tape(program);
  const Region& step = program.program.step;
  const double straight = FrameOf(tape, step);
  return {straight, straight + LoopBytes(tape, step, Whiles::kTurnOnce),
          straight + LoopBytes(tape, step, Whiles::kReachTheirCaps)};
}

MemoryNeed NeedOfRun(const Batch& batch, const RunOptions& options, const RangeSteps& steps,
                     const plan::Plan& plan, const LaneShape& shape, const TapeBytes& tape,
                     const WeightsNeed& weights) {
  const Sizes sizes = SizesOf(batch, options, plan, shape, weights);
  const double range = static_cast<double>(steps.range);
  const double chunk = static_cast<double>(steps.chunk);
  MemoryNeed need;
  need.saved = SavedBytesOf(plan, shape, static_cast<int64_t>(sizes.groups));
  double by_thread = kPerThread + static_cast<double>(WorkspaceBytes(plan, shape)) +
                     InputBytes(batch, sizes, std::max(chunk, range)) + 4 * chunk * sizes.lanes;
  double run = static_cast<double>(need.saved) + 8 * sizes.groups * sizes.lanes +
               sizes.instances * (16 + 2 * sizeof(InstanceHealth)) +
               8 * static_cast<double>(batch.steps) + ChunkBytes(batch, options, sizes, chunk);
  if (batch.program->adjoint) {
    run += AdjointStateBytes(batch, sizes) + 2 * range * sizeof(BackwardStep);
    by_thread += AdjointThreadBytes(sizes, range);
    const double usual = tape.usual * sizes.lanes;
    need.steps_at_once = std::max<int64_t>(
        1, Clamped(kSegmentBytes / std::max(usual + sizes.given + sizes.sent, 1.0)));
    need.tape_once = Clamped(RangeTapes(sizes, tape.straight * sizes.lanes, range));
    need.tape_at_caps = Clamped(RangeTapes(sizes, tape.at_caps * sizes.lanes, range));
  }
  need.run = Clamped(run + by_thread * sizes.threads);
  return need;
}

}  // namespace simgrad::sim::compiled
