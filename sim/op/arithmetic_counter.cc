#include "sim/op/arithmetic_counter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "precision/chain.h"

namespace simgrad::sim {
namespace {

using precision::Format;

bool IsUsual(double x) { return precision::IsFinite(x) && x != 0.0; }

}  // namespace

bool IsTiny(Format format, double x) {
  return std::abs(x) < std::ldexp(1.0, precision::Traits(format).min_exponent);
}

void ArithmeticCounts::Merge(const ArithmeticCounts& other) {
  results += other.results;
  underflows += other.underflows;
  overflows += other.overflows;
  additions += other.additions;
  absorbed += other.absorbed;
}

ArithmeticCounter::ArithmeticCounter(ArithmeticCounts& counts, std::vector<bool> executed)
    : counts_(counts), executed_(std::move(executed)) {
  counts_here_ =
      executed_.empty() || std::find(executed_.begin(), executed_.end(), true) != executed_.end();
}

void ArithmeticCounter::Begin(size_t element) {
  counts_here_ = executed_.empty() || executed_[element];
}

void ArithmeticCounter::Added(double a, double b, double sum) {
  if (!counts_here_ || !IsUsual(a) || !IsUsual(b)) return;
  ++counts_.additions;
  if (sum == a || sum == b) ++counts_.absorbed;
}

void ArithmeticCounter::Multiplied(Format format, double a, double b, double product) {
  if (IsUsual(a) && IsUsual(b)) Shrunk(format, a * b, product);
}

void ArithmeticCounter::Divided(Format format, double a, double b, double quotient) {
  if (IsUsual(a) && IsUsual(b)) Shrunk(format, a / b, quotient);
}

void ArithmeticCounter::Rounded(Format format, double x, double rounded) {
  if (!counts_here_ || !IsUsual(x) || !IsTiny(format, rounded)) return;
  if (rounded != x) ++counts_.underflows;
}

void ArithmeticCounter::Shrunk(Format format, double wide, double rounded) {
  if (!counts_here_ || !IsTiny(format, rounded)) return;
  // In f64 nothing tells whether it is exact.
  if (format == Format::kF64 || rounded != wide) ++counts_.underflows;
}

void ArithmeticCounter::Chained(Format accumulator, double a, double b, double before,
                                double after) {
  const double x = precision::RoundTo(accumulator, a);
  const double y = precision::RoundTo(accumulator, b);
  Rounded(accumulator, a, x);
  Rounded(accumulator, b, y);
  const double product = precision::Mul(accumulator, x, y);
  // A fused product is not rounded.
  if (!precision::FusesProducts(accumulator)) Multiplied(accumulator, x, y, product);
  Added(product, before, after);
}

}  // namespace simgrad::sim
