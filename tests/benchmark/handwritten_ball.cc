// Compiled for the processor that builds it (-march=native): a yardstick, not a product.
#include "tests/benchmark/handwritten_ball.h"

#include <cstring>

namespace simgrad::yardstick {
namespace {

// Sixteen balls; GCC's vector extension maps it to what the processor has.
using Reals = float __attribute__((vector_size(64)));
using Masks = int32_t __attribute__((vector_size(64)));

bool Any(Masks mask) {
  uint64_t words[8];
  std::memcpy(words, &mask, sizeof words);
  uint64_t any = 0;
  for (uint64_t word : words) any |= word;
  return any != 0;
}

int64_t SumOf(Masks counts) {
  int64_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += counts[i];
  return sum;
}

}  // namespace

int64_t RunHandwritten(const Ball& ball, float* y_out, float* v_out, int64_t instances,
                       int64_t steps) {
  const Reals zero = {};
  const Reals a = zero - ball.g;
  const Reals tol = zero + ball.tol;
  const float gain = ball.alpha * ball.k;
  int64_t iterations = 0;
  for (int64_t first = 0; first < instances; first += 16) {
    Reals y, v;
    std::memcpy(&y, y_out + first, sizeof y);
    std::memcpy(&v, v_out + first, sizeof v);
    Masks count = {};
    for (int64_t t = 0; t < steps; ++t) {
      const Reals v_free = v + ball.h * a;
      y = y + ball.h * v_free;
      const Masks contact = y < zero;
      Masks active = ~Masks{};
      for (int it = 0;; ++it) {
        const Reals p = -y > zero ? -y : zero;
        active &= ~(p < tol);
        if (it == ball.max_iter || !Any(active)) break;
        y = active ? y + gain * p : y;
        count -= active;
      }
      const Reals falling = v_free < zero ? v_free : zero;
      v = contact ? -ball.restitution * falling : v_free;
    }
    iterations += SumOf(count);
    std::memcpy(y_out + first, &y, sizeof y);
    std::memcpy(v_out + first, &v, sizeof v);
  }
  return iterations;
}

}  // namespace simgrad::yardstick
