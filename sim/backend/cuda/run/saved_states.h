// Copies of what travels with the instances of a run: on the device within a share of its memory,
// beyond that in pinned memory of the host. The device goes on while a copy travels there.
//
// A copy for the host is first parcelled: copied on the device, so that the states may change at
// once. The memory of a dropped copy is kept for the next one, so a copy may be dropped while it is
// still read or travels. A copy may outlive SavedStates, once both streams have been waited for: another one of
// the device can restore it, and its memory goes when it is dropped.
// Errors: those of device.h; RESOURCE_EXHAUSTED only if the host has no memory either.
// Threads: as a Stream; any, for copies that have outlived it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::sim::cuda {

class SavedStates {
 public:
  struct Copy {
    Buffer memory;
    std::unique_ptr<Event> arrived;  // of a pinned copy
  };

  // Copies of `bytes` bytes each; together at most `device_bytes` on the device. `work` is the
  // stream on which the states change.
  SavedStates(std::shared_ptr<Device> device, Stream& work, Stream& copies, int64_t bytes,
              int64_t device_bytes);

  absl::StatusOr<std::shared_ptr<const Copy>> Save(const void* from);
  absl::Status Restore(const Copy& copy, void* to) const;
  // Moves all copies to pinned memory, where those that follow go too. On an error each is where it was.
  absl::Status KeepOnHost();

 private:
  struct Pool {
    std::vector<Copy> on_device, pinned;       // the memory that no copy holds
    std::unordered_set<Copy*> held_on_device;  // by those who saved them
  };

  // Nothing where the device has no room.
  absl::StatusOr<bool> TakeOnDevice(Copy& copy);
  absl::Status TakePinned(Copy& copy);
  absl::Status Parcel(const void* from, Copy& copy);

  std::shared_ptr<Pool> pool_;
  std::shared_ptr<Device> device_;
  Stream& work_;
  Stream& copies_;
  int64_t bytes_;
  int64_t device_room_;
  Buffer parcel_;
  std::unique_ptr<Event> packed_, sent_;  // the parcel is whole; it may be used again
};

}  // namespace simgrad::sim::cuda
