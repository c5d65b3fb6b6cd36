// One random piece of work: a world, a policy, inputs, sizes, and what is asked of it.
//
// Threads: pure. A case is its seed: the same on every machine.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "sim/engine.h"
#include "tests/sim/equality/random_program.h"

namespace simgrad::sim::equality {

struct CaseOptions {
  // f64, nothing that cuts or rounds, every input sent and wanted, every state and export recorded:
  // for central differences.
  bool smooth = false;
  // Other sizes than the case's own, for the same program; -1: its own.
  int64_t instances = -1;
  int64_t steps = -1;
  // WorldOptions::size.
  int64_t size = 0;
  // A world about matmul, under a policy that says how it reads its operands and adds its products.
  bool multiplies = false;
};

struct Case {
  uint64_t seed = 0;
  Program world;
  Work work;                         // batch.program is the lowered world
  std::optional<AdjointSpec> asked;  // what it was lowered for
};

absl::StatusOr<Case> MakeCase(uint64_t seed, const CaseOptions& options = {});

// The same work cut otherwise: chunks, checkpoints, threads. No bit may depend on it.
Work Recut(const Work& work, uint64_t seed);

}  // namespace simgrad::sim::equality
