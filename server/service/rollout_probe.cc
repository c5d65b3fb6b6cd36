#include "server/service/rollout_probe.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "precision/policy.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::service {

absl::StatusOr<sim::Work> SmallestRollout() {
  const auto world = sim::BuildWorld("bouncing_ball", {});
  if (!world.ok()) return world.status();
  const auto policy = std::get<precision::Policy>(precision::Resolve({}));
  auto program = sim::Lower(*world, policy, "", std::nullopt);
  if (!program.ok()) return program.status();
  sim::Work work;
  work.batch.program = std::make_shared<const sim::NumericalProgram>(*std::move(program));
  work.batch.instances = 1;
  work.batch.steps = 1;
  work.batch.instance_ids = {0};
  const sim::Program& assigned = work.batch.program->program;
  for (const sim::Input& input : assigned.inputs) {
    sim::Binding& binding = work.batch.inputs.emplace_back();
    if (!input.used || input.default_value) continue;
    binding.tensor = sim::Tensor::Zeros(sim::DType::kF64, assigned[input.value].type.shape);
    for (int64_t i = 0; i < binding.tensor.count(); ++i) binding.tensor.Set(i, 1.0);
  }
  work.options.recording = sim::Recording::kNone;
  work.options.is_trial = true;
  return work;
}

absl::StatusOr<std::function<absl::Status()>> RolloutProbe(
    std::shared_ptr<const sim::Engine> engine) {
  auto work = SmallestRollout();
  if (!work.ok()) return work.status();
  return [engine = std::move(engine), work = *std::move(work)] {
    sim::Observer nobody;
    engine->Execute(work, nobody).IgnoreError();
    return absl::OkStatus();
  };
}

}  // namespace simgrad::server::service
