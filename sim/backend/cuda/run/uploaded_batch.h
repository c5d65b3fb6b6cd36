// The batch of a caller in the memory of a device: inputs, instance ids, cotangents, tables.
//
// Errors: those of device.h. Threads: as a Stream.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cuda {

class UploadedBatch {
 public:
  UploadedBatch(std::shared_ptr<Device> device, Stream& stream)
      : device_(std::move(device)), stream_(stream) {}

  // Fills `input`, `number`, `integer`, `instance_id` and `rank` of the arguments.
  absl::Status Upload(const Batch& batch, const GeneratedSource& source, KernelArgs& args);
  // Fills `sent_...`. Frees the cotangents of the last reversal: no kernel may still read them.
  absl::Status UploadCotangents(const Batch& batch, KernelArgs& args);
  // Ascending; KernelArgs::rank counts in them.
  const std::vector<uint64_t>& sorted_ids() const { return sorted_ids_; }

 private:
  absl::StatusOr<void*> Keep(const void* data, int64_t bytes, std::vector<Buffer>& in);
  absl::Status UploadInput(const Batch& batch, size_t input, InputView& view);
  absl::Status UploadIds(const Batch& batch, KernelArgs& args);

  std::shared_ptr<Device> device_;
  Stream& stream_;
  std::vector<Buffer> inputs_;
  std::vector<Buffer> cotangents_;  // of the last reversal
  std::vector<uint64_t> sorted_ids_;
};

}  // namespace simgrad::sim::cuda
