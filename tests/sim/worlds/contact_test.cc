// What the contact worlds promise beyond their formulas.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sim/backend/reference/reference_executor.h"
#include "sim/engine.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"
#include "tests/sim/cpu_executor.h"

namespace simgrad::sim {
namespace {

// A ball at impact contact for `steps` steps, from height y0 at rest.
WorkResult Drop(double y0, int64_t steps, const std::string& preset) {
  const Program world = *BuildWorld("bouncing_ball", {{"contact", std::string("toi")}});
  precision::PolicySpec spec;
  spec.preset = preset;
  const auto policy = std::get<precision::Policy>(precision::Resolve(spec));
  Work work;
  work.batch.program = std::make_shared<NumericalProgram>(*Lower(world, policy, "", std::nullopt));
  work.batch.instances = 1;
  work.batch.steps = steps;
  work.batch.instance_ids = {0};
  for (const Input& input : work.batch.program->program.inputs) {
    Binding binding;
    if (input.kind == InputKind::kState) {
      binding.tensor = Tensor::Zeros(DType::kF64, {1});
      if (input.name == "y") binding.tensor.Set(0, y0);
    }
    work.batch.inputs.push_back(binding);
  }
  Observer observer;
  return *Engine(MakeReferenceExecutor()).Execute(std::move(work), observer);
}

TEST(Impact, ABallThatComesToRestStaysAtRest) {
  for (const char* preset : {"f64", "f32", "bf16_safe", "f16_safe"}) {
    const WorkResult result = Drop(0.05, 600, preset);
    EXPECT_TRUE(result.health[0].ok) << preset;
    EXPECT_EQ(result.final_states[0].Get(0), 0.0) << preset;
    EXPECT_EQ(result.final_states[1].Get(0), 0.0) << preset;
    EXPECT_GE(result.first_event_steps[1][0], 0) << preset;  // it did come to rest
  }
}

TEST(Impact, ABallThatStartsAtRestStaysAtRest) {
  const WorkResult result = Drop(0.0, 10, "f32");
  EXPECT_TRUE(result.health[0].ok);
  EXPECT_EQ(result.final_states[0].Get(0), 0.0);
}

// Two falling elements of a world for 6 steps under a policy, tracking `observed` [6][2] if there
// is any. Through the executor that a server runs.
struct Tracked {
  double value = 0.0;
  std::vector<double> stored;    // y[1..6], [6][2]
  std::vector<double> gradient;  // of the initial y; empty without `observed`
};
struct Recorder : Observer {
  explicit Recorder(std::vector<double>& to) : stored(to) {}
  void OnForward(const ForwardChunk& chunk) override {
    for (int64_t i = 0; i < chunk.states[0].count(); ++i) stored.push_back(chunk.states[0].Get(i));
  }
  std::vector<double>& stored;
};

Tracked Track(const std::string& world_name, const Config& config, const precision::Policy& policy,
              const std::vector<double>& observed) {
  const Program world = *BuildWorld(world_name, config);
  AdjointSpec spec;
  spec.objective = "tracking";
  for (const Input& input : world.inputs) spec.wanted.push_back(input.kind == InputKind::kState);
  Work work;
  work.batch.program = std::make_shared<NumericalProgram>(*Lower(world, policy, "tracking", spec));
  work.batch.instances = 1;
  work.batch.steps = 6;
  work.batch.instance_ids = {0};
  work.gradient.emplace();
  for (const Input& input : work.batch.program->program.inputs) {
    Binding binding;
    if (input.name == "y" && input.kind == InputKind::kState) {
      binding.tensor = Tensor::Zeros(DType::kF64, {2});
      binding.tensor.Set(0, world_name == "boundary_projection" ? -0.3 : 0.3);
      binding.tensor.Set(1, world_name == "boundary_projection" ? -0.01 : 0.004);
      work.options.record_states = {static_cast<int32_t>(work.batch.inputs.size())};
    } else if (input.name == "v") {
      binding.tensor = Tensor::Zeros(DType::kF64, {2});
    } else if (input.name == "k") {
      binding.tensor = Tensor::Zeros(DType::kF64, {});
      binding.tensor.Set(0, 0.7);
    } else if (input.kind == InputKind::kData && input.name == "y") {
      binding.tensor = Tensor::Zeros(DType::kF64, {6, 2});
      binding.per_step = true;
      for (size_t i = 0; i < observed.size(); ++i) {
        binding.tensor.Set(static_cast<int64_t>(i), observed[i]);
      }
    }
    work.batch.inputs.push_back(binding);
  }
  Tracked tracked;
  Recorder recorder(tracked.stored);
  const WorkResult result = *Engine(MakeCpuExecutor()).Execute(std::move(work), recorder);
  tracked.value = result.value;
  for (int64_t i = 0; i < 2; ++i) tracked.gradient.push_back(result.gradients[0].gradient.Get(i));
  return tracked;
}

TEST(Tracking, WhatWasStoredIsTrackedWithoutAnyError) {
  std::vector<precision::PolicySpec> specs;
  for (const std::string& preset : precision::PresetNames()) specs.push_back({.preset = preset});
  precision::PolicySpec narrow{.preset = "f64"};
  narrow.roles.push_back({"state", {.format = Format::kF16}});
  specs.push_back(narrow);
  const std::vector<std::pair<std::string, Config>> worlds = {
      {"bouncing_ball", {{"contact", std::string("projection")}, {"elements", 2.0}}},
      {"bouncing_ball", {{"contact", std::string("penalty")}, {"elements", 2.0}}},
      {"bouncing_ball", {{"contact", std::string("toi")}, {"elements", 2.0}}},
      {"boundary_projection", {{"elements", 2.0}}}};
  for (const precision::PolicySpec& spec : specs) {
    const auto policy = std::get<precision::Policy>(precision::Resolve(spec));
    for (const auto& [name, config] : worlds) {
      const Tracked seen = Track(name, config, policy, {});
      ASSERT_EQ(seen.stored.size(), 12u);
      EXPECT_GT(seen.value, 0.0) << name << " " << spec.preset;  // against zeros
      const Tracked own = Track(name, config, policy, seen.stored);
      EXPECT_EQ(own.value, 0.0) << name << " " << spec.preset;
      for (double g : own.gradient) EXPECT_EQ(g, 0.0) << name << " " << spec.preset;
    }
  }
}

}  // namespace
}  // namespace simgrad::sim
