// What the forward pass leaves for the adjoint: frames of recorded values in one arena.
//
// A frame is one execution of a region. It points to the values that the adjoint reads, each in the
// layout of lanes in which it was computed. Nothing in the arena has a destructor; Reset frees
// everything at once.
// Threads: one tape, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace simgrad::sim::cpu {

struct RunRecord;

struct LoopRecord {
  RunRecord* runs = nullptr;
};

struct Frame {
  std::byte** values = nullptr;  // in the order of RegionPlan::taped
  LoopRecord* loops = nullptr;   // by WhilePlan::record
};

// The lanes of an iteration: position j of it is position from[j] of the layout around the loop.
struct LaneLayout {
  int64_t width = 0;
  const int32_t* from = nullptr;  // null: the same layout
};

// One region of a loop, iteration by iteration.
struct IterationRecord {
  Frame* frame = nullptr;
  LaneLayout layout;
};

// Entries that grow in the arena.
struct IterationList {
  IterationRecord* entries = nullptr;
  int64_t size = 0;
  int64_t capacity = 0;
};

// One run of a loop, over all lanes; a mapped loop has one per element.
struct RunRecord {
  IterationList tests;
  IterationList bodies;
  int32_t* iterations = nullptr;  // unless alike, by lane around the loop; -1: it did not run
  int32_t last = -1;              // the most of these
  bool alike = false;             // every lane has as many
};

class Tape {
 public:
  explicit Tape(int64_t chunk_bytes = kChunkBytes) : chunk_bytes_(chunk_bytes) {}

  // Aligned to a cache line.
  std::byte* Take(int64_t bytes) {
    bytes = (bytes + 63) & ~int64_t{63};
    total_ += bytes;
    if (used_ + bytes > size_) {
      if (bytes > chunk_bytes_ / kPartOfChunk) return TakeApart(bytes);
      NextChunk();
    }
    std::byte* taken = at_ + used_;
    used_ += bytes;
    return taken;
  }
  template <class T>
  T* TakeArray(int64_t n) {
    T* first = reinterpret_cast<T*>(Take(n * static_cast<int64_t>(sizeof(T))));
    for (int64_t k = 0; k < n; ++k) new (first + k) T{};
    return first;
  }
  // With its values and loops behind it: mostly one cache line, which is what reading it back waits
  // for.
  Frame* TakeFrame(int64_t values, int64_t loops);
  // In parts: an entry that is put together first would be waited for when it is copied.
  void Append(IterationList& list, Frame* frame, int64_t width, const int32_t* from) {
    if (list.size == list.capacity) Grow(list);
    IterationRecord& entry = list.entries[list.size++];
    entry.frame = frame;
    entry.layout.width = width;
    entry.layout.from = from;
  }
  void Reset();
  int64_t bytes() const { return total_; }
  // Bound of the memory behind `bytes` that were taken: a chunk is left with a rest too small for
  // what comes next, and the last one is begun.
  static int64_t MemoryOf(int64_t bytes) {
    return bytes + bytes / (kPartOfChunk - 1) + kChunkBytes;
  }
  static constexpr int64_t kChunkBytes = int64_t{1} << 20;

 private:
  struct Aligned {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  struct Chunk {
    std::unique_ptr<std::byte[], Aligned> bytes;
    int64_t size = 0;
  };
  // What is larger than this part of a chunk gets memory of its own where no room is left.
  static constexpr int64_t kPartOfChunk = 8;
  static Chunk MakeChunk(int64_t bytes);
  void NextChunk();
  std::byte* TakeApart(int64_t bytes);
  void Grow(IterationList& list);

  int64_t chunk_bytes_;
  std::vector<Chunk> chunks_;
  size_t next_chunk_ = 0;
  std::vector<Chunk> apart_;  // in the order in which they are taken
  size_t next_apart_ = 0;
  std::byte* at_ = nullptr;
  int64_t used_ = 0;
  int64_t size_ = 0;
  int64_t total_ = 0;
};

}  // namespace simgrad::sim::cpu
