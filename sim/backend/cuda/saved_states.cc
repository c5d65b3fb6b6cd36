#include "sim/backend/cuda/saved_states.h"

#include <utility>

namespace simgrad::sim::cuda {

absl::StatusOr<std::shared_ptr<const SavedStates::Copy>> SavedStates::Save(Stream& stream,
                                                                           const void* from) {
  std::shared_ptr<Copy> copy(new Copy, [pool = pool_](Copy* dropped) {
    if (dropped->device.data() != nullptr) pool->free.push_back(std::move(dropped->device));
    delete dropped;
  });
  if (bytes_ == 0) return copy;
  if (!pool_->free.empty()) {
    copy->device = std::move(pool_->free.back());
    pool_->free.pop_back();
  } else {
    absl::StatusOr<Buffer> buffer = device_->Allocate(bytes_);
    if (buffer.ok()) {
      copy->device = std::move(*buffer);
    } else if (!absl::IsResourceExhausted(buffer.status())) {
      return buffer.status();
    }
  }
  absl::Status status;
  if (copy->device.data() != nullptr) {
    status = stream.OnDevice(copy->device.data(), from, bytes_);
  } else {
    copy->host.resize(static_cast<size_t>(bytes_));
    status = stream.ToHost(copy->host.data(), from, bytes_);
  }
  if (!status.ok()) return status;
  return copy;
}

absl::Status SavedStates::Restore(Stream& stream, const Copy& copy, void* to) const {
  if (bytes_ == 0) return absl::OkStatus();
  if (copy.device.data() != nullptr) return stream.OnDevice(to, copy.device.data(), bytes_);
  return stream.ToDevice(to, copy.host.data(), bytes_);
}

}  // namespace simgrad::sim::cuda
