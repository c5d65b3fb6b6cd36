#include "sim/backend/cpu/tape.h"

#include <algorithm>
#include <new>

namespace simgrad::sim::cpu {

Frame* Tape::TakeFrame(int64_t values, int64_t loops) {
  const int64_t pointers = 2 + values + loops;
  static_assert(sizeof(Frame) == 2 * sizeof(void*) && sizeof(LoopRecord) == sizeof(void*));
  std::byte* const at = Take(pointers * static_cast<int64_t>(sizeof(void*)));
  std::byte** const first = reinterpret_cast<std::byte**>(at + sizeof(Frame));
  std::fill_n(first, values, nullptr);
  LoopRecord* const records = reinterpret_cast<LoopRecord*>(first + values);
  std::fill_n(records, loops, LoopRecord{});
  return new (at) Frame{first, records};
}

void Tape::Grow(IterationList& list) {
  const int64_t capacity = std::max<int64_t>(8, 2 * list.capacity);
  IterationRecord* entries = TakeArray<IterationRecord>(capacity);
  std::copy_n(list.entries, list.size, entries);
  list.entries = entries;
  list.capacity = capacity;
}

void Tape::Reset() {
  next_chunk_ = 0;
  at_ = nullptr;
  used_ = size_ = total_ = 0;
}

void Tape::NextChunk(int64_t bytes) {
  // A chunk that is too small stays unused until the next Reset.
  while (next_chunk_ < chunks_.size() && chunks_[next_chunk_].size < bytes) ++next_chunk_;
  if (next_chunk_ == chunks_.size()) {
    const int64_t size = std::max(bytes, chunk_bytes_);
    auto* memory =
        static_cast<std::byte*>(::operator new[](static_cast<size_t>(size), std::align_val_t{64}));
    chunks_.push_back({std::unique_ptr<std::byte[], Aligned>(memory), size});
  }
  at_ = chunks_[next_chunk_].bytes.get();
  size_ = chunks_[next_chunk_].size;
  used_ = 0;
  ++next_chunk_;
}

}  // namespace simgrad::sim::cpu
