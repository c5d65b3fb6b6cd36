// The first message of a stream: what runs, and which trajectories follow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/conversion/work.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

// All but the program, of which every header says the same (CachedProgram::info).
v1::StreamHeader StreamHeaderToProto(const std::vector<Recorded>& recorded, int64_t instances,
                                     int64_t steps);

}  // namespace simgrad::server::conversion
