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

// Adds a program whose text does not fit: pieces of field "program.text" carry it.
std::vector<v1::TensorPiece> AddProgramWithoutText(const std::string& info,
                                                   v1::StreamHeader& header, int64_t max_bytes);

}  // namespace simgrad::server::conversion
