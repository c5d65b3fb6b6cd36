#include "sim/backend/cuda/run/saved_states.h"

#include <utility>

namespace simgrad::sim::cuda {
namespace {

absl::Status MakeEvent(Device& device, std::unique_ptr<Event>& event) {
  if (event != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Event>> made = device.MakeEvent();
  if (!made.ok()) return made.status();
  event = *std::move(made);
  return absl::OkStatus();
}

}  // namespace

SavedStates::SavedStates(std::shared_ptr<Device> device, Stream& work, Stream& copies,
                         int64_t bytes, int64_t device_bytes)
    : pool_(std::make_shared<Pool>()),
      device_(std::move(device)),
      work_(work),
      copies_(copies),
      bytes_(bytes),
      device_room_(device_bytes) {}

absl::StatusOr<bool> SavedStates::TakeOnDevice(Copy& copy) {
  if (!pool_->on_device.empty()) {
    copy = std::move(pool_->on_device.back());
    pool_->on_device.pop_back();
    return true;
  }
  if (device_room_ < bytes_) return false;
  absl::StatusOr<Buffer> buffer = device_->Allocate(bytes_);
  if (absl::IsResourceExhausted(buffer.status())) {
    device_room_ = 0;  // others have taken it; not asked for every checkpoint again
    return false;
  }
  if (!buffer.ok()) return buffer.status();
  copy.memory = *std::move(buffer);
  device_room_ -= bytes_;
  return true;
}

absl::Status SavedStates::TakePinned(Copy& copy) {
  if (!pool_->pinned.empty()) {
    copy = std::move(pool_->pinned.back());
    pool_->pinned.pop_back();
    return absl::OkStatus();
  }
  if (absl::Status status = MakeEvent(*device_, copy.arrived); !status.ok()) return status;
  absl::StatusOr<Buffer> buffer = device_->Allocate(bytes_, MemoryKind::kPinned);
  if (!buffer.ok()) return buffer.status();
  copy.memory = *std::move(buffer);
  return absl::OkStatus();
}

absl::Status SavedStates::Parcel(const void* from, Copy& copy) {
  if (parcel_.data() == nullptr) {
    absl::StatusOr<Buffer> parcel = device_->Allocate(bytes_);
    if (parcel.ok()) {
      parcel_ = *std::move(parcel);
    } else if (!absl::IsResourceExhausted(parcel.status())) {
      return parcel.status();
    }
  }
  absl::Status status = MakeEvent(*device_, packed_);
  status.Update(MakeEvent(*device_, sent_));
  if (status.ok() && parcel_.data() == nullptr) {
    // No room for a parcel either: the states wait until they have been copied, and until a copy
    // that had this memory and was dropped is no longer on its way into it.
    status = work_.WaitFor(*copy.arrived);
    if (status.ok()) status = work_.ToPinned(copy.memory.data(), from, bytes_);
    return status.ok() ? work_.Record(*copy.arrived) : status;
  }
  if (status.ok()) status = work_.WaitFor(*sent_);
  if (status.ok()) status = work_.OnDevice(parcel_.data(), from, bytes_);
  if (status.ok()) status = work_.Record(*packed_);
  if (status.ok()) status = copies_.WaitFor(*packed_);
  if (status.ok()) status = copies_.ToPinned(copy.memory.data(), parcel_.data(), bytes_);
  if (status.ok()) status = copies_.Record(*copy.arrived);
  if (status.ok()) status = copies_.Record(*sent_);
  return status;
}

absl::StatusOr<std::shared_ptr<const SavedStates::Copy>> SavedStates::Save(const void* from) {
  std::shared_ptr<Copy> copy(new Copy, [owner = std::weak_ptr<Pool>(pool_)](Copy* dropped) {
    const bool pinned = dropped->memory.kind() == MemoryKind::kPinned;
    if (const std::shared_ptr<Pool> pool = owner.lock()) {
      pool->held_on_device.erase(dropped);
      if (dropped->memory.data() != nullptr) {
        (pinned ? pool->pinned : pool->on_device).push_back(std::move(*dropped));
      }
    }
    delete dropped;
  });
  if (bytes_ == 0) return copy;
  const absl::StatusOr<bool> on_device = TakeOnDevice(*copy);
  absl::Status status = on_device.status();
  if (status.ok() && *on_device) status = work_.OnDevice(copy->memory.data(), from, bytes_);
  if (status.ok() && !*on_device) {
    status = TakePinned(*copy);
    if (status.ok()) status = Parcel(from, *copy);
  }
  if (!status.ok()) return status;
  if (*on_device) pool_->held_on_device.insert(copy.get());
  return copy;
}

absl::Status SavedStates::KeepOnHost() {
  std::vector<std::pair<Copy*, Copy>> moved;
  absl::Status status;
  for (Copy* const copy : pool_->held_on_device) {
    Copy& there = moved.emplace_back(copy, Copy()).second;
    status = TakePinned(there);
    if (status.ok())
      status = work_.WaitFor(*there.arrived);  // a dropped copy may be on its way there
    if (status.ok()) status = work_.ToPinned(there.memory.data(), copy->memory.data(), bytes_);
    if (status.ok()) status = work_.Record(*there.arrived);
    if (!status.ok()) break;
  }
  status.Update(work_.Wait());  // before the memory that is read goes
  if (!status.ok()) return status;
  for (auto& [copy, there] : moved) *copy = std::move(there);
  pool_->held_on_device.clear();
  pool_->on_device.clear();
  device_room_ = 0;
  return absl::OkStatus();
}

absl::Status SavedStates::Restore(const Copy& copy, void* to) const {
  if (bytes_ == 0) return absl::OkStatus();
  if (copy.memory.kind() == MemoryKind::kDevice) {
    return work_.OnDevice(to, copy.memory.data(), bytes_);
  }
  absl::Status status = work_.WaitFor(*copy.arrived);
  return status.ok() ? work_.FromPinned(to, copy.memory.data(), bytes_) : status;
}

}  // namespace simgrad::sim::cuda
