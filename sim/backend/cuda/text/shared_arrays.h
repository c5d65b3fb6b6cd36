// Places the arrays that the threads of a block share in the workspace of the block.
//
// Memory of an array is free again behind the block of statements that declares it; a later one may
// lie there.
// Units: bytes. Errors: none. Cost: linear. Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/backend/cuda/generate.h"
#include "sim/backend/cuda/text/element_owners.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::cuda {

class SharedArrays {
 public:
  // With a thread per instance no array is placed.
  SharedArrays(const plan::Function& function, const ElementOwners& owners, Mapping mapping);

  // Bytes before it in the workspace; -1: each thread has its own.
  int64_t OffsetOf(plan::BufferId id) const { return places_[static_cast<size_t>(id)].begin; }
  bool IsPlaced(plan::BufferId id) const { return OffsetOf(id) >= 0; }
  // Whether two placed arrays have memory in common.
  bool Overlap(plan::BufferId a, plan::BufferId b) const;
  // The bytes that all take.
  int64_t bytes() const { return bytes_; }

 private:
  // Bytes [begin, end) of the workspace.
  struct Place {
    int64_t begin = -1;
    int64_t end = -1;
  };
  void PlaceIn(const std::vector<plan::Statement>& statements, const plan::Function& function,
               const ElementOwners& owners, int64_t used);

  std::vector<Place> places_;  // by buffer
  int64_t bytes_ = 0;
};

}  // namespace simgrad::sim::cuda
