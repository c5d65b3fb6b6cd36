// The first message of a stream: what runs, and which trajectories follow.
#pragma once

#include <cstdint>
#include <vector>

#include "server/conversion/program_cache.h"
#include "server/conversion/work.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

v1::StreamHeader StreamHeaderToProto(const CachedProgram& program,
                                     const std::vector<Recorded>& recorded, int64_t instances,
                                     int64_t steps);

// Takes the program's text out where it does not fit; pieces of field "program.text" carry it.
std::vector<v1::TensorPiece> SplitOffText(v1::StreamHeader& header, int64_t max_bytes);

}  // namespace simgrad::server::conversion
