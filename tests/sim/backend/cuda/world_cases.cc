#include "tests/sim/backend/cuda/world_cases.h"

#include <random>
#include <utility>

#include "tests/sim/work_maker.h"

namespace simgrad::tests {

std::vector<WorldCase> WorldCases(double elements) {
  const auto ball = [&](std::string name, sim::Config config) {
    config["elements"] = elements;
    return WorldCase{std::move(name), "bouncing_ball", std::move(config)};
  };
  const std::string element = "element";
  return {
      ball("projection", {{"tol", 1e-3}}),
      ball("projection per element", {{"scope", element}, {"tol", 1e-3}, {"clamp", false}}),
      ball("penalty", {{"contact", std::string("penalty")},
                       {"smoothing", std::string("softplus")},
                       {"integrator", std::string("explicit")}}),
      ball("toi", {{"contact", std::string("toi")}}),
      {"boundary",
       "boundary_projection",
       {{"elements", elements}, {"tol_enter", 2e-3}, {"tol", 1e-3}}},
  };
}

absl::StatusOr<sim::NumericalProgram> LowerCase(const WorldCase& world, const std::string& preset,
                                                bool gradient) {
  absl::StatusOr<sim::Program> program = sim::BuildWorld(world.world, world.config);
  if (!program.ok()) return program.status();
  const std::string objective = gradient ? program->objectives.front().name : "";
  return LowerForGradient(*program, PolicyOf({.preset = preset}), objective);
}

sim::Work WorkOfCase(sim::NumericalProgram program, int64_t instances, int64_t steps) {
  sim::Work work = WorkOf(std::move(program), instances, steps);
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(-0.2, 0.3);
  const sim::Program& p = work.batch.program->program;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const sim::Input& input = p.inputs[i];
    const bool state = input.kind == sim::InputKind::kState;
    const bool control = input.kind == sim::InputKind::kControl;
    const bool own = input.kind == sim::InputKind::kConfig || input.kind == sim::InputKind::kStep;
    if (own || (input.default_value && !state && !control)) continue;
    sim::Binding& binding = work.batch.inputs[i];
    binding.per_instance = state;
    binding.per_step = control;
    const int64_t copies = state ? instances : control ? steps : 1;
    const int64_t count = copies * sim::ElementCount(p[input.value].type.shape);
    std::vector<double> numbers;
    for (int64_t k = 0; k < count; ++k) {
      numbers.push_back(state || control ? uniform(random) : 0.3 + uniform(random));
    }
    binding.tensor = Doubles(numbers, {count});
    if (state) work.options.record_states.push_back(static_cast<int32_t>(i));
  }
  for (size_t k = 0; k < p.exports.size(); ++k) {
    work.options.record_exports.push_back(static_cast<int32_t>(k));
  }
  work.options.stride = 3;
  return work;
}

}  // namespace simgrad::tests
