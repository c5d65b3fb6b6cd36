#include "sim/backend/reference/decision_radius.h"

#include <cmath>

#include "precision/arithmetic.h"
#include "precision/ulp.h"

namespace simgrad::sim::reference {
namespace {

// A margin with its test.
struct Margin {
  double signed_ulps;
  Radius radius;
};

bool IsNone(const Radius& radius) { return radius.unit == 0.0; }

// The order of equal margins: a test of reals before none, then the first in text.
bool ComesFirst(const Radius& a, const Radius& b) {
  if (IsNone(a) != IsNone(b)) return IsNone(b);
  return a.test <= b.test;
}

Margin Taken(bool first, const Margin& a, const Margin& b) {
  Margin result = first ? a : b;
  result.radius.has_nan = a.radius.has_nan || b.radius.has_nan;
  return result;
}

Margin Smaller(const Margin& a, const Margin& b) {
  const bool equal = a.signed_ulps == b.signed_ulps;
  return Taken(equal ? ComesFirst(a.radius, b.radius) : a.signed_ulps < b.signed_ulps, a, b);
}

// A formula that integers alone make true needs no test of reals.
Margin Larger(const Margin& a, const Margin& b) {
  bool first = a.signed_ulps > b.signed_ulps;
  if (a.signed_ulps == b.signed_ulps) {
    const bool without = a.signed_ulps > 0 && IsNone(a.radius) != IsNone(b.radius);
    first = without ? IsNone(a.radius) : ComesFirst(a.radius, b.radius);
  }
  return Taken(first, a, b);
}

}  // namespace

Radius RadiusOfPair(precision::Format format, double a, double b, double extra_magnitude) {
  const precision::Margin margin = precision::MarginOf(format, a, b, extra_magnitude);
  const double magnitude = precision::Max(precision::Max(precision::Abs(a), precision::Abs(b)),
                                          precision::Abs(extra_magnitude));
  Radius radius;
  radius.own = margin.absolute;
  radius.unit = precision::Ulp(format, magnitude) * 0x1p52;
  radius.has_nan = std::isnan(margin.absolute) || std::isnan(margin.ulps);
  if (!radius.has_nan) radius.ulps = std::abs(margin.ulps);
  return radius;
}

Radius RadiusOfConversion(precision::Format format, double x, bool to_bool) {
  if (to_bool) return RadiusOfPair(format, x, 0.0, 0.0);
  const double magnitude = precision::Abs(x);
  return RadiusOfPair(format, magnitude, precision::Max(precision::Round(magnitude), 1.0), 0.0);
}

Radius RadiusOfIsFinite(precision::Format format, double x) {
  const double most = precision::Traits(format).max_finite;
  if (precision::IsFinite(x)) return RadiusOfPair(format, precision::Abs(x), most, 0.0);
  Radius radius = RadiusOfPair(format, most, most, 0.0);
  radius.ulps = radius.own = std::numeric_limits<double>::infinity();
  return radius;
}

Radius LeastOf(const Radius& a, const Radius& b) {
  return Smaller({a.ulps, a}, {b.ulps, b}).radius;
}

double Signed(bool truth, const Radius& radius) { return truth ? radius.ulps : -radius.ulps; }

Radius RadiusOfAnd(bool a, const Radius& of_a, bool b, const Radius& of_b) {
  return Smaller({Signed(a, of_a), of_a}, {Signed(b, of_b), of_b}).radius;
}

Radius RadiusOfOr(bool a, const Radius& of_a, bool b, const Radius& of_b) {
  return Larger({Signed(a, of_a), of_a}, {Signed(b, of_b), of_b}).radius;
}

Radius RadiusOfSelect(bool c, const Radius& of_c, bool a, const Radius& of_a, bool b,
                      const Radius& of_b) {
  const Margin is{Signed(c, of_c), of_c};
  const Margin is_not{Signed(!c, of_c), of_c};
  const Margin first{Signed(a, of_a), of_a};
  const Margin second{Signed(b, of_b), of_b};
  return Larger(Larger(Smaller(is, first), Smaller(is_not, second)), Smaller(first, second)).radius;
}

}  // namespace simgrad::sim::reference
