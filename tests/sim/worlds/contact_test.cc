// What the contact worlds promise beyond their formulas.

#include <gtest/gtest.h>

#include <memory>
#include <variant>

#include "sim/backend/reference/reference_executor.h"
#include "sim/engine.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"

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

}  // namespace
}  // namespace simgrad::sim
