// Trajectories as messages below a size, and the states at time 0.
#pragma once

#include <cstdint>
#include <vector>

#include "server/conversion/work.h"
#include "sim/engine.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

// `values`: [instances][times][shape] of one recorded field, times [first_time, first_time +
// times).
std::vector<v1::TrajectoryChunk> TrajectoryChunks(const Recorded& field, const sim::Tensor& values,
                                                  int64_t instances, int64_t first_time,
                                                  int64_t times, int64_t max_data_bytes);

// The part of the trajectory of one chunk of steps: states at times t + 1, observables at t.
std::vector<v1::TrajectoryChunk> TrajectoryOfChunk(const std::vector<Recorded>& recorded,
                                                   const sim::ForwardChunk& chunk,
                                                   int64_t instances, int64_t max_data_bytes);

}  // namespace simgrad::server::conversion
