// The inputs of a batch as machine code reads them: f64 or integers, instances in lanes.
//
// Layout: shared inputs [step if they have them][element], others [step][element][lane]; padding
//   lanes repeat the last instance. Bools are 0 and -1 in 32 bits.
// Errors: none; the batch has been checked (sim/backend/check_batch.h). Throws StopRequested.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/backend/compiled/group/lane_memory.h"
#include "sim/backend/compiled/group/writer_options.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::compiled {

std::vector<InputForm> FormsOf(const Batch& batch);

class GroupInputs {
 public:
  GroupInputs(const Batch& batch, int lanes);
  // Loads instances [first, first + lanes) and steps [first_step, first_step + count). Steps at or
  // behind the horizon give the last step's, or zeros where there is none.
  void Load(int64_t first, int64_t first_step, int64_t count, WorkMeter& meter);
  const void* const* pointers() const { return pointers_.data(); }

 private:
  void Fill(size_t input, int64_t first, int64_t first_step, int64_t count, WorkMeter& meter);

  const Batch& batch_;
  const int lanes_;
  const std::vector<InputForm> forms_;
  int64_t loaded_first_ = -1;
  std::vector<LaneMemory> values_;  // by input
  std::vector<const void*> pointers_;
};

}  // namespace simgrad::sim::compiled
