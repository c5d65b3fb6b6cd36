// Counts what rounding does to the numbers of one operation (docs/semantics.md, "Arithmetic").
//
// Maths: underflow: a product or a quotient of two finite numbers that are not zero, or a number that
//   is rounded, becomes zero or subnormal in its format and is not exact. In f64 a subnormal product or
//   quotient counts always. Addition: of two finite numbers that are not zero; it is absorbed where the
//   rounded sum is one of them.
// Errors: none. Threads: an object belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "precision/format.h"

namespace simgrad::sim {

// Sums over everything that an operation gave.
struct ArithmeticCounts {
  uint64_t results = 0;  // real numbers that it gave
  uint64_t underflows = 0;
  uint64_t overflows = 0;
  uint64_t additions = 0;
  uint64_t absorbed = 0;
  uint64_t lost() const { return underflows + overflows + absorbed; }
  void Merge(const ArithmeticCounts& other);
  bool operator==(const ArithmeticCounts&) const = default;
};

// Whether a number is zero or subnormal in a format.
bool IsTiny(precision::Format format, double x);

// Sees one evaluation of an operation from inside.
class ArithmeticCounter {
 public:
  // `executed`: by element of the result; empty: all are. Work for others is not counted.
  ArithmeticCounter(ArithmeticCounts& counts, std::vector<bool> executed);

  // The work that follows is for element `element` of the result. Before the first call it counts if
  // any element is executed.
  void Begin(size_t element);
  void Added(double a, double b, double sum);
  void Multiplied(precision::Format format, double a, double b, double product);
  void Divided(precision::Format format, double a, double b, double quotient);
  // A number of f64 became `rounded`.
  void Rounded(precision::Format format, double x, double rounded);
  // A number that is neither 0 nor infinite became `rounded`; `wide` is it in f64.
  void Shrunk(precision::Format format, double wide, double rounded);
  // A link of a chain (precision/chain.h): `before` + a b became `after`.
  void Chained(precision::Format accumulator, double a, double b, double before, double after);

 private:
  ArithmeticCounts& counts_;
  std::vector<bool> executed_;
  bool counts_here_ = true;
};

}  // namespace simgrad::sim
