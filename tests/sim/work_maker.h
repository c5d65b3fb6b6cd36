// Makes work for the engine in few words: policies, programs of built-in worlds, bindings.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/backend/reference/reference_executor.h"
#include "sim/engine.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"

namespace simgrad::tests {

inline precision::Policy PolicyOf(const precision::PolicySpec& spec) {
  return std::get<precision::Policy>(precision::Resolve(spec));
}

inline sim::Tensor Doubles(const std::vector<double>& values, sim::Shape shape) {
  sim::Tensor tensor = sim::Tensor::Zeros(sim::DType::kF64, std::move(shape));
  for (size_t i = 0; i < values.size(); ++i) tensor.Set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

// Shared by all instances.
inline sim::Binding Shared(const std::vector<double>& values, sim::Shape shape) {
  return {Doubles(values, std::move(shape)), false, false};
}

inline void Bind(sim::Work& work, sim::InputKind kind, const std::string& name,
                 sim::Binding binding) {
  const auto& inputs = work.batch.program->program.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].kind == kind && inputs[i].name == name) work.batch.inputs[i] = binding;
  }
}

inline int32_t IndexOf(const sim::Program& program, sim::InputKind kind, const std::string& name) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i].kind == kind && program.inputs[i].name == name) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

// A program with the gradients of every real state, param and control for `objective`; without an
// objective it has no adjoint.
inline absl::StatusOr<sim::NumericalProgram> LowerForGradient(const sim::Program& world,
                                                              const precision::Policy& policy,
                                                              const std::string& objective) {
  if (objective.empty()) return sim::Lower(world, policy, "", std::nullopt);
  sim::AdjointSpec spec;
  spec.objective = objective;
  for (const sim::Input& input : world.inputs) {
    spec.wanted.push_back(sim::IsDifferentiable(world, input));
  }
  return sim::Lower(world, policy, objective, spec);
}

inline sim::Work WorkOf(sim::NumericalProgram program, int64_t instances, int64_t steps) {
  sim::Work work;
  if (program.adjoint) work.gradient.emplace();
  work.batch.program = std::make_shared<const sim::NumericalProgram>(std::move(program));
  work.batch.instances = instances;
  work.batch.steps = steps;
  for (int64_t i = 0; i < instances; ++i) {
    work.batch.instance_ids.push_back(static_cast<uint64_t>(i));
  }
  work.batch.inputs.resize(work.batch.program->program.inputs.size());
  work.options.recording = sim::Recording::kInstances;
  return work;
}

inline absl::StatusOr<sim::WorkResult> Execute(sim::Work work, sim::Observer& observer) {
  return sim::Engine(sim::MakeReferenceExecutor()).Execute(std::move(work), observer);
}

}  // namespace simgrad::tests
