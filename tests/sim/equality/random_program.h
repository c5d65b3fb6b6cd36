// Random worlds that the verifier accepts: every operation of the language, loops in loops, events,
// all kinds of inputs, `initial`, exports and costs.
//
// What is written is alive: values that nothing uses become exports or flow into the next state.
// Most worlds keep their numbers in range (arguments are brought into the domain of an operation,
// results are damped), because a world full of NaN compares nothing; one in eight does not.
// Threads: pure. The same seed gives the same world on every machine.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "sim/program/program.h"
#include "tests/sim/equality/random.h"

namespace simgrad::sim::equality {

struct WorldOptions {
  // Real states, nothing that cuts or rounds: for central differences in f64.
  bool smooth = false;
  // Written more often than by chance, so that every operation is met.
  OpCode focus = OpCode::kAdd;
  bool counts_choices = false;  // the level of tests is `decisions`
  // About so many values in the step, in sections that hand some of theirs on, with loops of long
  // bodies and arrays of up to 1,000 elements; 0: a small world.
  int64_t size = 0;
};

struct RandomWorld {
  Program program;
  std::vector<double> thresholds;  // numbers that something is compared with
};

absl::StatusOr<RandomWorld> MakeRandomWorld(Random& random, const WorldOptions& options);

}  // namespace simgrad::sim::equality
