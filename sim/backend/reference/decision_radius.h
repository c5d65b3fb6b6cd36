// How far booleans and integers are from being others (sim/program/decision_margin.h).
#pragma once

#include <limits>
#include <vector>

#include "precision/format.h"

namespace simgrad::sim::reference {

// The deciding test: how far it is from its threshold. As it stands: there is none.
struct Radius {
  double ulps = std::numeric_limits<double>::infinity();
  double own = std::numeric_limits<double>::infinity();  // a - b
  double unit = 0.0;                                     // 2^52 of its ulps
  bool has_nan = false;                                  // some test has a NaN margin
  uint32_t test = 0;                                     // its number (DecidingTests)
};

Radius RadiusOfPair(precision::Format format, double a, double b, double extra_magnitude);
// The distance of a real from those that a conversion takes to another integer, or bool.
Radius RadiusOfConversion(precision::Format format, double x, bool to_bool);
// The distance of a real from the bound of what is finite; infinite for a NaN.
Radius RadiusOfIsFinite(precision::Format format, double x);
// The lesser of both; if they are equal, one that is there before one that is not, then the first
// in text.
Radius LeastOf(const Radius& a, const Radius& b);
// A margin: positive where its boolean is true.
double Signed(bool truth, const Radius& radius);
Radius RadiusOfAnd(bool a, const Radius& of_a, bool b, const Radius& of_b);
Radius RadiusOfOr(bool a, const Radius& of_a, bool b, const Radius& of_b);
Radius RadiusOfSelect(bool c, const Radius& of_c, bool a, const Radius& of_a, bool b,
                      const Radius& of_b);

}  // namespace simgrad::sim::reference
