// Checkpoints beyond the device's share travel to pinned memory and back, in order.
#include "sim/backend/cuda/run/saved_states.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"

namespace simgrad::tests {
namespace {

std::vector<uint8_t> BytesAt(const void* data) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  return {bytes, bytes + 300};
}

// Saves the numbers 0 to 5 from the same place, drops the third at once, and restores the others,
// the last first: what came back.
absl::StatusOr<std::vector<uint8_t>> SaveAndRestore(
    const std::shared_ptr<sim::cuda::Device>& device, int64_t share) {
  auto stream = *device->OpenStream();
  auto other = *device->OpenStream();
  auto live = *device->Allocate(300);
  sim::cuda::SavedStates saved(device, *stream, *other, 300, share);
  std::vector<std::shared_ptr<const sim::cuda::SavedStates::Copy>> copies;
  absl::Status status;
  for (uint8_t k = 0; k < 6 && status.ok(); ++k) {
    status = stream->Fill(live.data(), k, 300);
    const auto copy = saved.Save(live.data());
    status.Update(copy.status());
    if (status.ok() && k != 2) copies.push_back(*copy);
  }
  std::vector<uint8_t> back;
  for (size_t k = copies.size(); k-- > 0 && status.ok();) {
    status = saved.Restore(*copies[k], live.data());
    status.Update(stream->Wait());
    const std::vector<uint8_t> bytes = BytesAt(live.data());
    const bool same = bytes == std::vector<uint8_t>(300, bytes.front());
    back.push_back(same ? bytes.front() : uint8_t{99});
  }
  status.Update(other->Wait());
  status.Update(stream->Wait());
  if (!status.ok()) return status;
  return back;
}

// Saves the numbers 0 to 3 on the device, the second dropped at once, keeps them on the host, saves 4, ends what saved
// them, and restores all by another stream, the last first: what came back.
absl::StatusOr<std::vector<uint8_t>> KeepAndRestore(
    const std::shared_ptr<sim::cuda::Device>& device) {
  std::vector<std::shared_ptr<const sim::cuda::SavedStates::Copy>> copies;
  auto live = *device->Allocate(300);
  {
    auto stream = *device->OpenStream();
    auto other = *device->OpenStream();
    sim::cuda::SavedStates saved(device, *stream, *other, 300, 10'000);
    absl::Status status;
    for (uint8_t k = 0; k < 5 && status.ok(); ++k) {
      if (k == 4) status = saved.KeepOnHost();
      if (status.ok()) status = stream->Fill(live.data(), k, 300);
      const auto copy = saved.Save(live.data());
      status.Update(copy.status());
      if (status.ok() && k != 1) copies.push_back(*copy);
    }
    status.Update(other->Wait());
    status.Update(stream->Wait());
    if (!status.ok()) return status;
  }
  for (const auto& copy : copies) EXPECT_EQ(copy->memory.kind(), sim::cuda::MemoryKind::kPinned);
  EXPECT_EQ(device->Use().memory_used_bytes, live.bytes());
  auto stream = *device->OpenStream();
  auto other = *device->OpenStream();
  const sim::cuda::SavedStates theirs(device, *stream, *other, 300, 10'000);
  std::vector<uint8_t> back;
  for (size_t k = copies.size(); k-- > 0;) {
    absl::Status status = theirs.Restore(*copies[k], live.data());
    status.Update(stream->Wait());
    if (!status.ok()) return status;
    const std::vector<uint8_t> bytes = BytesAt(live.data());
    const bool same = bytes == std::vector<uint8_t>(300, bytes.front());
    back.push_back(same ? bytes.front() : uint8_t{99});
  }
  return back;
}

TEST(SavedStatesTest, CopiesKeptOnTheHostOutliveWhatSavedThem) {
  const std::vector<uint8_t> all = {4, 3, 2, 0};
  const auto counts = std::make_shared<HostShimCounts>();
  const auto back = KeepAndRestore(MakeHostShimDevice({.counts = counts}));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, all);
  for (const int64_t hurried : {-1, 1}) {
    EXPECT_EQ(*KeepAndRestore(MakeHostShimDevice({.hurried_stream = hurried})), all);
  }
  const auto bare = KeepAndRestore(MakeHostShimDevice({.pinned_bytes = 600}));
  EXPECT_TRUE(absl::IsResourceExhausted(bare.status())) << bare.status();
}

// Without room on the host all stay where they are.
TEST(SavedStatesTest, CopiesThatTheHostHasNoRoomForStayOnTheDevice) {
  const auto device = MakeHostShimDevice({.pinned_bytes = 700});
  auto live = *device->Allocate(300);
  auto stream = *device->OpenStream();
  auto other = *device->OpenStream();
  sim::cuda::SavedStates saved(device, *stream, *other, 300, 10'000);
  std::vector<std::shared_ptr<const sim::cuda::SavedStates::Copy>> copies;
  for (uint8_t k = 0; k < 3; ++k) {
    ASSERT_TRUE(stream->Fill(live.data(), k, 300).ok());
    copies.push_back(*saved.Save(live.data()));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(saved.KeepOnHost()));
  for (uint8_t k = 0; k < 3; ++k) {
    EXPECT_EQ(copies[k]->memory.kind(), sim::cuda::MemoryKind::kDevice);
    ASSERT_TRUE(saved.Restore(*copies[k], live.data()).ok() && stream->Wait().ok());
    EXPECT_EQ(BytesAt(live.data()), std::vector<uint8_t>(300, k));
  }
}

struct SavedCase {
  std::string name;
  int64_t memory, share;  // of the device, and of it for copies
};

TEST(SavedStatesTest, CopiesBeyondTheDevicesShareArePinnedAndComeBack) {
  const std::vector<uint8_t> all = {5, 4, 3, 1, 0};
  for (const SavedCase& sizes :
       {SavedCase{"room for all", 10'000, 10'000}, SavedCase{"a share for one", 10'000, 500},
        SavedCase{"no share", 10'000, 0},
        SavedCase{"a device full with one copy and a parcel", 1000, 1000},
        SavedCase{"not even a parcel", 400, 1000}}) {
    const bool pins = sizes.name != "room for all";
    const auto back = SaveAndRestore(
        MakeHostShimDevice({.memory_bytes = sizes.memory, .pinned_bytes = 10'000}), sizes.share);
    EXPECT_TRUE(back.ok() && *back == all) << sizes.name << ": " << back.status();
    const auto bare = SaveAndRestore(
        MakeHostShimDevice({.memory_bytes = sizes.memory, .pinned_bytes = 0}), sizes.share);
    EXPECT_EQ(absl::IsResourceExhausted(bare.status()), pins) << sizes.name << bare.status();
  }
}

TEST(SavedStatesTest, AMissingWaitOnTheWayToTheHostOrBackIsSeen) {
  const auto counts = std::make_shared<HostShimCounts>();
  const std::vector<uint8_t> all = {5, 4, 3, 1, 0};
  ASSERT_EQ(*SaveAndRestore(MakeHostShimDevice({.counts = counts}), 0), all);
  std::string idle;
  for (int64_t k = 0; k < counts->event_waits; ++k) {
    bool caught = false;
    for (const int64_t hurried : {-1, 1}) {
      const auto back =
          SaveAndRestore(MakeHostShimDevice({.skipped_wait = k, .hurried_stream = hurried}), 0);
      caught = caught || !back.ok() || *back != all;
    }
    if (!caught) idle += " " + std::to_string(k);
  }
  // 4 and 5 guard the copy that was dropped. Copies travel in order: behind the first restore, 11,
  // of the last copy, all the others have arrived.
  EXPECT_EQ(counts->event_waits, 16);
  EXPECT_EQ(idle, " 4 5 12 13 14 15");
}

TEST(SavedStatesTest, MemoryOfACopyThatWasDroppedServesTheNext) {
  for (const int64_t share : {0, 1000}) {
    const auto device = MakeHostShimDevice();
    auto stream = *device->OpenStream();
    auto other = *device->OpenStream();
    sim::cuda::SavedStates saved(device, *stream, *other, 300, share);
    auto live = *device->Allocate(300);
    const void* const first = (*saved.Save(live.data()))->memory.data();
    EXPECT_EQ((*saved.Save(live.data()))->memory.data(), first);
    ASSERT_TRUE(stream->Wait().ok());
    ASSERT_TRUE(other->Wait().ok());
  }
}

}  // namespace
}  // namespace simgrad::tests
