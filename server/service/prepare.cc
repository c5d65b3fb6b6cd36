#include "server/service/prepare.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "server/conversion/answer_bounds.h"
#include "server/conversion/path.h"
#include "server/service/outbox.h"
#include "server/validation/gradient_check.h"
#include "server/validation/input_check.h"
#include "server/validation/path_check.h"
#include "server/validation/spec_check.h"
#include "server/validation/weights_check.h"
#include "sim/backend/check_batch.h"
#include "sim/program/field_error.h"

namespace simgrad::server::service {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Reversing a loop may write its test three times over, and a loop in it each time again: so loops
// are few, and operands count as operations do. Lowering 200 operations with their adjoint takes
// about 2 ms.
struct ProgramSize {
  int64_t operations = 0;  // with their operands
  int64_t loops = 0;
};

// False: it is more than a quick program has.
bool Count(const v1::Region& region, ProgramSize& size) {
  constexpr ProgramSize kQuick = {600, 2};
  size.operations += region.args_size() + region.yields_size();
  for (const v1::Op& op : region.ops()) {
    size.operations += 1 + op.operands_size();
    size.loops += op.regions_size() > 0 ? 1 : 0;
    if (size.operations > kQuick.operations || size.loops > kQuick.loops) return false;
    for (const v1::Region& nested : op.regions()) {
      if (!Count(nested, size)) return false;
    }
  }
  return size.operations <= kQuick.operations;
}

// The executor knows better than a bound for all of them, and asking it costs a plan: so it is
// asked about large work alone.
absl::StatusOr<int64_t> WorkBytes(const sim::Work& work, const PrepareOptions& options) {
  constexpr int64_t kLarge = int64_t{64} << 20;
  const int64_t bound = sim::EstimateBytes(work);
  if (bound <= kLarge || options.engine == nullptr) return bound;
  return sim::EstimateBytes(work, options.engine->executor());
}

absl::Status CheckPathOf(const v1::RolloutSpec& spec, const sim::NumericalProgram& program,
                         int64_t instances, const validation::RequestLimits& limits) {
  if (!program.path) return absl::OkStatus();
  const sim::PathLayout& layout = *program.path;
  return validation::CheckPathFits(
      spec.path(), {layout.structure, instances, spec.steps(), layout.bytes}, limits, "spec.path");
}

// `gradient` null: a rollout.
absl::StatusOr<PreparedWork> PrepareSpec(const v1::RolloutSpec& spec,
                                         const validation::Weights& weights,
                                         const v1::GradientRequest* gradient,
                                         conversion::ProgramCache& cache,
                                         const PrepareOptions& options,
                                         const PrepareControl& control) {
  const Clock::time_point start = Clock::now();
  absl::Status status = validation::CheckSpec(spec, options.limits, "spec");
  if (status.ok() && gradient != nullptr) status = validation::CheckGradientMessage(*gradient);
  if (status.ok()) status = validation::CheckWeights(weights);
  if (!status.ok()) return status;

  const Clock::time_point compile_start = Clock::now();
  auto world = cache.World(spec.world(), "spec.world", control.compile);
  if (!world.ok()) return world.status();
  double compile_seconds = SecondsSince(compile_start);

  auto instances = validation::CheckInputs(spec, (*world)->schema, options.limits, "spec");
  if (!instances.ok()) return instances.status();
  status = validation::CheckWeightCount(weights, *instances);
  if (!status.ok()) return status;
  std::optional<sim::AdjointSpec> adjoint;
  if (gradient != nullptr) {
    status = validation::CheckGradient(*gradient, (*world)->schema, *instances);
    if (!status.ok()) return status;
    adjoint = conversion::AdjointSpecFromProto(*gradient, (*world)->program);
  }

  const Clock::time_point lower_start = Clock::now();
  auto program = cache.Lower(*world, spec.policy(), spec.objective(), adjoint, "spec",
                             control.compile, conversion::PathUseOf(spec.path()));
  if (!program.ok()) return program.status();
  compile_seconds += SecondsSince(lower_start);
  status = validation::CheckRequired(spec, (*program)->required, "spec");
  if (status.ok()) {
    status = CheckPathOf(spec, *(*program)->program, *instances, options.limits);
  }
  if (!status.ok()) return status;

  PreparedWork prepared;
  prepared.program = *program;
  conversion::WorkSettings settings = options.work;
  settings.threads = ThreadsFor(*instances, options.work.threads);
  prepared.work = conversion::WorkFromProto(spec, prepared.program->program, *instances, settings);
  prepared.work.weights.assign(weights.begin(), weights.end());
  if (gradient != nullptr) conversion::AddGradient(*gradient, prepared.work);
  status = sim::InField("spec", sim::CheckSteps(prepared.work.batch));
  if (!status.ok()) return status;
  prepared.recorded = conversion::RecordedFields(spec, *prepared.program->program);
  prepared.nonfinite_inputs = conversion::CountNonFinite(prepared.work.batch);
  prepared.program_detail = spec.program();
  if (spec.policy().loss_scale().has_dynamic()) {
    prepared.loss_scaler = spec.policy().loss_scale().dynamic();
  }
  prepared.send_diagnostics = spec.diagnostics().level() != v1::DIAGNOSTICS_LEVEL_OFF;
  const conversion::AnswerLimits answer = {options.limits.max_message_bytes / 2,
                                           kQueuedMessages * options.limits.max_message_bytes};
  prepared.work.max_chunk_steps =
      conversion::MostChunkSteps(prepared.work, prepared.recorded, answer);
  prepared.work.options.stop = control.compile.stop;
  prepared.work.reserve = control.reserve;
  const auto work_bytes = WorkBytes(prepared.work, options);
  if (!work_bytes.ok()) return work_bytes.status();
  prepared.memory_bytes = *work_bytes + conversion::AnswerBytes(prepared.work, prepared.recorded,
                                                                prepared.program_detail, answer);
  prepared.compile_seconds = compile_seconds;
  prepared.decode_seconds = SecondsSince(start) - compile_seconds;
  return prepared;
}

}  // namespace

