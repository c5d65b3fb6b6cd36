#include "sim/backend/reference/certificate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "precision/float_environment.h"
#include "sim/backend/check_batch.h"
#include "sim/backend/reference/replay.h"

namespace simgrad::sim {
namespace reference {
namespace {

Array ArrayOf(const Tensor& tensor, const Type& type) {
  Array array = ZerosOf(type);
  for (size_t i = 0; i < array.real.size(); ++i) {
    array.real[i] = tensor.Get(static_cast<int64_t>(i));
  }
  for (size_t i = 0; i < array.integer.size(); ++i) {
    array.integer[i] = tensor.GetInt(static_cast<int64_t>(i));
  }
  return array;
}

// Puts an instance at the states and cost of a checkpoint; paths do not matter to a birth.
void Resume(const Program& program, const ReplayStart& start, InstanceRun& instance) {
  InstanceState state = instance.state();
  const std::vector<int32_t> inputs = program.InputsOf(InputKind::kState);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const ValueId id = program.inputs[static_cast<size_t>(inputs[k])].value;
    state.states[k] = ArrayOf(start.states[k], program[id].type);
  }
  state.cost = start.cost;
  state.health = {};
  instance.set_state(std::move(state));
}

void ReplayForward(int64_t first, int64_t last, InstanceRun& instance) {
  for (int64_t t = first; t <= last && instance.health().ok; ++t) instance.Step(t, {});
}

// From the start, or for a birth in the forward run from `start`, until it is met.
void ReplayBirth(const Batch& batch, const InstanceHealth& health, double seed_scale,
                 const ReplayStart* start, InstanceRun& instance) {
  instance.Start();
  if (health.phase == Phase::kAdjoint) {
    Replay replay{batch, instance, {}, {}, {}, [&] { return instance.health().ok; }};
    return replay.Reverse(health.step, seed_scale);
  }
  int64_t first = 0;
  if (start != nullptr && start->step > 0) {
    Resume(batch.program->program, *start, instance);
    first = start->step;
  }
  ReplayForward(first, std::min(health.step, batch.steps - 1), instance);
  if (health.step == batch.steps && instance.health().ok) instance.Finish();
}

}  // namespace
}  // namespace reference

absl::StatusOr<std::optional<BirthCertificate>> WriteCertificate(const Batch& batch, int64_t row,
                                                                 const InstanceHealth& health,
                                                                 double seed_scale,
                                                                 const ReplayStart* start,
                                                                 WorkMeter::StopCallback stop) {
  if (absl::Status fits = CheckBatch(batch, stop); !fits.ok()) return fits;
  if (health.ok) return std::nullopt;
  if (health.phase == Phase::kAdjoint && !batch.program->adjoint) {
    return absl::InvalidArgumentError("phase adjoint of a program without an adjoint");
  }
  const precision::ScopedFloatEnvironment environment;
  const reference::Layouts layouts(*batch.program);
  std::optional<reference::InstanceRun> instance;
  // Operations after the birth, in a step that may be a whole solve, say nothing of it.
  const auto is_over = [&] { return (instance && instance->certificate()) || (stop && stop()); };
  instance.emplace(batch, layouts, row, 0.0, is_over);
  const absl::Status ended =
      UntilStopped([&] { reference::ReplayBirth(batch, health, seed_scale, start, *instance); });
  if (!ended.ok() && !instance->certificate()) return ended;
  return instance->certificate();
}

}  // namespace simgrad::sim
