// Finds the loops over elements in which a whole field leaves the step as a cotangent (Code::kTake).
//
// Such a field is recorded behind the loop, by TakeCotangents (cotangent_record.h): counting into a
// histogram element by element would keep the loop from becoming one of vectors.
// Errors: none; what it does not find is recorded in the loop. Threads: pure.
#pragma once

#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

struct TakenField {
  plan::BufferId values = plan::kNoBuffer;
  plan::BufferId present = plan::kNoBuffer;  // the field of its mask; none: it is present
  precision::Format format = precision::Format::kF32;
  precision::Role role = precision::Role::kAdjoint;
};

class TakenFields {
 public:
  explicit TakenFields(const plan::Function& function);
  // The fields that a loop over elements takes and leaves in memory. `rest`: the loop without them.
  std::vector<TakenField> Of(const plan::Statement& each, plan::Statement& rest) const;

 private:
  // The field that holds the numbers of a register after the loop; none: it cannot be told.
  plan::BufferId FieldOf(const plan::Statement& each, plan::Register number) const;

  const plan::Function& function_;
  std::vector<bool> is_true_;  // by register
};

}  // namespace simgrad::sim::compiled
