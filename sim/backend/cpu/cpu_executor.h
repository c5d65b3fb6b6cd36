// The vectorised executor: an operation runs over a block of instances at a time, on all cores.
//
// Maths: the bits of the reference executor for everything in sim/backend/executor.h, whatever the
//   instruction set, the number of threads, the size of a block or the cuts of the horizon.
// Errors: INVALID_ARGUMENT for a batch that does not fit its program; FAILED_PRECONDITION for an
//   instruction set that the processor lacks.
// Cost: a rollout of a small world spends about 1.5 cycles per operation and 16 instances in f32
//   with AVX-512. When instances leave a loop, those that stay are packed together.
// Threads: an executor is immutable, except for the plans that it keeps under a mutex. A Run uses
//   RunOptions::threads threads, the caller's included; results do not depend on their number.
#pragma once

#include <memory>
#include <string_view>

#include "sim/backend/executor.h"

namespace simgrad::sim {

enum class CpuInstructions : uint8_t { kBest, kBaseline, kAvx2, kAvx512 };
std::string_view CpuInstructionsName(CpuInstructions instructions);
bool IsSupported(CpuInstructions instructions);

struct CpuExecutorOptions {
  CpuInstructions instructions = CpuInstructions::kBest;
  int64_t block_width = 0;  // instances per block, a multiple of 16 up to 512; 0: chosen
};

std::unique_ptr<Executor> MakeCpuExecutor(const CpuExecutorOptions& options = {});

}  // namespace simgrad::sim
