// Between the messages of kept rollouts and the gradients that they stand for.
//
// Expects that the checks of server/validation have passed. Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

// The gradient that a rollout is kept for, as far as it shapes the program: by names.
v1::GradientRequest KeptGradient(const v1::KeepOptions& keep, const v1::RolloutSpec& spec,
                                 const sim::Program& program);

// The gradient that a Vjp of this spec asks for, with one empty cotangent where it sends any.
v1::GradientRequest GradientOfVjp(const v1::VjpRequest& request, const v1::RolloutSpec& spec);

// The spec without the numbers of its tensors, and without a program.
v1::RolloutSpec WithoutContents(const v1::RolloutSpec& spec);

bool SameCotangents(const sim::AdjointSpec& a, const sim::AdjointSpec& b);

int64_t CotangentBytes(const std::vector<sim::Cotangents>& cotangents);

}  // namespace simgrad::server::conversion
