#include "sim/backend/row_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "precision/arithmetic.h"
#include "precision/wide.h"

namespace simgrad::sim {
namespace {

// to[j] = from[2 j] + from[2 j + 1], for j below `pairs`; `to` may be `from`.
template <class T>
[[gnu::always_inline]] inline void AddPairs(const T* from, T* to, int64_t pairs) {
  for (int64_t j = 0; j < pairs; ++j) to[j] = from[2 * j] + from[2 * j + 1];
}

// Sums of `rows` neighbours, a power of two of at least 2, pair by pair: of `elements` elements.
// A NaN is the canonical one.
template <class T>
[[gnu::always_inline]] inline void SumPairs(const T* from, int64_t element_stride, int64_t elements,
                                            int64_t rows, double* to) {
  constexpr int64_t kTile = 2048;  // lies in a near cache
  std::array<T, kTile> tile;
  const int64_t half = rows / 2;
  const int64_t at_once = kTile / half;
  for (int64_t begin = 0; begin < elements; begin += at_once) {
    const int64_t count = std::min(at_once, elements - begin);
    for (int64_t e = 0; e < count; ++e) {
      AddPairs(from + (begin + e) * element_stride, tile.data() + e * half, half);
    }
    for (int64_t n = half; n > 1; n /= 2) AddPairs(tile.data(), tile.data(), count * n / 2);
    for (int64_t e = 0; e < count; ++e) {
      to[begin + e] = precision::Canonical(static_cast<double>(tile[e]));
    }
  }
}
SIMGRAD_WIDE void Sum(const double* from, int64_t element_stride, int64_t elements, int64_t rows,
                      double* to) {
  SumPairs(from, element_stride, elements, rows, to);
}
SIMGRAD_WIDE void SumAny(const float* from, int64_t element_stride, int64_t elements, int64_t rows,
                         double* to) {
  SumPairs(from, element_stride, elements, rows, to);
}

#if defined(__x86_64__)
bool HasAvx2() {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  return has_avx2;
}

// The same of 32 floats, whose pairs an instruction adds: four elements give one vector of sums.
[[gnu::target("avx2")]] inline __m128 SumOf32(const float* from) {
  const __m256 ab = _mm256_hadd_ps(_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8));
  const __m256 cd = _mm256_hadd_ps(_mm256_loadu_ps(from + 16), _mm256_loadu_ps(from + 24));
  // Sums of fours: those of the lower halves of a, b, c, d below those of the upper halves.
  const __m256 fours = _mm256_hadd_ps(ab, cd);
  return _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1));
}
[[gnu::target("avx2")]] void SumOf32Rows(const float* from, int64_t element_stride,
                                         int64_t elements, double* to) {
  const double nan = precision::DoubleOf(precision::kDoubleNanBits);
  int64_t e = 0;
  for (; e + 4 <= elements; e += 4) {
    const float* const at = from + e * element_stride;
    const __m128 left = _mm_hadd_ps(SumOf32(at), SumOf32(at + element_stride));
    const __m128 right =
        _mm_hadd_ps(SumOf32(at + 2 * element_stride), SumOf32(at + 3 * element_stride));
    const __m256d sums = _mm256_cvtps_pd(_mm_hadd_ps(left, right));
    const __m256d is_nan = _mm256_cmp_pd(sums, sums, _CMP_UNORD_Q);
    _mm256_storeu_pd(to + e, _mm256_blendv_pd(sums, _mm256_set1_pd(nan), is_nan));
  }
  for (; e < elements; ++e) {
    const __m128 eights = SumOf32(from + e * element_stride);
    const __m128 sixteens = _mm_hadd_ps(eights, eights);
    const float sum = _mm_cvtss_f32(_mm_hadd_ps(sixteens, sixteens));
    to[e] = precision::Canonical(static_cast<double>(sum));
  }
}
#endif

void Sum(const float* from, int64_t element_stride, int64_t elements, int64_t rows, double* to) {
#if defined(__x86_64__)
  if (HasAvx2() && rows == 32) return SumOf32Rows(from, element_stride, elements, to);
#endif
  SumAny(from, element_stride, elements, rows, to);
}

