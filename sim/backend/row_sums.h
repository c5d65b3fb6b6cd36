// Sums, bounds and products of rows that adjoin, of many elements at a time: number e of row r lies at
// from[e * element_stride + r].
//
// Accuracy: a sum is that of the pairwise tree over the rows, in the accumulator's format; a NaN is
//   the canonical one. The bits are the same on every kind of processor (wide.h).
#pragma once

#include <cstdint>

namespace simgrad::sim {

// to[e]: the sum over `rows` rows, a power of two of at least 2, of each row's number times its
// weight, rounded to T before it is added. `all_ones`: all weights are 1. T holds the format,
// Accumulator the accumulator, both f32 or f64.
template <class Accumulator, class T>
void SumRows(const T* from, int64_t element_stride, int64_t elements, int64_t rows,
             const double* weights, bool all_ones, double* to);

// Widens the bounds of each of `rows` rows by the magnitudes of all its elements, as bits. `largest`:
// their largest. `least`: the least of their bits less 1, so that a 0, which wraps around, is above
// all others.
void BoundRows(const float* from, int64_t element_stride, int64_t elements, int64_t rows,
               uint32_t* least, uint32_t* largest);
void BoundRows(const double* from, int64_t element_stride, int64_t elements, int64_t rows,
               uint64_t* least, uint64_t* largest);

// Elements [begin, begin + count) of the products of `rows` factors and `columns` others, the latter
// fastest, from +0: to[e * lanes + r] = factors[a * lanes + r] * factors[(rows + b) * lanes + r],
// where begin + e = a * columns + b.
void MultiplyRows(const float* factors, int64_t rows, int64_t columns, int64_t lanes, int64_t begin,
                  int64_t count, float* to);
void MultiplyRows(const double* factors, int64_t rows, int64_t columns, int64_t lanes,
                  int64_t begin, int64_t count, double* to);

// The sums over n rows of these products, in the tree of SumRows: to[a * columns + b]. Returns false,
// having done nothing, where n is no power of two from 2 to 64. T is the accumulator, too.
template <class T>
bool SumProducts(const T* factors, int64_t rows, int64_t columns, int64_t lanes, int64_t n,
                 double* to);

}  // namespace simgrad::sim
