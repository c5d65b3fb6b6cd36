// The state that travels with a group of instances from step to step: the fields of the plan.
//
// Layout: field after field, each [element][lane]; a bool is -1 or 0 in 32 bits. Threads: data.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/backend/compiled/lane_memory.h"
#include "sim/backend/executor.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// The places of a group's fields.
class FieldLayout {
 public:
  FieldLayout(const std::vector<plan::Field>& fields, int lanes);
  int64_t bytes() const { return bytes_; }
  int64_t offset(size_t field) const { return offsets_[field]; }
  int lanes() const { return lanes_; }

 private:
  std::vector<int64_t> offsets_;
  int64_t bytes_ = 0;
  int lanes_;
};

struct GroupState {
  LaneMemory fields;
  // As GroupArgs.
  std::vector<int64_t> health;
  std::vector<uint64_t> signatures;
  LaneMemory last_events;
  std::vector<int64_t> first_events;
};

// One number of a field, read and written as the plan carries it.
double ReadReal(const std::byte* field, plan::Carrier carrier, int64_t i);
void WriteReal(std::byte* field, plan::Carrier carrier, int64_t i, double x);
int64_t ReadInteger(const std::byte* field, plan::Carrier carrier, int64_t i);
void WriteInteger(std::byte* field, plan::Carrier carrier, int64_t i, int64_t n);

}  // namespace simgrad::sim::compiled
