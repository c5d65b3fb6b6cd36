// Random words and numbers from counters: Philox4x32-10, keyed by an instance.
//
// Maths: a block of four 32-bit words is a function of a key and a counter (draw, step, iteration, element),
//   each modulo 2^32, so a draw does not depend on what was drawn before. Uniform: the first p bits
//   of w0 2^32 + w1, over 2^p, with p = 53 or the bits of a narrower format: in [0, 1), exact in it.
//   Normal: Box-Muller of two 53-bit uniforms, the first from (w0, w1) in (0, 1], the second from
//   (w2, w3): sqrt(-2 log u) cos(2 pi v) in f64, each operation rounded.
// Errors: none. Threads: pure; host and device. Cost: a block takes 20 multiplications.
// Source: docs/numerics.md section 4; Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy
//   as 1, 2, 3 (SC 2011).
#pragma once

#include "precision/arithmetic.h"
#include "precision/elementary.h"
#include "precision/format.h"
#include "precision/hash.h"
#include "precision/host_device.h"

namespace simgrad::precision {

// w0 2^32 + w1 and w2 2^32 + w3.
struct PhiloxBlock {
  uint64_t first = 0;
  uint64_t second = 0;
};

SIMGRAD_FLAT constexpr PhiloxBlock Philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                          uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0;
    const uint64_t b = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {uint64_t{c0} << 32 | c1, uint64_t{c2} << 32 | c3};
}

SIMGRAD_HD constexpr uint64_t RandomKey(uint64_t seed, uint64_t instance_id) {
  return SplitMix64(seed ^ SplitMix64(instance_id));
}

SIMGRAD_FLAT constexpr PhiloxBlock Draw(uint64_t key, int64_t draw, int64_t step, int64_t iteration,
                                        int64_t element) {
  return Philox(key, static_cast<uint32_t>(draw), static_cast<uint32_t>(step),
                static_cast<uint32_t>(iteration), static_cast<uint32_t>(element));
}

// How many leading bits of the words a uniform number takes.
SIMGRAD_HD constexpr int UniformBits(Format format) { return Traits(format).precision; }

SIMGRAD_FLAT constexpr double UniformOf(uint64_t words, int bits) {
  // 2^-bits, a normal number.
  const double unit = 1.0 / static_cast<double>(int64_t{1} << bits);
  return static_cast<double>(static_cast<int64_t>(words >> (64 - bits))) * unit;
}

// In f64.
SIMGRAD_FLAT inline double NormalOf(const PhiloxBlock& block) {
  constexpr double kTwoPi = 0x1.921fb54442d18p+2;
  const double u = UniformOf(block.first, 53) + 0x1p-53;
  const double v = UniformOf(block.second, 53);
  const double radius = Sqrt(Format::kF64, Mul(Format::kF64, -2.0, Log(u)));
  return Mul(Format::kF64, radius, Cos(Mul(Format::kF64, kTwoPi, v)));
}

}  // namespace simgrad::precision
