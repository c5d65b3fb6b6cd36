#include "tests/sim/backend/cuda/host_shim/late_stream.h"

#include <cstring>
#include <utility>
#include <vector>

namespace simgrad::tests {
namespace {

LateWork::Item CopyOf(void* to, const void* from, int64_t bytes) {
  return [=] {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  };
}

}  // namespace

absl::Status LateWork::DoUntil(int64_t count) {
  while (done_ < count && failed_.ok()) {
    const Item item = std::move(items_.front());
    items_.pop_front();
    failed_ = item();
    ++done_;
  }
  return failed_;
}

absl::Status LateEvent::Wait() {
  return work == nullptr || waits_->Skips() ? absl::OkStatus() : work->DoUntil(place);
}

absl::Status LateStream::ToDevice(void* to, const void* from, int64_t bytes) {
  const auto* const begin = static_cast<const uint8_t*>(from);
  std::vector<uint8_t> held(begin, begin + bytes);
  return Later([to, held = std::move(held)] {
    if (!held.empty()) std::memcpy(to, held.data(), held.size());
    return absl::OkStatus();
  });
}

absl::Status LateStream::FromPinned(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && !memory_->IsPinned(from)) {
    return absl::InternalError("a copy that nobody waits for comes from memory that is not pinned");
  }
  return Later(CopyOf(to, from, bytes));
}

absl::Status LateStream::ToHost(void* to, const void* from, int64_t bytes) {
  Later(CopyOf(to, from, bytes)).IgnoreError();
  return Wait();
}

absl::Status LateStream::ToPinned(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && !memory_->IsPinned(to)) {
    return absl::InternalError("a copy that nobody waits for goes to memory that is not pinned");
  }
  return Later(CopyOf(to, from, bytes));
}

absl::Status LateStream::OnDevice(void* to, const void* from, int64_t bytes) {
  return Later(CopyOf(to, from, bytes));
}

absl::Status LateStream::Fill(void* to, uint8_t byte, int64_t bytes) {
  return Later([=] {
    std::memset(to, byte, static_cast<size_t>(bytes));
    return absl::OkStatus();
  });
}

absl::Status LateStream::Record(sim::cuda::Event& event) {
  auto& late = static_cast<LateEvent&>(event);
  late.work = work_;
  late.place = work_->given();
  return absl::OkStatus();
}

absl::Status LateStream::WaitFor(sim::cuda::Event& event) {
  const auto& late = static_cast<const LateEvent&>(event);
  if (late.work == nullptr || waits_->Skips()) return absl::OkStatus();
  return Later([work = late.work, place = late.place] { return work->DoUntil(place); });
}

}  // namespace simgrad::tests
