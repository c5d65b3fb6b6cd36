#include "tests/benchmark/hand_written_ball.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace simgrad::yardstick {
namespace {

constexpr float kStep = 0.01f;
constexpr float kTolerance = 1e-4f;
constexpr float kGain = 0.5f * 1.0f;
constexpr float kRestitution = 0.8f;
constexpr int kMaxIterations = 25;

#if defined(__x86_64__)

// Four groups at a time hide the latency of the arithmetic.
constexpr int kGroups = 4;

__attribute__((target("avx512f,avx512dq,avx512vl"))) void RunAvx512(float* y_at, float* v_at,
                                                                   int64_t n, int64_t steps) {
  const __m512 zero = _mm512_setzero_ps();
  const __m512 step = _mm512_set1_ps(kStep);
  const __m512 fall = _mm512_set1_ps(kStep * (0.0f - 9.81f));
  const __m512 tolerance = _mm512_set1_ps(kTolerance);
  const __m512 gain = _mm512_set1_ps(kGain);
  const __m512 bounce = _mm512_set1_ps(-kRestitution);
  for (int64_t i = 0; i < n; i += 16 * kGroups) {
    __m512 y[kGroups], v[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      y[g] = _mm512_loadu_ps(y_at + i + 16 * g);
      v[g] = _mm512_loadu_ps(v_at + i + 16 * g);
    }
    for (int64_t t = 0; t < steps; ++t) {
      __mmask16 contact[kGroups], open[kGroups];
      uint32_t any = 0;
      for (int g = 0; g < kGroups; ++g) {
        v[g] = _mm512_add_ps(v[g], fall);
        y[g] = _mm512_add_ps(y[g], _mm512_mul_ps(step, v[g]));
        contact[g] = _mm512_cmp_ps_mask(y[g], zero, _CMP_LT_OQ);
        const __m512 p = _mm512_max_ps(_mm512_sub_ps(zero, y[g]), zero);
        open[g] = _mm512_cmp_ps_mask(p, tolerance, _CMP_NLT_UQ);
        any |= open[g];
      }
      if (any != 0) {
        for (int g = 0; g < kGroups; ++g) {
          for (int it = 0; open[g] != 0 && it < kMaxIterations; ++it) {
            const __m512 p = _mm512_max_ps(_mm512_sub_ps(zero, y[g]), zero);
            y[g] = _mm512_mask_add_ps(y[g], open[g], y[g], _mm512_mul_ps(gain, p));
            const __m512 left = _mm512_max_ps(_mm512_sub_ps(zero, y[g]), zero);
            open[g] = _mm512_mask_cmp_ps_mask(open[g], left, tolerance, _CMP_NLT_UQ);
          }
        }
      }
      for (int g = 0; g < kGroups; ++g) {
        v[g] = _mm512_mask_mul_ps(v[g], contact[g], bounce, _mm512_min_ps(v[g], zero));
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      _mm512_storeu_ps(y_at + i + 16 * g, y[g]);
      _mm512_storeu_ps(v_at + i + 16 * g, v[g]);
    }
  }
}

__attribute__((target("avx2"))) void RunAvx2(float* y_at, float* v_at, int64_t n, int64_t steps) {
  const __m256 zero = _mm256_setzero_ps();
  const __m256 step = _mm256_set1_ps(kStep);
  const __m256 fall = _mm256_set1_ps(kStep * (0.0f - 9.81f));
  const __m256 tolerance = _mm256_set1_ps(kTolerance);
  const __m256 gain = _mm256_set1_ps(kGain);
  const __m256 bounce = _mm256_set1_ps(-kRestitution);
  for (int64_t i = 0; i < n; i += 8 * kGroups) {
    __m256 y[kGroups], v[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      y[g] = _mm256_loadu_ps(y_at + i + 8 * g);
      v[g] = _mm256_loadu_ps(v_at + i + 8 * g);
    }
    for (int64_t t = 0; t < steps; ++t) {
      for (int g = 0; g < kGroups; ++g) {
        v[g] = _mm256_add_ps(v[g], fall);
        y[g] = _mm256_add_ps(y[g], _mm256_mul_ps(step, v[g]));
        const __m256 contact = _mm256_cmp_ps(y[g], zero, _CMP_LT_OQ);
        __m256 p = _mm256_max_ps(_mm256_sub_ps(zero, y[g]), zero);
        __m256 open = _mm256_cmp_ps(p, tolerance, _CMP_NLT_UQ);
        for (int it = 0; _mm256_movemask_ps(open) != 0 && it < kMaxIterations; ++it) {
          const __m256 moved = _mm256_add_ps(y[g], _mm256_mul_ps(gain, p));
          y[g] = _mm256_blendv_ps(y[g], moved, open);
          p = _mm256_max_ps(_mm256_sub_ps(zero, y[g]), zero);
          open = _mm256_and_ps(open, _mm256_cmp_ps(p, tolerance, _CMP_NLT_UQ));
        }
        const __m256 bounced = _mm256_mul_ps(bounce, _mm256_min_ps(v[g], zero));
        v[g] = _mm256_blendv_ps(v[g], bounced, contact);
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      _mm256_storeu_ps(y_at + i + 8 * g, y[g]);
      _mm256_storeu_ps(v_at + i + 8 * g, v[g]);
    }
  }
}

#endif

void RunScalar(float* y_at, float* v_at, int64_t n, int64_t steps) {
  for (int64_t i = 0; i < n; ++i) {
    float y = y_at[i];
    float v = v_at[i];
    for (int64_t t = 0; t < steps; ++t) {
      v = v + kStep * (0.0f - 9.81f);
      y = y + kStep * v;
      const bool contact = y < 0.0f;
      for (int it = 0; it < kMaxIterations && !((y < 0.0f ? -y : 0.0f) < kTolerance); ++it) {
        y = y + kGain * (y < 0.0f ? -y : 0.0f);
      }
      if (contact) v = -kRestitution * (v < 0.0f ? v : 0.0f);
    }
    y_at[i] = y;
    v_at[i] = v;
  }
}

}  // namespace

void RunHandWrittenBall(float* y, float* v, int64_t n, int64_t steps) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
    return RunAvx512(y, v, n, steps);
  }
  if (__builtin_cpu_supports("avx2")) return RunAvx2(y, v, n, steps);
#endif
  RunScalar(y, v, n, steps);
}

}  // namespace simgrad::yardstick
