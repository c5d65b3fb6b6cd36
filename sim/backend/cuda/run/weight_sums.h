// Sums over instances of the gradients of params declared `weights`, on the device: what launches
// give to them, entry by entry, and the totals of blocks of ids.
//
// How: a launch of the adjoint writes into windows, one for each input, cleared by Open. Two kernels
//   then sum a window (device/weight_sums.h). Only totals travel to the host, at the end.
// Maths: sim/backend/block_sums.h.
// Errors: those of device.h. Threads: as a Stream.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/block_sums.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cuda {

class WeightSums {
 public:
  // `source` is generated from batch.program.
  WeightSums(Device& device, Stream& stream, const Batch& batch, const GeneratedSource& source);

  size_t inputs() const { return windows_.size(); }
  // The bytes of windows of so many entries.
  int64_t WindowBytes(int64_t entries) const;
  // The bytes of what stays for all launches.
  int64_t TotalBytes() const;

  // Begins a reversal (Run::StartAdjoint).
  absl::Status Start(const Batch& batch, const InstanceWeights& over, double loss_scale);
  // Points the arguments at cleared windows in `memory` (WindowBytes). Entry 0 is of step `first`.
  absl::Status Open(void* memory, int64_t first, int64_t entries, KernelArgs& args);
  // The window of an input, for the kernels that sum it.
  WeightSumsView View(size_t input, const KernelArgs& args) const;
  // Takes the totals to the host.
  absl::Status Take();

  // Complete after Take; null before Start.
  const BlockSums* sums() const { return sums_ ? &*sums_ : nullptr; }

 private:
  struct Window {
    int32_t field = -1;  // GeneratedSource::fields
    int64_t elements = 0;
    // In memory_, of TotalBytes.
    int64_t total = 0, nonzero = 0, extremes = 0;
  };
  struct Order {
    int64_t begin = 0, row = 0, joins = 0, weight = 0;  // in memory_
  };

  absl::Status Upload(const InstanceWeights& over);
  void Place();
  template <class T>
  absl::Status TakeInput(size_t input);
  template <class T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(memory_.data()) + offset);
  }

  Device& device_;
  Stream& stream_;
  const Mapping mapping_;
  const int64_t instances_;
  int64_t most_blocks_ = 0;  // that any choice of instances has
  int64_t number_bytes_ = 4;
  std::vector<Window> windows_;  // as BlockSums::wanted()
  Order order_;
  int64_t bytes_ = 0;
  Buffer memory_;
  std::optional<BlockSums> sums_;
  int64_t entries_ = 0;
};

}  // namespace simgrad::sim::cuda
