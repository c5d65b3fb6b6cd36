// Compiled for the processor that builds it (-march=native): a yardstick, not a product.
#include "tests/benchmark/handwritten_ball.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "precision/hash.h"

namespace simgrad::yardstick {
namespace {

// A register of the processor; GCC's vector extension writes its instructions.
#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
using Reals = float __attribute__((vector_size(kBytes)));
using Integers = int32_t __attribute__((vector_size(kBytes)));
constexpr int kLanes = kBytes / 4;
constexpr int kVectors = 4;  // side by side: while one waits for a result, the others compute
constexpr int kGroup = kVectors * kLanes;
static_assert(64 % kGroup == 0);

// A bit for each lane of the mask.
uint32_t LanesOf(Integers mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask));
#elif defined(__AVX__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#else
  uint32_t lanes = 0;
  for (int i = 0; i < kLanes; ++i) lanes |= (mask[i] != 0 ? 1u : 0u) << i;
  return lanes;
#endif
}

int64_t SumOf(Integers counts) {
  int64_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += counts[i];
  return sum;
}

float LeastOf(Reals values) {
  float least = values[0];
  for (int i = 1; i < kLanes; ++i) least = std::min(least, values[i]);
  return least;
}

Integers BitsOf(Reals x) { return reinterpret_cast<Integers>(x); }
Reals RealsOf(Integers x) { return reinterpret_cast<Reals>(x); }
Reals Magnitude(Reals x) { return RealsOf(BitsOf(x) & 0x7fffffff); }

// a < b ? a : b, and a > b ? a : b, as one instruction.
#if defined(__AVX512F__)
Reals Least(Reals a, Reals b) { return _mm512_min_ps(a, b); }
Reals Largest(Reals a, Reals b) { return _mm512_max_ps(a, b); }
#elif defined(__AVX__)
Reals Least(Reals a, Reals b) { return _mm256_min_ps(a, b); }
Reals Largest(Reals a, Reals b) { return _mm256_max_ps(a, b); }
#else
Reals Least(Reals a, Reals b) { return a < b ? a : b; }
Reals Largest(Reals a, Reals b) { return a > b ? a : b; }
#endif

// x / 2^(e - 23) for 2^e <= magnitude < 2^(e + 1): normal numbers alone.
Reals InUlps(Reals x, Reals magnitude) {
  return x * RealsOf(0x7f000000 - (BitsOf(magnitude) & 0x7f800000)) * 0x1p23f;
}

// The bucket of diagnostics.h for magnitudes in ulps: 0 for 0, else 1 + ceil(log2), at least 1.
Integers BucketOf(Reals ulps) {
  const Integers bucket = ((BitsOf(ulps) - 1) >> 23) - 125;
  return (ulps == 0.0f) ? Integers{} : (bucket < 1 ? Integers{} + 1 : bucket);
}

constexpr float kNearUlps = 8.0f;
constexpr uint64_t kProjection = precision::Fnv1a64("projection");
constexpr uint64_t kContact = precision::Fnv1a64("contact");

// The records while they are made. A ball above the floor is the usual case: its loop ends at once
// at p = 0, so it is counted as what the others leave.
class Recorder {
 public:
  // What the lanes of all groups have seen of one step.
  struct Step {
    Reals margin = Reals{} + std::numeric_limits<float>::infinity();
    Reals ulps = margin, contact_margin = margin, contact_ulps = margin;
    Integers near{}, near_last{}, contacts{}, changes{};
  };

  Recorder(const Ball& ball, int64_t instances, int64_t steps)
      : tol_(Reals{} + ball.tol), seen_(steps), hashes_(steps) {
    records_.steps.resize(steps);
    uint64_t above_floor = 0;
    for (int64_t t = 0; t < steps; ++t) {
      uint64_t hashes[kMaxIter + 1];
      for (uint64_t n = 0; n <= kMaxIter; ++n) {
        hashes[n] = precision::DecisionHash(kProjection, t, 0, 0, precision::LoopOutcome(n, 0));
        hashes_[t][n] = hashes[n] - hashes[0];
      }
      above_floor += hashes[0];
    }
    records_.signatures.assign(instances, above_floor);
  }
  void StartGroup(int64_t first) {
    mine_ = &records_.signatures[first];
    for (Integers& last : last_) last = Integers{};
  }
  Step StartStep(int64_t t) const { return seen_[t]; }
  void EndStep(int64_t t, const Step& step) { seen_[t] = step; }

