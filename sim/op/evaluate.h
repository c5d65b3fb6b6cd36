// Helpers for the literal evaluation of operations.
//
// Maths: the exact result rounded once to the format of the result (docs/numerics.md section 2).
// Errors: none; the program has been verified. Cost: allocates the result; the meter counts its
//   elements, and may end it. Threads: pure, under the float environment of
//   precision/float_environment.h.
#pragma once

#include "sim/op/op_info.h"
#include "sim/program/axes.h"

namespace simgrad::sim {

// Cost of computing and of moving one element, in element-operations.
inline constexpr int64_t kElementWork = 4;
inline constexpr int64_t kMoveWork = 8;
inline constexpr int64_t kDrawWork = 32;  // a random number

// The same, without counting: of work that is done once more than its definition says.
inline Evaluation Uncounted(const Evaluation& e) {
  Evaluation uncounted = e;
  uncounted.arithmetic = nullptr;
  return uncounted;
}

// By on_reals and on_integers, element by element.
Array EvaluateElementwise(const Evaluation& e, const OpInfo& info);

// Two's complement at the width of the type: i32 wraps at 32 bits; bool is 0 or 1.
int64_t WrapTo(ElementType type, int64_t value);

// `fill` of the operation, rounded to the format of the result and within its range.
double FillOf(const Op& op, const Value& result);
Array FilledWith(const Op& op, const Value& result);

// The smallest and the largest of some elements, for a certificate; a NaN counts as both.
template <class Elements>
void AppendRange(const Array& from, const Elements& elements, std::vector<double>& to) {
  double low = 0.0;
  double high = 0.0;
  bool first = true;
  for (size_t i : elements) {
    const double x = from.AsDouble(i);
    low = first || x < low || x != x ? x : low;
    high = first || x > high || x != x ? x : high;
    first = false;
  }
  if (!first) to.insert(to.end(), {low, high});
}

// Sums of lines in the order and the accumulator of the operation, rounded to the format of its
// result.
class LineSum {
 public:
  explicit LineSum(const Evaluation& e) : e_(e), order_(e.op.attributes.order) {}
  double Of(const std::vector<double>& line);

 private:
  const Evaluation& e_;
  SumOrder order_;
  std::vector<int64_t> permutation_;  // of lines as long as the last one
};

// A comparison with NaN is false, `ne` included (docs/numerics.md section 2).
bool Compares(Comparison comparison, double a, double b);
bool Compares(Comparison comparison, int64_t a, int64_t b);

// The elements of the operand that result element `result` of a reduction reads, in their order:
// for a cumulative sum, those up to and including its own; for an exclusive product, its whole line.
std::vector<size_t> ReducedElements(const Program& program, const Op& op, size_t result,
                                    WorkMeter* meter = nullptr);

}  // namespace simgrad::sim
