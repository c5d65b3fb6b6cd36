#include "sim/backend/cuda/device.h"

#include <algorithm>

#include "absl/strings/cord.h"

namespace simgrad::sim::cuda {
namespace {

constexpr char kLostPayload[] = "simgrad.sim.device_lost";

}  // namespace

absl::Status DeviceLostError(const std::string& message) {
  absl::Status status = absl::UnavailableError(message);
  status.SetPayload(kLostPayload, absl::Cord());
  return status;
}

bool IsDeviceLost(const absl::Status& status) {
  return status.GetPayload(kLostPayload).has_value();
}

Buffer::Buffer(std::shared_ptr<Device> device, MemoryKind kind, void* data, int64_t bytes)
    : device_(std::move(device)), kind_(kind), data_(data), bytes_(bytes) {}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::move(other.device_)),
      kind_(other.kind_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->Free(data_, kind_);
}

absl::StatusOr<Buffer> Device::Allocate(int64_t bytes, MemoryKind kind) {
  bytes = std::max<int64_t>(bytes, 1);
  const absl::StatusOr<void*> data = AllocateBytes(bytes, kind);
  if (!data.ok()) return data.status();
  return Buffer(shared_from_this(), kind, *data, bytes);
}

}  // namespace simgrad::sim::cuda
