#include "sim/plan/radius_writer.h"

#include <limits>
#include <string>
#include <vector>

#include "sim/text.h"

namespace simgrad::sim::plan {

// ---- of one element ----

Deciding RadiusWriter::NoTest() {
  const Register infinite = out_.Number(std::numeric_limits<double>::infinity());
  return {infinite, infinite, out_.Constant(Carrier::kF64, 0), out_.Constant(Carrier::kBool, 0),
          out_.Constant(Carrier::kI32, 0)};
}

// In the carrier of the format; `extra` may be none.
Deciding RadiusWriter::OfPair(Register a, Register b, Register extra, Format format,
                              uint32_t test) {
  if (extra == kNoRegister) extra = out_.Constant(out_.TypeOf(a), 0);
  const std::string suffix =
      Cat(precision::FormatName(format), "_", CarrierName(out_.TypeOf(extra)));
  const std::vector<Register> compared = {a, b, extra};
  const Register is_number = out_.Call(Cat("is_number_", suffix), Carrier::kBool, compared);
  const Register ulps = out_.Call(Cat("distance_ulps_", suffix), Carrier::kF64, compared);
  const Register infinite = out_.Number(std::numeric_limits<double>::infinity());
  return {out_.Call("select_f64", Carrier::kF64, {is_number, ulps, infinite}),
          out_.Call("sub_f64", Carrier::kF64, {out_.Wide(a), out_.Wide(b)}),
          out_.Call(Cat("unit_", suffix), Carrier::kF64, compared),
          out_.Call("not_bool", Carrier::kBool, {is_number}),
          out_.Constant(Carrier::kI32, int64_t{test})};
}

Deciding RadiusWriter::Chosen(Register first, const Deciding& a, const Deciding& b) {
  const auto choose = [&](Register of_a, Register of_b) {
    return out_.Call("select_f64", Carrier::kF64, {first, of_a, of_b});
  };
  return {choose(a.ulps, b.ulps), choose(a.own, b.own), choose(a.unit, b.unit),
          out_.Call("or_bool", Carrier::kBool, {a.has_nan, b.has_nan}),
          out_.Call("select_i32", Carrier::kI32, {first, a.test, b.test})};
}

Deciding RadiusWriter::Least(const Deciding& a, const Deciding& b) {
  return Chosen(Decides("decides_smaller", a.ulps, a, b.ulps, b), a, b);
}

Register RadiusWriter::Decides(const char* which, Register margin, const Deciding& of,
                               Register other, const Deciding& of_other) {
  return out_.Call(which, Carrier::kBool,
                   {margin, of.unit, of.test, other, of_other.unit, of_other.test});
}

Register RadiusWriter::SignedUlps(Register truth, const Deciding& of) {
  const Register negated = out_.Call("neg_f64", Carrier::kF64, {of.ulps});
  return out_.Call("select_f64", Carrier::kF64, {truth, of.ulps, negated});
}

Deciding RadiusWriter::OfAnd(Register a, const Deciding& of_a, Register b, const Deciding& of_b) {
  const Register first =
      Decides("decides_smaller", SignedUlps(a, of_a), of_a, SignedUlps(b, of_b), of_b);
  return Chosen(first, of_a, of_b);
}

Deciding RadiusWriter::OfOr(Register a, const Deciding& of_a, Register b, const Deciding& of_b) {
  const Register first =
      Decides("decides_larger", SignedUlps(a, of_a), of_a, SignedUlps(b, of_b), of_b);
  return Chosen(first, of_a, of_b);
}

// max(min(c, a), min(-c, b), min(a, b)).
Deciding RadiusWriter::OfSelect(Register c, const Deciding& of_c, Register a, const Deciding& of_a,
                                Register b, const Deciding& of_b) {
  const auto both = [&](Register p, Register q) {
    return out_.Call("and_bool", Carrier::kBool, {p, q});
  };
  const Register not_c = out_.Call("not_bool", Carrier::kBool, {c});
  const Deciding first = OfAnd(c, of_c, a, of_a);
  const Deciding second = OfAnd(not_c, of_c, b, of_b);
  const Register is_first = both(c, a);
  const Register is_second = both(not_c, b);
  const Deciding either = OfOr(is_first, first, is_second, second);
  const Register is_either = out_.Call("or_bool", Carrier::kBool, {is_first, is_second});
  return OfOr(is_either, either, both(a, b), OfAnd(a, of_a, b, of_b));
}

Deciding RadiusWriter::Taken(Register first, const Deciding& a, const Deciding& b) {
  Deciding taken = Chosen(first, a, b);
  taken.has_nan = out_.Call("select_bool", Carrier::kBool, {first, a.has_nan, b.has_nan});
  return taken;
}

// ---- in memory ----

Radius RadiusWriter::OfOne(const Deciding& of) {
  const auto view = [](Carrier carrier, Register all) { return View::Splat(carrier, {}, all); };
  return {view(Carrier::kF64, of.ulps), view(Carrier::kF64, of.own), view(Carrier::kF64, of.unit),
          view(Carrier::kBool, of.has_nan), view(Carrier::kI32, of.test)};
}

Radius RadiusWriter::Local(const Shape& shape) {
  return {out_.Local(Carrier::kF64, shape, "radius"), out_.Local(Carrier::kF64, shape, "margin"),
          out_.Local(Carrier::kF64, shape, "unit"), out_.Local(Carrier::kBool, shape, "has_nan"),
          out_.Local(Carrier::kI32, shape, "test")};
}

Deciding RadiusWriter::One(const Radius& radius) {
  if (!radius.set()) return NoTest();
  return {out_.One(radius.ulps), out_.One(radius.own), out_.One(radius.unit),
          out_.One(radius.has_nan), out_.One(radius.test)};
}

void RadiusWriter::Store(const Radius& to, const Deciding& of) {
  for (size_t k = 0; k < to.All().size(); ++k) out_.StoreOne(to.All()[k], of.All()[k]);
}

Deciding RadiusWriter::At(const Radius& radius, Register counter) {
  const auto at = [&](const View& view) {
    Index index = view.start;
    index.terms.emplace_back(counter, 1);
    return out_.Load(view, index);
  };
  return {at(radius.ulps), at(radius.own), at(radius.unit), at(radius.has_nan), at(radius.test)};
}

Deciding RadiusWriter::LeastOf(const Radius& radius, const Shape& shape) {
  const int64_t count = ElementCount(shape);
  if (!radius.set() || count == 0) return NoTest();
  if (radius.ulps.all != kNoRegister || count == 1) return One(radius);
  const Radius least = Local({});
  Store(least, NoTest());
  // Locals of their own, or elements of them: contiguous.
  out_.Each(count, false, [&](Register counter) {
    const Deciding one = At(radius, counter);
    Store(least, Least(One(least), one));
  });
  return One(least);
}

}  // namespace simgrad::sim::plan
