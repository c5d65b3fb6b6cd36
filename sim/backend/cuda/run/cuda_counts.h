// The counts that a forward pass on a device leaves, for a later run that reverses it (Executor::Adopt).
//
// The states that were saved beside them are copies of what travels with the instances: a run reads them where
// its fields are the same and lie the same. They are in pinned memory of the device that made them.
// Threads: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/cuda/device.h"
#include "sim/backend/cuda/generate.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cuda {

class CudaCounts : public ForwardCounts {
 public:
  // `units`: by step, the tape that one instance needs at most, as the adjoint of `program` records.
  CudaCounts(std::shared_ptr<Device> device, std::shared_ptr<const NumericalProgram> program,
             const GeneratedSource& source, std::vector<uint64_t> units);
  int64_t bytes() const override;
  const std::shared_ptr<Device>& device() const { return device_; }
  // `units`, or a bound of them, for the adjoint of `program`, of which `source` is the text. Nothing: its
  // tapes cannot be bounded by these, or its states lie otherwise.
  std::optional<std::vector<uint64_t>> UnitsFor(const NumericalProgram& program,
                                                const GeneratedSource& source) const;

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<const NumericalProgram> program_;
  Mapping mapping_;
  std::vector<Field> travelling_;
  std::vector<uint64_t> units_;
};

}  // namespace simgrad::sim::cuda