  void Contact(Step& step, int64_t t, int j, Integers contact, Reals y, Reals pushed,
               Reals y_free) {
    const Reals margin = Magnitude(y_free);
    const Reals largest = Largest(margin, Largest(Magnitude(y), Magnitude(pushed)));
    step.contact_margin = Least(step.contact_margin, margin);
    step.contact_ulps = Least(step.contact_ulps, InUlps(margin, largest));
    step.contacts -= contact;
    const Integers changed = contact ^ last_[j];
    last_[j] = contact;
    step.changes -= changed;
    for (uint32_t lanes = LanesOf(changed); lanes != 0; lanes &= lanes - 1) {
      const int i = std::countr_zero(lanes);
      mine_[j * kLanes + i] += precision::DecisionHash(kContact, t, 0, 0, contact[i] != 0);
    }
  }
  // A test, which counts for the lanes that are active.
  void Test(Step& step, Reals p, Integers active) const {
    const Reals margin = Magnitude(p - tol_);
    const Reals ulps = InUlps(margin, Largest(p, tol_));
    // A lane that has ended shows its last test again, which changes no minimum.
    step.margin = Least(step.margin, margin);
    step.ulps = Least(step.ulps, ulps);
    step.near -= active & (ulps <= kNearUlps);
  }
  // The loop of vector j has ended with the value p in its last tests.
  void End(Step& step, int64_t t, int j, Reals p, Integers count) {
    const Reals ulps = InUlps(Magnitude(p - tol_), tol_);
    step.near_last -= ulps <= kNearUlps;
    const uint32_t below = LanesOf(p > 0.0f);
    if (below == 0) return;
    const Integers kind = count * kBuckets + BucketOf(ulps);
    Record& record = records_.steps[t];
    // Balls at rest are of a few kinds, which are counted together.
    for (uint32_t lanes = below; lanes != 0;) {
      const int32_t one = kind[std::countr_zero(lanes)];
      const uint32_t same = LanesOf(kind == one) & lanes;
      const auto n = static_cast<uint32_t>(std::popcount(same));
      record.runs[one / kBuckets] += n;
      record.histogram[one % kBuckets] += n;
      lanes &= ~same;
    }
    int32_t counts[kLanes];
    uint64_t hashes[kLanes];
    std::memcpy(counts, &count, sizeof counts);
    for (int i = 0; i < kLanes; ++i) hashes[i] = hashes_[t][counts[i]];
    for (int i = 0; i < kLanes; ++i) mine_[j * kLanes + i] += hashes[i];
  }
  Records Take() {
    const Integers above_floor = BucketOf(InUlps(tol_, tol_));
    for (size_t t = 0; t < seen_.size(); ++t) {
      const Step& step = seen_[t];
      Record& record = records_.steps[t];
      record.near_stopped = static_cast<uint32_t>(SumOf(step.near_last));
      record.near_continued = static_cast<uint32_t>(SumOf(step.near)) - record.near_stopped;
      record.projection = {LeastOf(step.margin), LeastOf(step.ulps)};
      record.contact = {LeastOf(step.contact_margin), LeastOf(step.contact_ulps)};
      record.contacts = static_cast<uint32_t>(SumOf(step.contacts));
      record.changes = static_cast<uint32_t>(SumOf(step.changes));
      auto left = static_cast<uint32_t>(records_.signatures.size());
      for (const uint32_t n : record.runs) left -= n;
      record.runs[0] += left;
      record.histogram[above_floor[0]] += left;
    }
    return std::move(records_);
  }

 private:
  const Reals tol_;
  Records records_;
  std::vector<Step> seen_;
  std::vector<std::array<uint64_t, kMaxIter + 1>> hashes_;  // by iterations, less that of none
  uint64_t* mine_ = nullptr;
  Integers last_[kVectors] = {};
};

class Nothing {
 public:
  struct Step {};
  void StartGroup(int64_t) {}
  Step StartStep(int64_t) const { return {}; }
  void EndStep(int64_t, const Step&) {}
  void Contact(Step&, int64_t, int, Integers, Reals, Reals, Reals) {}
  void Test(Step&, Reals, Integers) const {}
  void End(Step&, int64_t, int, Reals, Integers) {}
};

template <class Recording>
int64_t Run(const Ball& ball, float* y_out, float* v_out, int64_t instances, int64_t steps,
            Recording& recording) {
  const Reals zero = {};
  const Reals tol = zero + ball.tol;
  const Reals fall = ball.h * (zero - ball.g);
  const float gain = ball.alpha * ball.k;
  int64_t iterations = 0;
  for (int64_t first = 0; first < instances; first += kGroup) {
    Reals y[kVectors], v[kVectors];
    Integers total = {};
    std::memcpy(y, y_out + first, sizeof y);
    std::memcpy(v, v_out + first, sizeof v);
    recording.StartGroup(first);
    for (int64_t t = 0; t < steps; ++t) {
      typename Recording::Step step = recording.StartStep(t);
      Integers active[kVectors], count[kVectors];
      for (int j = 0; j < kVectors; ++j) {
        const Reals v_free = v[j] + fall;
        const Reals pushed = ball.h * v_free;
        const Reals y_free = y[j] + pushed;
        const Integers contact = y_free < zero;
        recording.Contact(step, t, j, contact, y[j], pushed, y_free);
        y[j] = y_free;
        v[j] = contact ? -ball.restitution * Least(v_free, zero) : v_free;
        active[j] = ~Integers{};
        count[j] = Integers{};
      }
      uint32_t any = 1;
      for (int it = 0; it <= kMaxIter && any != 0; ++it) {
        any = 0;
        for (int j = 0; j < kVectors; ++j) {
          const Reals p = Largest(-y[j], zero);
          recording.Test(step, p, active[j]);
          if (it == kMaxIter) continue;
          active[j] &= p >= tol;
          y[j] = active[j] ? y[j] + gain * p : y[j];
          count[j] -= active[j];
          any |= LanesOf(active[j]);
        }
      }
      for (int j = 0; j < kVectors; ++j) {
        recording.End(step, t, j, Largest(-y[j], zero), count[j]);
        total += count[j];
      }
      recording.EndStep(t, step);
    }
    iterations += SumOf(total);
    std::memcpy(y_out + first, y, sizeof y);
    std::memcpy(v_out + first, v, sizeof v);
  }
  return iterations;
}

}  // namespace

int64_t RunHandwritten(const Ball& ball, float* y, float* v, int64_t instances, int64_t steps) {
  Nothing nothing;
  return Run(ball, y, v, instances, steps, nothing);
}

Records RecordHandwritten(const Ball& ball, float* y, float* v, int64_t instances, int64_t steps) {
  Recorder recorder(ball, instances, steps);
  Run(ball, y, v, instances, steps, recorder);
  return recorder.Take();
}

}  // namespace simgrad::yardstick
