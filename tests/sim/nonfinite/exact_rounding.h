// Arithmetic of the witness: exact in MPFR, then rounded once. Shares no code with precision/.
#pragma once

#include <string>
#include <vector>

#include "precision/format.h"
#include "precision/policy.h"

namespace simgrad::nonfinite {

using precision::Format;
using precision::Order;
using precision::Overflow;
using precision::SumOrder;

// What a format is, from docs/numerics.md section 1.
struct Range {
  int digits;    // with the hidden bit
  int smallest;  // exponent of the smallest subnormal
  double largest;
};
Range RangeOf(Format format);

// x to the nearest number of the format, ties to even; beyond the range Inf (e4m3: NaN).
double Nearest(Format format, double x, Overflow overflow = Overflow::kIeee);

// The operation of that name on numbers, rounded once. Ends the process for a name without a rule.
bool Computes(const std::string& what);
double Compute(const std::string& what, Format format, const std::vector<double>& in);

// The sum of one role.
double ProductOf(const std::vector<double>& x, Format format);
double SumOf(const std::vector<double>& x, SumOrder order, Format accumulator, Format result);

}  // namespace simgrad::nonfinite
