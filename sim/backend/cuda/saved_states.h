// Copies of what travels with the instances of a run: on the device while it has room, else on the
// host.
//
// Memory is kept for the next copy when one is dropped: it is used in the order of one stream, so a
// copy may be dropped while the device still reads it.
// Errors: those of device.h. Threads: as a Stream.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::sim::cuda {

class SavedStates {
 public:
  struct Copy {
    Buffer device;  // empty: it lies on the host
    std::vector<uint8_t> host;
  };

  SavedStates(std::shared_ptr<Device> device, int64_t bytes)
      : pool_(std::make_shared<Pool>()), device_(std::move(device)), bytes_(bytes) {}

  absl::StatusOr<std::shared_ptr<const Copy>> Save(Stream& stream, const void* from);
  absl::Status Restore(Stream& stream, const Copy& copy, void* to) const;

 private:
  // Buffers that no copy holds. Outlives the copies, wherever they go.
  struct Pool {
    std::vector<Buffer> free;
  };

  std::shared_ptr<Pool> pool_;
  std::shared_ptr<Device> device_;
  int64_t bytes_;
};

}  // namespace simgrad::sim::cuda
