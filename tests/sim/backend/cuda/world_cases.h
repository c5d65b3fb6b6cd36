// Work over the built-in worlds, in every configuration that gives another program.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/engine.h"
#include "sim/worlds/worlds.h"

namespace simgrad::tests {

struct WorldCase {
  std::string name;  // for people
  std::string world;
  sim::Config config;
};

// With `elements` bodies per instance.
std::vector<WorldCase> WorldCases(double elements);

// The program of a case under a preset; with an adjoint of its first objective where `gradient`.
absl::StatusOr<sim::NumericalProgram> LowerCase(const WorldCase& world, const std::string& preset,
                                                bool gradient);

// Work on it with states around the contact, a control per step, everything recorded.
sim::Work WorkOfCase(sim::NumericalProgram program, int64_t instances, int64_t steps);

}  // namespace simgrad::tests
