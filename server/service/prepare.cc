#include "server/service/prepare.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "server/conversion/answer_bounds.h"
#include "server/service/outbox.h"
#include "server/validation/gradient_check.h"
#include "server/validation/input_check.h"
#include "server/validation/spec_check.h"
#include "sim/backend/check_batch.h"
#include "sim/program/field_error.h"

namespace simgrad::server::service {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// `gradient` null: a rollout.
absl::StatusOr<PreparedWork> PrepareSpec(const v1::RolloutSpec& spec,
                                         const v1::GradientRequest* gradient,
                                         conversion::ProgramCache& cache,
                                         const PrepareOptions& options) {
  const Clock::time_point start = Clock::now();
  absl::Status status = validation::CheckSpec(spec, options.limits, "spec");
  if (status.ok() && gradient != nullptr) status = validation::CheckGradientMessage(*gradient);
  if (!status.ok()) return status;

  const Clock::time_point compile_start = Clock::now();
  auto world = cache.World(spec.world(), "spec.world");
  if (!world.ok()) return world.status();
  double compile_seconds = SecondsSince(compile_start);

  auto instances = validation::CheckInputs(spec, (*world)->schema, options.limits, "spec");
  if (!instances.ok()) return instances.status();
  std::optional<sim::AdjointSpec> adjoint;
  if (gradient != nullptr) {
    status = validation::CheckGradient(*gradient, (*world)->schema, *instances);
    if (!status.ok()) return status;
    adjoint = conversion::AdjointSpecFromProto(*gradient, (*world)->program);
  }

  const Clock::time_point lower_start = Clock::now();
  auto program = cache.Lower(*world, spec.policy(), spec.objective(), adjoint, "spec");
  if (!program.ok()) return program.status();
  compile_seconds += SecondsSince(lower_start);
  status = validation::CheckRequired(spec, (*program)->required, "spec");
  if (!status.ok()) return status;

  PreparedWork prepared;
  prepared.program = *program;
  conversion::WorkSettings settings = options.work;
  settings.threads = ThreadsFor(*instances, options.work.threads);
  prepared.work = conversion::WorkFromProto(spec, prepared.program->program, *instances, settings);
  if (gradient != nullptr) conversion::AddGradient(*gradient, prepared.work);
  status = sim::InField("spec", sim::CheckSteps(prepared.work.batch));
  if (!status.ok()) return status;
  prepared.recorded = conversion::RecordedFields(spec, *prepared.program->program);
  prepared.nonfinite_inputs = conversion::CountNonFinite(prepared.work.batch);
  prepared.send_diagnostics = spec.diagnostics().level() != v1::DIAGNOSTICS_LEVEL_OFF;
  const conversion::AnswerLimits answer = {options.limits.max_message_bytes / 2,
                                           kQueuedMessages * options.limits.max_message_bytes};
  prepared.work.max_chunk_steps =
      conversion::MostChunkSteps(prepared.work, prepared.recorded, answer);
  prepared.memory_bytes = sim::EstimateBytes(prepared.work) +
                          conversion::AnswerBytes(prepared.work, prepared.recorded, answer);
  prepared.compile_seconds = compile_seconds;
  prepared.decode_seconds = SecondsSince(start) - compile_seconds;
  return prepared;
}

}  // namespace

Preparation PreparationOf(const google::protobuf::Message& request) {
  // The smallest operation takes about 25 bytes; lowering 600 of them with their adjoint takes
  // below 5 ms, 19,000 of them 0.45 s (measured on one core of a server).
  constexpr size_t kQuickBytes = size_t{16} << 10;
  return request.ByteSizeLong() <= kQuickBytes ? Preparation::kQuick : Preparation::kCostly;
}

int ThreadsFor(int64_t instances, int most) {
  // Below this a thread costs more to start than it saves.
  constexpr int64_t kInstancesPerThread = 256;
  const int64_t worth = (instances + kInstancesPerThread - 1) / kInstancesPerThread;
  return static_cast<int>(std::clamp<int64_t>(worth, 1, std::max(1, most)));
}

absl::StatusOr<PreparedWork> Prepare(const v1::RolloutRequest& request,
                                     conversion::ProgramCache& cache,
                                     const PrepareOptions& options) {
  if (absl::Status status = validation::CheckRolloutMessage(request); !status.ok()) return status;
  return PrepareSpec(request.spec(), nullptr, cache, options);
}

absl::StatusOr<PreparedWork> Prepare(const v1::GradientRequest& request,
                                     conversion::ProgramCache& cache,
                                     const PrepareOptions& options) {
  return PrepareSpec(request.spec(), &request, cache, options);
}

}  // namespace simgrad::server::service
