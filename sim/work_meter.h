// Lets a run end inside a step: executors report their work, and the caller is asked now and then.
//
// A step may hold loops of many iterations, and one operation may have millions of elements, so
// asking between steps is not enough. At most kPiece element-operations are reported at a time,
// before they run. So at most 2^18 of them lie between two questions: a millisecond for most
// operations, 7 ms for elementary functions.
// Cost: an addition and a comparison per piece. Threads: one meter, one thread; `stop` is called
//   from all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace simgrad::sim {

// Thrown when work is asked to end; UntilStopped makes a status of it. It never leaves an executor: the
// methods of Run return CANCELLED, and the run cannot be used any further.
struct StopRequested {
  static absl::Status Status() { return absl::CancelledError("the run was asked to stop"); }
};

class WorkMeter {
 public:
  // Whether the run should end; empty: it never should.
  using StopCallback = std::function<bool()>;
  // The most element-operations that are reported at once.
  static constexpr int64_t kPiece = int64_t{1} << 17;

  WorkMeter() = default;
  explicit WorkMeter(StopCallback stop) : stop_(std::move(stop)) {}

  // Call it before the work is done. Throws StopRequested.
  void Add(int64_t element_operations) {
    done_ += element_operations;
    if (done_ >= kPiece) Look();
  }

 private:
  void Look() {
    done_ = 0;
    if (stop_ && stop_()) throw StopRequested();
  }

  StopCallback stop_;
  int64_t done_ = 0;
};

// Runs `work` and says how it ended.
template <class Work>
absl::Status UntilStopped(const Work& work) {
  try {
    work();
  } catch (const StopRequested&) {
    return StopRequested::Status();
  }
  return absl::OkStatus();
}

// Calls f(begin, end) for the parts of [0, count), each of `cost` element-operations per unit.
template <class F>
void InPieces(WorkMeter& meter, int64_t count, int64_t cost, const F& f) {
  if (count * cost <= WorkMeter::kPiece) {
    meter.Add(count * cost);
    if (count > 0) f(int64_t{0}, count);
    return;
  }
  const int64_t most = std::max<int64_t>(1, WorkMeter::kPiece / std::max<int64_t>(cost, 1));
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t end = std::min(count, begin + most);
    meter.Add((end - begin) * cost);
    f(begin, end);
  }
}

// The work of converting one number on its way into a run or out of it, in element-operations.
inline constexpr int64_t kConversionWork = 8;

// Bytes that are copied or zeroed, in the time of one element-operation.
inline constexpr int64_t kBytesPerOperation = 8;

inline void CopyInPieces(WorkMeter& meter, std::byte* to, const std::byte* from, int64_t bytes) {
  InPieces(meter, (bytes + kBytesPerOperation - 1) / kBytesPerOperation, 1,
           [&](int64_t begin, int64_t end) {
             const int64_t first = begin * kBytesPerOperation;
             const int64_t last = std::min(bytes, end * kBytesPerOperation);
             std::memcpy(to + first, from + first, static_cast<size_t>(last - first));
           });
}

// std::sort; a range that was left in the middle is in no order.
template <class Iterator, class Less>
void SortInPieces(WorkMeter& meter, Iterator first, Iterator last, const Less& less) {
  constexpr int64_t kComparison = 2;  // with the moves that it causes
  std::sort(first, last, [&](const auto& a, const auto& b) {
    meter.Add(kComparison);
    return less(a, b);
  });
}

// resize(n) of an empty vector: its memory is taken at once, and touched in pieces.
template <class Vector>
void ResizeInPieces(WorkMeter& meter, Vector& vector, size_t n) {
  constexpr int64_t kBytes = static_cast<int64_t>(sizeof(typename Vector::value_type));
  vector.reserve(n);
  InPieces(meter, static_cast<int64_t>(n), std::max<int64_t>(1, kBytes / kBytesPerOperation),
           [&](int64_t, int64_t end) { vector.resize(static_cast<size_t>(end)); });
}

}  // namespace simgrad::sim
