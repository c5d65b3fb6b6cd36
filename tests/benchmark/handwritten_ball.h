// The yardstick: the ball of the benchmark as one SIMD loop, written by hand for this world alone.
//
// Computes the same bits as simgrad's f32 program: same operations in the same order, no
// contraction. RecordHandwritten also records what level `summary` records of this ball's two sites
// at each step, but for the instances of smallest margins, the extremes of tested values, and the
// sampled ranges of states.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace simgrad::yardstick {

constexpr int kMaxIter = 25;
constexpr int kBuckets = 64;  // of margins, as diagnostics.h says

struct Ball {
  float k = 1.0f, g = 9.81f, h = 0.01f, restitution = 0.8f, alpha = 0.5f, tol = 1e-4f;
};

// Of the tests of one site, in magnitudes; computed in f32.
struct Smallest {
  float margin, ulps;
};

// One step over all balls.
struct Record {
  std::array<uint32_t, kMaxIter + 1> runs{};   // by iterations: their smallest, sum and largest too
  std::array<uint32_t, kBuckets> histogram{};  // of last margins
  uint32_t near_stopped = 0, near_continued = 0;
  Smallest projection{}, contact{};
  uint32_t contacts = 0, changes = 0;
};

struct Records {
  std::vector<Record> steps;
  std::vector<uint64_t> signatures;  // of paths, by instance
};

// Runs `steps` steps of `instances` balls (a multiple of 64) in place; returns the iterations in
// all. No ball may reach kMaxIter iterations where steps are recorded.
int64_t RunHandwritten(const Ball& ball, float* y, float* v, int64_t instances, int64_t steps);
Records RecordHandwritten(const Ball& ball, float* y, float* v, int64_t instances, int64_t steps);

}  // namespace simgrad::yardstick
