#include "sim/backend/cuda/run/staging.h"

#include <utility>

namespace simgrad::sim::cuda {
namespace {

// The alignment of a part: numbers of every type are aligned.
constexpr int64_t kAlignment = 16;

}  // namespace

void Staging::Clear() {
  pieces_.clear();
  bytes_ = 0;
}

size_t Staging::Add(const void* from, int64_t bytes) {
  pieces_.push_back({from, bytes_, bytes});
  bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return pieces_.size() - 1;
}

absl::Status Staging::Send(Device& device, Stream& work, Stream& copies) {
  if (bytes_ == 0) return absl::OkStatus();
  for (std::unique_ptr<Event>* event : {&written_, &arrived_}) {
    if (*event != nullptr) continue;
    absl::StatusOr<std::unique_ptr<Event>> made = device.MakeEvent();
    if (!made.ok()) return made.status();
    *event = *std::move(made);
  }
  if (pinned_.data() == nullptr || pinned_.bytes() < bytes_) {
    pinned_ = Buffer();
    absl::StatusOr<Buffer> larger = device.Allocate(bytes_, MemoryKind::kPinned);
    if (!larger.ok()) return larger.status();
    pinned_ = *std::move(larger);
  }
  absl::Status status = work.Record(*written_);
  if (status.ok()) status = copies.WaitFor(*written_);
  for (const Piece& piece : pieces_) {
    void* const to = static_cast<unsigned char*>(pinned_.data()) + piece.offset;
    if (status.ok()) status = copies.ToPinned(to, piece.from, piece.bytes);
  }
  if (status.ok()) status = copies.Record(*arrived_);
  return status;
}

absl::Status Staging::Arrive() { return bytes_ == 0 ? absl::OkStatus() : arrived_->Wait(); }

}  // namespace simgrad::sim::cuda
