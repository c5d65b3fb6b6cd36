// Parts of device memory on their way to the host, on a stream of copies, while the device goes on.
//
// Errors: those of device.h. Threads: as a Stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::sim::cuda {

class Staging {
 public:
  // Forgets the parts that were sent before; they have arrived.
  void Clear();
  // The number of the part.
  size_t Add(const void* from, int64_t bytes);
  // Sends all parts as soon as what `work` was given until now is done.
  absl::Status Send(Device& device, Stream& work, Stream& copies);
  // Waits until they are here.
  absl::Status Arrive();
  template <class T>
  std::span<const T> Part(size_t number) const {
    const Piece& piece = pieces_[number];
    const auto* const begin = static_cast<const unsigned char*>(pinned_.data()) + piece.offset;
    return {reinterpret_cast<const T*>(begin), static_cast<size_t>(piece.bytes) / sizeof(T)};
  }

 private:
  struct Piece {
    const void* from;
    int64_t offset;
    int64_t bytes;
  };

  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;
  Buffer pinned_;
  std::unique_ptr<Event> written_, arrived_;
};

}  // namespace simgrad::sim::cuda
