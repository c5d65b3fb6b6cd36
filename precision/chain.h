// The chain of products of linear algebra: acc = acc + a b, one after the other, in an accumulator's format.
//
// Maths: operands are brought into the accumulator's format. In f32 and f64 each link is one fma; a narrower
//   accumulator rounds the product, then the sum.
// Accuracy: each rounding 0.5 ulp of the accumulator's format.
// Errors: none; IEEE 754 for Inf and NaN. Threads: pure; needs the float environment of
//   precision/float_environment.h.
// Source: docs/numerics.md section 3.
#pragma once

#include "precision/arithmetic.h"

namespace simgrad::precision {

constexpr bool FusesProducts(Format accumulator) {
  return accumulator == Format::kF32 || accumulator == Format::kF64;
}

class Chain {
 public:
  Chain(Format accumulator, double first)
      : accumulator_(accumulator), sum_(RoundTo(accumulator, first)) {}

  void Add(double a, double b) {
    const double x = RoundTo(accumulator_, a);
    const double y = RoundTo(accumulator_, b);
    sum_ = FusesProducts(accumulator_)
               ? Fma(accumulator_, x, y, sum_)
               : precision::Add(accumulator_, Mul(accumulator_, x, y), sum_);
  }

  double sum() const { return sum_; }

 private:
  const Format accumulator_;
  double sum_;
};

}  // namespace simgrad::precision
