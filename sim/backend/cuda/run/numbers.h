// Numbers of (instance, step, element) of one memory type, their axes in any order.
//
// Cost: one pass over the memory, in tiles of instances. So neither side uses a cache line for a
//   single number, whichever axis is innermost.
// Threads: pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sim/backend/cuda/kernel_abi.h"
#include "sim/tensor.h"

namespace simgrad::sim::cuda {

int64_t MemoryTypeBytes(MemoryType memory_type);

struct Extent {
  int64_t instances = 0, steps = 1, elements = 1;
};

// In numbers, not bytes.
struct Strides {
  int64_t first = 0, instance = 0, step = 0, element = 0;
};

template <class T, class Put>
void EachOf(const uint8_t* bytes, const Extent& extent, const Strides& from, const Strides& to,
            const Put& put) {
  constexpr int64_t kTile = 64;
  for (int64_t tile = 0; tile < extent.instances; tile += kTile) {
    const int64_t end = std::min(tile + kTile, extent.instances);
    for (int64_t t = 0; t < extent.steps; ++t) {
      for (int64_t e = 0; e < extent.elements; ++e) {
        const int64_t source = from.first + t * from.step + e * from.element;
        const int64_t target = to.first + t * to.step + e * to.element;
        for (int64_t i = tile; i < end; ++i) {
          T x;
          std::memcpy(&x, bytes + static_cast<size_t>(source + i * from.instance) * sizeof(T),
                      sizeof(T));
          put(target + i * to.instance, x);
        }
      }
    }
  }
}

// Calls put(place by `to`, number): a float, double, int32_t, uint32_t, int64_t or, for a bool, uint8_t.
template <class Put>
void EachNumber(MemoryType memory_type, const uint8_t* bytes, const Extent& extent,
                const Strides& from, const Strides& to, const Put& put) {
  switch (memory_type) {
    case MemoryType::kF32:
      return EachOf<float>(bytes, extent, from, to, put);
    case MemoryType::kF64:
      return EachOf<double>(bytes, extent, from, to, put);
    case MemoryType::kI32:
      return EachOf<int32_t>(bytes, extent, from, to, put);
    case MemoryType::kU32:
      return EachOf<uint32_t>(bytes, extent, from, to, put);
    case MemoryType::kI64:
      return EachOf<int64_t>(bytes, extent, from, to, put);
    case MemoryType::kBool:
      return EachOf<uint8_t>(bytes, extent, from, to, put);
  }
}

// The same into a tensor, in its own format; NaNs are canonical there.
void PutNumbers(MemoryType memory_type, const uint8_t* bytes, const Extent& extent,
                const Strides& from, const Strides& to, Tensor& tensor);

}  // namespace simgrad::sim::cuda
