// The enums of the messages and those of the simulation, one for one.
#pragma once

#include <optional>
#include <string>

#include "sim/program/program.h"
#include "sim/tensor.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

v1::DType ToProto(sim::DType dtype);
std::optional<sim::DType> FromProto(v1::DType dtype);

v1::InputKind ToProto(sim::InputKind kind);
std::optional<sim::InputKind> FromProto(v1::InputKind kind);

v1::ElementType ToProto(sim::ElementType element);
std::optional<sim::ElementType> FromProto(v1::ElementType element);

std::string ComparisonName(sim::Comparison comparison);
std::optional<sim::Comparison> ComparisonFromName(const std::string& name);

}  // namespace simgrad::server::conversion
