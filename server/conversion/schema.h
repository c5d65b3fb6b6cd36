// The declarations of a program, as data for the checks and as messages for callers.
#pragma once

#include "server/validation/program_schema.h"
#include "sim/program/program.h"
#include "sim/worlds/worlds.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

validation::ProgramSchema SchemaOf(const sim::Program& program);

// Inputs of every kind but `config` and `step`: what a caller can send.
std::vector<v1::InputSchema> InputSchemasOf(const sim::Program& program);

// The schema of a built-in world; `program` is that of its default configuration.
v1::WorldSchema WorldSchemaToProto(const sim::WorldSchema& world, const sim::Program& program);

}  // namespace simgrad::server::conversion