// BoundRows, compiled for several kinds of processors (wide.h).
template <class T, class Bits>
[[gnu::always_inline]] inline void BoundAll(const T* from, int64_t element_stride, int64_t elements,
                                            int64_t count, Bits* least, Bits* largest) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  for (int64_t e = 0; e < elements; ++e) {
    const T* const row = from + e * element_stride;
    for (int64_t r = 0; r < count; ++r) {
      Bits bits;
      std::memcpy(&bits, row + r, sizeof(bits));
      bits &= kMagnitude;
      largest[r] = std::max(largest[r], bits);
      least[r] = std::min(least[r], static_cast<Bits>(bits - 1));
    }
  }
}
SIMGRAD_WIDE void BoundAny(const float* from, int64_t element_stride, int64_t elements,
                           int64_t count, uint32_t* least, uint32_t* largest) {
  BoundAll(from, element_stride, elements, count, least, largest);
}
#if defined(__x86_64__)
// The same of 32 rows, whose bounds stay in registers.
[[gnu::target("avx2")]] void Bound32(const float* from, int64_t element_stride, int64_t elements,
                                     uint32_t* least, uint32_t* largest) {
  constexpr int kVectors = 4;
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i minus_one = _mm256_set1_epi32(-1);
  auto* const low_at = reinterpret_cast<__m256i*>(least);
  auto* const high_at = reinterpret_cast<__m256i*>(largest);
  __m256i low[kVectors], high[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    low[v] = _mm256_loadu_si256(low_at + v);
    high[v] = _mm256_loadu_si256(high_at + v);
  }
  for (int64_t e = 0; e < elements; ++e) {
    const auto* const row = reinterpret_cast<const __m256i*>(from + e * element_stride);
    for (int v = 0; v < kVectors; ++v) {
      const __m256i bits = _mm256_and_si256(_mm256_loadu_si256(row + v), magnitude);
      high[v] = _mm256_max_epu32(high[v], bits);
      low[v] = _mm256_min_epu32(low[v], _mm256_add_epi32(bits, minus_one));
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    _mm256_storeu_si256(low_at + v, low[v]);
    _mm256_storeu_si256(high_at + v, high[v]);
  }
}
#endif

}  // namespace

void BoundRows(const float* from, int64_t element_stride, int64_t elements, int64_t count,
               uint32_t* least, uint32_t* largest) {
#if defined(__x86_64__)
  if (HasAvx2() && count == 32) return Bound32(from, element_stride, elements, least, largest);
#endif
  BoundAny(from, element_stride, elements, count, least, largest);
}
SIMGRAD_WIDE void BoundRows(const double* from, int64_t element_stride, int64_t elements,
                            int64_t count, uint64_t* least, uint64_t* largest) {
  BoundAll(from, element_stride, elements, count, least, largest);
}

template <class T>
[[gnu::always_inline]] inline void MultiplyAll(const T* factors, int64_t rows, int64_t columns,
                                               int64_t lanes, int64_t begin, int64_t count, T* to) {
  int64_t a = begin / columns;
  int64_t b = begin % columns;
  for (int64_t e = 0; e < count; ++a, b = 0) {
    const int64_t end = std::min(count, e + columns - b);  // of the elements that share a
    const T* const x = factors + a * lanes;
    const T* y = factors + (rows + b) * lanes;
    if (lanes == 1) {
      for (; e < end; ++e) to[e] = *x * *y++ + T{0};
      continue;
    }
    for (; e < end; ++e, y += lanes) {
      for (int64_t r = 0; r < lanes; ++r) to[e * lanes + r] = x[r] * y[r] + T{0};
    }
  }
}
SIMGRAD_WIDE void MultiplyRows(const float* factors, int64_t rows, int64_t columns, int64_t lanes,
                               int64_t begin, int64_t count, float* to) {
  MultiplyAll(factors, rows, columns, lanes, begin, count, to);
}
SIMGRAD_WIDE void MultiplyRows(const double* factors, int64_t rows, int64_t columns, int64_t lanes,
                               int64_t begin, int64_t count, double* to) {
  MultiplyAll(factors, rows, columns, lanes, begin, count, to);
}

// Neighbouring numbers that are added up at once: one vector of the widest kind, or several.
constexpr int64_t kAtOnce = 64;
template <class T>
struct NumbersOf {
  typedef T Type [[gnu::vector_size(kAtOnce)]];
};
template <class T>
using Numbers = typename NumbersOf<T>::Type;
template <class T>
constexpr int64_t kNumbers = kAtOnce / static_cast<int64_t>(sizeof(T));

// The sum of x[r] * y[r * stride + k] over n rows, pair by pair, for the numbers k.
template <int n, class T>
[[gnu::always_inline]] inline void AddProducts(const T* x, const T* y, int64_t stride,
                                               Numbers<T>& sum) {
  if constexpr (n == 1) {
    std::memcpy(&sum, y, sizeof(sum));
    sum *= *x;
  } else {
    Numbers<T> others;
    AddProducts<n / 2>(x, y, stride, sum);
    AddProducts<n / 2>(x + n / 2, y + n / 2 * stride, stride, others);
    sum += others;
  }
}

template <class T>
[[gnu::always_inline]] inline double Wide(T x) {
  return x == x ? static_cast<double>(x) : precision::DoubleOf(precision::kDoubleNanBits);
}

// Factor k of one side at from[k * lanes + r], r below n. The sum for factors i and j lies at
// to[i * stride_x + j * stride_y].
template <class T>
struct Side {
  const T* from;
  int64_t count;
  int64_t stride;
};

