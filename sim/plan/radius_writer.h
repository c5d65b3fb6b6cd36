// Writes radii: how far a boolean or an integer is from being decided otherwise.
//
// Maths: sim/program/decision_margin.h. This computes with radii; radii.h knows whose they are.
// Errors: none. Cost: linear in what is written. Threads: pure.
#pragma once

#include <array>

#include "sim/plan/statement_writer.h"

namespace simgrad::sim::plan {

// The radius for each element or for all. Without it no real decides the value.
struct Radius {
  View ulps, own, unit, has_nan, test;
  bool set() const { return ulps.set(); }
  std::array<View, 5> All() const { return {ulps, own, unit, has_nan, test}; }
};

// That of one element.
struct Deciding {
  Register ulps = kNoRegister, own = kNoRegister, unit = kNoRegister, has_nan = kNoRegister,
           test = kNoRegister;
  std::array<Register, 5> All() const { return {ulps, own, unit, has_nan, test}; }
};

class RadiusWriter {
 public:
  explicit RadiusWriter(StatementWriter& out) : out_(out) {}

  Deciding NoTest();
  // A test of two reals, in the carrier of the format; `extra` may be none.
  Deciding OfPair(Register a, Register b, Register extra, Format format, uint32_t test);
  Deciding Least(const Deciding& a, const Deciding& b);
  Deciding Taken(Register first, const Deciding& a, const Deciding& b);  // of the branch taken
  Deciding OfAnd(Register a, const Deciding& of_a, Register b, const Deciding& of_b);
  Deciding OfOr(Register a, const Deciding& of_a, Register b, const Deciding& of_b);
  Deciding OfSelect(Register c, const Deciding& of_c, Register a, const Deciding& of_a, Register b,
                    const Deciding& of_b);

  Radius Local(const Shape& shape);
  static Radius OfOne(const Deciding& of);
  Deciding One(const Radius& radius);
  Deciding At(const Radius& radius, Register counter);  // of an element of contiguous views
  void Store(const Radius& to, const Deciding& of);
  Deciding LeastOf(const Radius& radius, const Shape& shape);  // of all elements

 private:
  Deciding Chosen(Register first, const Deciding& a, const Deciding& b);
  // Whether the first of two decides, by the function of that name (backend/scalars.h).
  Register Decides(const char* which, Register margin, const Deciding& of, Register other,
                   const Deciding& of_other);
  Register SignedUlps(Register truth, const Deciding& of);

  StatementWriter& out_;
};

}  // namespace simgrad::sim::plan
