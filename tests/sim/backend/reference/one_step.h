// Runs a small program written with the builder for one instance, and keeps what there is to see.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "sim/program/builder.h"
#include "tests/sim/seen_run.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {

struct Seen : JoinedDiagnostics {
  void OnForward(const sim::ForwardChunk& chunk) override {
    JoinedDiagnostics::OnForward(chunk);
    sites.push_back(chunk.instance_sites);
  }
  std::vector<std::vector<sim::InstanceSite>> sites;  // by chunk
};

struct Outcome {
  sim::WorkResult result;
  Seen seen;
  std::shared_ptr<const sim::NumericalProgram> program;
};

inline precision::PolicySpec Preset(const std::string& name) {
  precision::PolicySpec spec;
  spec.preset = name;
  return spec;
}

struct Setting {
  precision::PolicySpec policy = Preset("f64");
  std::string objective;
  int64_t steps = 1;
  int64_t instances = 1;
  // Shared values of the states, in their order.
  std::vector<std::vector<double>> states;
  std::function<void(sim::Work&)> adjust;
};

// A work for the program that `write` builds.
inline sim::Work WorkFor(const Setting& setting, const std::function<void(sim::Builder&)>& write) {
  sim::Builder builder("test");
  write(builder);
  const auto world = builder.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = LowerForGradient(*world, PolicyOf(setting.policy), setting.objective);
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = WorkOf(*std::move(program), setting.instances, setting.steps);
  const std::vector<int32_t> inputs = work.batch.program->program.InputsOf(sim::InputKind::kState);
  for (size_t k = 0; k < setting.states.size(); ++k) {
    const size_t input = static_cast<size_t>(inputs[k]);
    const auto& value =
        work.batch.program->program[work.batch.program->program.inputs[input].value];
    work.batch.inputs[input] = Shared(setting.states[k], value.type.shape);
  }
  if (setting.adjust) setting.adjust(work);
  return work;
}

inline Outcome RunProgram(const Setting& setting, const std::function<void(sim::Builder&)>& write) {
  Outcome outcome;
  sim::Work work = WorkFor(setting, write);
  outcome.program = work.batch.program;
  auto result = Execute(std::move(work), outcome.seen);
  EXPECT_TRUE(result.ok()) << result.status();
  if (result.ok()) outcome.result = *std::move(result);
  return outcome;
}

inline std::vector<double> FinalState(const Outcome& outcome, size_t state = 0) {
  std::vector<double> values;
  const sim::Tensor& tensor = outcome.result.final_states.at(state);
  for (int64_t i = 0; i < tensor.count(); ++i) values.push_back(tensor.Get(i));
  return values;
}

}  // namespace simgrad::tests
