// The places of a generated kernel's fields in memory, and their numbers as the host wants them.
//
// Shapes: in memory [element][instance] for a thread per instance, [instance][element] for a block
//   per instance, [steps] outermost of all; on the host always [instance][step][element].
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/backend/cuda/generate.h"
#include "sim/backend/cuda/run/numbers.h"

namespace simgrad::sim::cuda {

// Bytes [offset, offset + bytes) of the allocation that the field belongs to; none of a window.
struct FieldPlace {
  bool travels = true;  // with a checkpoint; else it belongs to the adjoint
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct FieldLayout {
  std::vector<FieldPlace> places;  // by GeneratedSource::fields
  int64_t travelling_bytes = 0;
  int64_t adjoint_bytes = 0;

  static FieldLayout Of(const GeneratedSource& source, int64_t instances, int64_t steps);
};

// Whether a checkpoint holds the field.
bool Travels(FieldKind kind);

// Index into GeneratedSource::fields, -1 where there is no such field.
int FindField(const GeneratedSource& source, FieldKind kind, int32_t index = 0);

// Numbers of one field, read from its bytes.
class FieldNumbers {
 public:
  FieldNumbers(const Field& field, Mapping mapping, int64_t instances, int64_t steps,
               std::vector<uint8_t> bytes);
  // Calls put(place in the host's order, number) as EachNumber does.
  template <class Put>
  void Each(const Put& put) const {
    EachNumber(memory_type_, bytes_.data(), extent_, from_, to_, put);
  }
  void Put(Tensor& tensor) const {
    PutNumbers(memory_type_, bytes_.data(), extent_, from_, to_, tensor);
  }

 private:
  MemoryType memory_type_;
  Extent extent_;
  Strides from_, to_;
  std::vector<uint8_t> bytes_;
};

}  // namespace simgrad::sim::cuda