template <int n, class T>
[[gnu::always_inline]] inline void SumProductsOf(const Side<T>& x, const Side<T>& y, int64_t lanes,
                                                 T* scratch, double* to) {
  const int64_t padded = (y.count + kNumbers<T> - 1) / kNumbers<T> * kNumbers<T>;
  T* const sums_of_x = scratch;
  T* const rows_of_y = scratch + padded;
  for (int64_t j = 0; j < padded; ++j) {
    for (int64_t r = 0; r < n; ++r) {
      rows_of_y[r * padded + j] = j < y.count ? y.from[j * lanes + r] : T{0};
    }
  }
  for (int64_t i = 0; i < x.count; ++i) {
    for (int64_t j = 0; j < y.count; j += kNumbers<T>) {
      Numbers<T> sum;
      AddProducts<n>(x.from + i * lanes, rows_of_y + j, padded, sum);
      // Products are added from +0: the sum of zeros is positive.
      sum += T{0};
      T* const row = sums_of_x + j;
      std::memcpy(row, &sum, sizeof(sum));
    }
    double* const at = to + i * x.stride;
    if (y.stride == 1) {
      for (int64_t j = 0; j < y.count; ++j) at[j] = Wide(sums_of_x[j]);
    } else {
      for (int64_t j = 0; j < y.count; ++j) at[j * y.stride] = Wide(sums_of_x[j]);
    }
  }
}

template <class T>
[[gnu::always_inline]] inline void SumProductsAny(const Side<T>& x, const Side<T>& y, int64_t lanes,
                                                  int64_t n, T* scratch, double* to) {
  switch (n) {
    case 2:
      return SumProductsOf<2>(x, y, lanes, scratch, to);
    case 4:
      return SumProductsOf<4>(x, y, lanes, scratch, to);
    case 8:
      return SumProductsOf<8>(x, y, lanes, scratch, to);
    case 16:
      return SumProductsOf<16>(x, y, lanes, scratch, to);
    case 32:
      return SumProductsOf<32>(x, y, lanes, scratch, to);
    case 64:
      return SumProductsOf<64>(x, y, lanes, scratch, to);
    default:
      return;
  }
}
SIMGRAD_WIDE void SumProductsWide(const Side<float>& x, const Side<float>& y, int64_t lanes,
                                  int64_t n, float* scratch, double* to) {
  SumProductsAny(x, y, lanes, n, scratch, to);
}
SIMGRAD_WIDE void SumProductsWide(const Side<double>& x, const Side<double>& y, int64_t lanes,
                                  int64_t n, double* scratch, double* to) {
  SumProductsAny(x, y, lanes, n, scratch, to);
}

template <class T>
bool SumProducts(const T* factors, int64_t rows, int64_t columns, int64_t lanes, int64_t n,
                 double* to) {
  if (n < 2 || n > 64 || (n & (n - 1)) != 0) return false;
  Side<T> x = {factors, rows, columns};
  Side<T> y = {factors + rows * lanes, columns, 1};
  if (rows > columns) std::swap(x, y);  // the longer side fills vectors
  std::vector<T> scratch(static_cast<size_t>((y.count + kNumbers<T>)*(n + 1)));
  SumProductsWide(x, y, lanes, n, scratch.data(), to);
  return true;
}
template bool SumProducts(const float*, int64_t, int64_t, int64_t, int64_t, double*);
template bool SumProducts(const double*, int64_t, int64_t, int64_t, int64_t, double*);

template <class Accumulator, class T>
void SumRows(const T* from, int64_t element_stride, int64_t elements, int64_t rows,
             const double* weights, bool all_ones, double* to) {
  if constexpr (std::is_same_v<Accumulator, T>) {
    if (all_ones) {
      return Sum(from, element_stride, elements, rows, to);
    }
  }
  constexpr int64_t kTile = 4096;
  std::array<Accumulator, kTile> tile;
  const int64_t at_once = kTile / rows;
  for (int64_t begin = 0; begin < elements; begin += at_once) {
    const int64_t count = std::min(at_once, elements - begin);
    for (int64_t e = 0; e < count; ++e) {
      const T* const row = from + (begin + e) * element_stride;
      Accumulator* const leaf = tile.data() + e * rows;
      for (int64_t r = 0; r < rows; ++r) {
        const double weighted =
            all_ones ? static_cast<double>(row[r]) : weights[r] * static_cast<double>(row[r]);
        leaf[r] = static_cast<Accumulator>(static_cast<T>(weighted));
      }
    }
    Sum(tile.data(), rows, count, rows, to + begin);
  }
}
template void SumRows<float>(const float*, int64_t, int64_t, int64_t, const double*, bool, double*);
template void SumRows<double>(const float*, int64_t, int64_t, int64_t, const double*, bool,
                              double*);
template void SumRows<double>(const double*, int64_t, int64_t, int64_t, const double*, bool,
                              double*);

}  // namespace simgrad::sim
