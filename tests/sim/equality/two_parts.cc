#include "tests/sim/equality/two_parts.h"

#include <utility>

#include "sim/program/lower.h"
#include "tests/sim/equality/observed.h"

namespace simgrad::sim::equality {

absl::StatusOr<std::shared_ptr<const KeptRun>> KeepForward(
    const Engine& engine, const Work& gradient, std::shared_ptr<const NumericalProgram> program) {
  Work forward = gradient;
  forward.gradient.reset();
  forward.batch.cotangents = {};
  forward.batch.program = std::move(program);
  forward.batch.inputs.resize(forward.batch.program->program.inputs.size());
  forward.keep = true;
  Observer nobody;
  const absl::StatusOr<WorkResult> run = engine.Execute(forward, nobody);
  if (!run.ok()) return run.status();
  if (run->kept == nullptr) return absl::InternalError("nothing was kept");
  return run->kept;
}

absl::StatusOr<WorkResult> ReverseFor(const Engine& engine, const KeptRun& kept,
                                      const Work& gradient) {
  Work work = WorkOf(kept);
  work.batch.program = gradient.batch.program;
  work.batch.inputs.resize(work.batch.program->program.inputs.size());
  work.batch.cotangents = gradient.batch.cotangents;
  work.gradient = gradient.gradient;
  work.weights = gradient.weights;
  work.memory_budget_bytes = gradient.memory_budget_bytes;
  work.max_certificates = gradient.max_certificates;
  Observer nobody;
  return engine.Reverse(kept, work, nobody);
}

absl::StatusOr<std::shared_ptr<const NumericalProgram>> LowerForAll(const Case& made) {
  AdjointSpec all = *made.asked;
  const auto states = made.world.InputsOf(InputKind::kState);
  all.final_state.assign(states.size(), false);
  for (size_t k = 0; k < states.size(); ++k) {
    all.final_state[k] = made.world.IsReal(made.world.inputs[static_cast<size_t>(states[k])].value);
  }
  for (size_t i = 0; i < made.world.inputs.size(); ++i) {
    all.wanted[i] = IsDifferentiable(made.world, made.world.inputs[i]);
  }
  auto program = Lower(made.world, made.work.batch.program->policy, all.objective, all);
  if (!program.ok()) return program.status();
  return std::make_shared<const NumericalProgram>(*std::move(program));
}

std::optional<std::string> DifferenceOfReversal(WorkResult whole, WorkResult reversed) {
  Observed expected;
  Observed actual;
  expected.result = std::move(whole);
  expected.result.final_states.clear();
  actual.result = std::move(reversed);
  return FirstDifference(expected, actual);
}

}  // namespace simgrad::sim::equality