Preparation PreparationOf(const v1::World& world) {
  if (world.source_case() != v1::World::kProgram) return Preparation::kQuick;
  const v1::Program& program = world.program();
  ProgramSize size = {static_cast<int64_t>(program.exports_size()) + program.objectives_size(), 0};
  bool quick = Count(program.initial(), size) && Count(program.step(), size);
  for (const v1::Objective& objective : program.objectives()) {
    quick = quick && Count(objective.stage(), size) && Count(objective.terminal(), size);
  }
  return quick ? Preparation::kQuick : Preparation::kCostly;
}

int ThreadsFor(int64_t instances, int most) {
  // Below this a thread costs more to start than it saves.
  constexpr int64_t kInstancesPerThread = 256;
  const int64_t worth = (instances + kInstancesPerThread - 1) / kInstancesPerThread;
  return static_cast<int>(std::clamp<int64_t>(worth, 1, std::max(1, most)));
}

absl::StatusOr<PreparedWork> Prepare(const v1::RolloutRequest& request,
                                     conversion::ProgramCache& cache, const PrepareOptions& options,
                                     const PrepareControl& control) {
  if (absl::Status status = validation::CheckRolloutMessage(request); !status.ok()) return status;
  return PrepareSpec(request.spec(), request.weights(), nullptr, cache, options, control);
}

absl::StatusOr<PreparedWork> Prepare(const v1::GradientRequest& request,
                                     conversion::ProgramCache& cache, const PrepareOptions& options,
                                     const PrepareControl& control) {
  return PrepareSpec(request.spec(), request.weights(), &request, cache, options, control);
}

}  // namespace simgrad::server::service
