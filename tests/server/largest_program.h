// A program that takes long to prepare: 20,000 operations, the adjoint of which is within the limits.
#pragma once

#include <gtest/gtest.h>

#include "server/conversion/program_to_proto.h"
#include "sim/program/builder.h"
#include "tests/server/ball_request.h"

namespace simgrad::server {

// Half of its operations stand in the test of a loop; no two `kind`s are one cache entry.
inline v1::Program LargestProgram(double kind) {
  constexpr int64_t kHalf = 20'000 / 2 - 200;
  sim::Builder b("largest");
  const sim::Var x = b.State("x", {});
  const sim::Var k = b.Param("k", {});
  sim::WhileOptions options;
  options.site = "shrink";
  options.max_iter = 2;
  const sim::LoopResult loop = b.While(
      options, {x}, {},
      [&](const sim::Vars& in, const sim::Vars&) {
        sim::Var tested = in[0];
        for (int64_t i = 0; i < kHalf; ++i) tested = tested * k;
        return sim::LoopTest{tested, b.Literal(0.5), std::nullopt, {tested}};
      },
      [&](const sim::Vars& in, const sim::Vars& exports, const sim::Vars&) {
        sim::Var next = exports[0];
        for (int64_t i = 0; i < kHalf; ++i) next = next + in[0];
        return sim::Vars{next + b.Literal(kind)};
      });
  b.SetNext({loop.carried[0]});
  b.AddObjective("last", nullptr,
                 [](const sim::Vars& states, const sim::Vars&) { return states[0]; });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return conversion::ProgramToProto(*program);
}

inline v1::GradientRequest LargestGradient(double kind) {
  v1::GradientRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  *spec->mutable_world()->mutable_program() = LargestProgram(kind);
  spec->set_steps(1);
  spec->set_objective("last");
  AddTensor(spec->mutable_initial(), "x", {0.25}, {});
  AddTensor(spec->mutable_params(), "k", {1.0}, {});
  return request;
}

}  // namespace simgrad::server
