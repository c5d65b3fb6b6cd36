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
  apart_.resize(next_apart_);
  next_apart_ = 0;
  next_chunk_ = 0;
  at_ = nullptr;
  used_ = size_ = total_ = 0;
}

Tape::Chunk Tape::MakeChunk(int64_t bytes) {
  auto* memory =
      static_cast<std::byte*>(::operator new[](static_cast<size_t>(bytes), std::align_val_t{64}));
  return {std::unique_ptr<std::byte[], Aligned>(memory), bytes};
}

void Tape::NextChunk() {
  if (next_chunk_ == chunks_.size()) chunks_.push_back(MakeChunk(chunk_bytes_));
  at_ = chunks_[next_chunk_].bytes.get();
  size_ = chunks_[next_chunk_].size;
  used_ = 0;
  ++next_chunk_;
}

// A run takes the same sizes again and again, so the memory of the last time mostly fits.
std::byte* Tape::TakeApart(int64_t bytes) {
  if (next_apart_ == apart_.size()) apart_.emplace_back();
  Chunk& chunk = apart_[next_apart_++];
  if (chunk.size < bytes || chunk.size > 2 * bytes) {
    chunk = {};
    chunk = MakeChunk(bytes);
  }
  return chunk.bytes.get();
}

}  // namespace simgrad::sim::cpu
