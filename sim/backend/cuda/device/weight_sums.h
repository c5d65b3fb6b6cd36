// Sums over instances of what a launch gave to a param declared `weights`, in aligned blocks of ids.
//
// Maths: sim/backend/block_sums.h. A thread has an element of one block in one entry. It runs over the
//   block's rows in ascending order of ids, on a stack whose joins the host has counted (BlockOrder).
// Layout: the sum of an entry takes the place of what the block's first row gave, so it needs no memory
//   of its own.
// Errors: none. Threads: as many as there are, each for itself; no barriers. Atomics are of integers,
//   so the order of threads does not matter.
// Cost: every number that counts is read once.
#pragma once

#include "precision/arithmetic.h"
#include "precision/lane.h"
#include "sim/backend/cuda/kernel_abi.h"

namespace simgrad::sim::cuda::device {

// The arithmetic of the tree: leaves of role gradient, joined in its accumulator.
template <precision::Format kFormat, precision::Format kAccumulator>
struct SumArithmetic {
  using Format = precision::Format;
  using Number = typename precision::Lane<kFormat>::Carrier;
  // In float where every leaf is a value of an accumulator of f32.
  static constexpr bool kNarrow = sizeof(Number) == 4 && kAccumulator == Format::kF32;
  using Partial = typename precision::Lane<kNarrow ? Format::kF32 : Format::kF64>::Carrier;

  SIMGRAD_HD static Number Leaf(double weight, Number x) {
    return weight == 1.0 ? x : static_cast<Number>(precision::Mul(kFormat, weight, x));
  }
  SIMGRAD_HD static Partial Join(Partial left, Partial right) {
    if constexpr (kNarrow) {
      return left + right;
    } else {
      return precision::Add(kAccumulator, left, right);
    }
  }
  SIMGRAD_HD static Number Root(Partial sum) { return precision::Lane<kFormat>::Round(sum); }
  SIMGRAD_HD static Number Grow(Number total, Number sum) {
    return precision::Lane<kFormat>::Add(total, sum);
  }
};

// The magnitudes that a thread saw, as bits: they sort as the numbers do, NaN above infinity.
template <class Bits>
struct SeenMagnitudes {
  Bits smallest = ~Bits{0}, largest = 0;

  template <class Number>
  __device__ void See(const WeightSumsView& view, int64_t row, Number x) {
    const Bits magnitude = precision::BitsOf(x) & (~Bits{0} >> 1);
    if (magnitude < static_cast<Bits>(view.least_told)) return;
    if (view.nonzero[row] == 0) atomicOr(&view.nonzero[row], 1u);
    if (magnitude >= static_cast<Bits>(view.least_infinite)) return;
    smallest = magnitude < smallest ? magnitude : smallest;
    largest = magnitude > largest ? magnitude : largest;
  }
  __device__ void Leave(const WeightSumsView& view) const {
    if (largest == 0) return;
    if (smallest < view.extremes[0]) {
      atomicMin(&view.extremes[0], static_cast<unsigned long long>(smallest));
    }
    if (largest > view.extremes[1]) {
      atomicMax(&view.extremes[1], static_cast<unsigned long long>(largest));
    }
  }
};

__device__ inline int64_t OwnItem() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t ItemStride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// The sums of all entries.
template <precision::Format kFormat, precision::Format kAccumulator>
__device__ inline void SumEntriesKernel(const KernelArgs& args) {
  using Arithmetic = SumArithmetic<kFormat, kAccumulator>;
  using Number = typename Arithmetic::Number;
  using Partial = typename Arithmetic::Partial;
  const WeightSumsView& view = args.sums;
  SeenMagnitudes<decltype(precision::BitsOf(Number{}))> seen;
  for (int64_t item = OwnItem(); item < view.entries * view.blocks * view.elements;
       item += ItemStride()) {
    const int64_t element = item % view.elements;
    const int64_t block = item / view.elements % view.blocks;
    const int64_t entry = item / view.elements / view.blocks;
    Number* const given = static_cast<Number*>(view.given) + entry * view.entry_stride +
                          element * view.element_stride;
    const uint32_t begin = view.block_begin[block];
    const uint32_t end = view.block_begin[block + 1];
    Partial stack[kSumDepth];
    int depth = 0;
    for (uint32_t place = begin; place < end; ++place) {
      const int64_t row = view.row[place];
      const Number x = given[row * view.row_stride];
      seen.See(view, row, x);
      Partial top = Arithmetic::Leaf(view.weight[place], x);
      for (int joins = view.joins[place]; joins > 0; --joins) {
        top = Arithmetic::Join(stack[--depth], top);
      }
      stack[depth++] = top;
    }
    given[view.row[begin] * view.row_stride] = Arithmetic::Root(stack[0]);
  }
  seen.Leave(view);
}

// Adds the sums of entries to the totals of their blocks, from the last entry to the first.
template <precision::Format kFormat, precision::Format kAccumulator>
__device__ inline void GrowTotalsKernel(const KernelArgs& args) {
  using Arithmetic = SumArithmetic<kFormat, kAccumulator>;
  using Number = typename Arithmetic::Number;
  const WeightSumsView& view = args.sums;
  for (int64_t item = OwnItem(); item < view.blocks * view.elements; item += ItemStride()) {
    const int64_t element = item % view.elements;
    const int64_t row = view.row[view.block_begin[item / view.elements]];
    const Number* const sums = static_cast<const Number*>(view.given) +
                               element * view.element_stride + row * view.row_stride;
    Number* const total = static_cast<Number*>(view.total) + item;
    Number sum = *total;
    for (int64_t entry = view.entries - 1; entry >= 0; --entry) {
      sum = Arithmetic::Grow(sum, sums[entry * view.entry_stride]);
    }
    *total = sum;
  }
}

}  // namespace simgrad::sim::cuda::device
