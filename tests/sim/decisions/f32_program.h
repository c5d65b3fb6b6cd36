// A program under preset f32, without an adjoint.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {

inline std::shared_ptr<const sim::NumericalProgram> InF32(sim::Builder& b) {
  const absl::StatusOr<sim::Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  auto lowered = sim::Lower(*program, PolicyOf({.preset = "f32"}), "", std::nullopt);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return std::make_shared<const sim::NumericalProgram>(*std::move(lowered));
}

}  // namespace simgrad::tests
