// Radii, on which predicates of loops depend: sim/program/decision_margin.h as statements.
#include <algorithm>
#include <limits>
#include <utility>

#include "sim/diagnostics/diagnostics.h"
#include "sim/op/op_info.h"
#include "sim/plan/region_maker.h"
#include "sim/program/axes.h"
#include "sim/program/decision_margin.h"
#include "sim/program/loop.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

using enum OpCode;

// Each element of the result is made of the same element of the operands.
bool IsByElement(const Op& op) {
  const OpClass op_class = InfoOf(op.code).op_class;
  return op_class == OpClass::kElementwise || op_class == OpClass::kCompare ||
         op_class == OpClass::kLogic || op_class == OpClass::kChoice || IsTest(op) ||
         op.code == kConvert || op.code == kIsFinite;
}

}  // namespace

// ---- of one element ----

RegionMaker::Deciding RegionMaker::NoTest() {
  const Register infinite = out_.Number(std::numeric_limits<double>::infinity());
  return {infinite, infinite, out_.Constant(Carrier::kF64, 0), out_.Constant(Carrier::kBool, 0),
          out_.Constant(Carrier::kI32, 0)};
}

// In the carrier of the format; `extra` may be none.
RegionMaker::Deciding RegionMaker::OfPair(Register a, Register b, Register extra, Format format,
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

RegionMaker::Deciding RegionMaker::OfConversion(const Op& op, Register x) {
  const Carrier carrier = out_.TypeOf(x);
  const Format format = program_[op.operands[0]].format.value_or(Format::kF64);
  const uint32_t test = tests_.Of(op.results[0]);
  if (program_[op.results[0]].type.element == ElementType::kBool) {
    return OfPair(x, out_.Constant(carrier, 0), kNoRegister, format, test);
  }
  const std::string_view suffix = precision::FormatName(format);
  const Register magnitude = out_.Call(Cat("abs_", suffix), carrier, {x});
  const Register nearest = out_.Call(Cat("round_", suffix), carrier, {magnitude});
  const Register other =
      out_.Call(Cat("max_", suffix), carrier, {nearest, out_.Constant(carrier, 1)});
  return OfPair(magnitude, other, kNoRegister, format, test);
}

RegionMaker::Deciding RegionMaker::OfIsFinite(const Op& op, Register x) {
  const Value& value = program_[op.operands[0]];
  const Format format = *value.format;
  const Carrier carrier = CarrierOf(value);
  const Register most = out_.NumberLike(precision::Traits(format).max_finite, value, "");
  const Register magnitude = out_.Call(Cat("abs_", precision::FormatName(format)), carrier, {x});
  const Register is_finite =
      out_.Call(Cat("is_finite_", CarrierName(carrier)), Carrier::kBool, {x});
  const Register finite =
      out_.Call(Cat("select_", CarrierName(carrier)), carrier, {is_finite, magnitude, most});
  Deciding of = OfPair(finite, most, kNoRegister, format, tests_.Of(op.results[0]));
  const Register infinite = out_.Number(std::numeric_limits<double>::infinity());
  of.ulps = out_.Call("select_f64", Carrier::kF64, {is_finite, of.ulps, infinite});
  of.own = out_.Call("select_f64", Carrier::kF64, {is_finite, of.own, infinite});
  return of;
}

RegionMaker::Deciding RegionMaker::Chosen(Register first, const Deciding& a, const Deciding& b) {
  const auto choose = [&](Register of_a, Register of_b) {
    return out_.Call("select_f64", Carrier::kF64, {first, of_a, of_b});
  };
  return {choose(a.ulps, b.ulps), choose(a.own, b.own), choose(a.unit, b.unit),
          out_.Call("or_bool", Carrier::kBool, {a.has_nan, b.has_nan}),
          out_.Call("select_i32", Carrier::kI32, {first, a.test, b.test})};
}

RegionMaker::Deciding RegionMaker::Least(const Deciding& a, const Deciding& b) {
  return Chosen(Decides("decides_smaller", a.ulps, a, b.ulps, b), a, b);
}

Register RegionMaker::Decides(const char* which, Register margin, const Deciding& of,
                              Register other, const Deciding& of_other) {
  return out_.Call(which, Carrier::kBool,
                   {margin, of.unit, of.test, other, of_other.unit, of_other.test});
}

Register RegionMaker::SignedUlps(Register truth, const Deciding& of) {
  const Register negated = out_.Call("neg_f64", Carrier::kF64, {of.ulps});
  return out_.Call("select_f64", Carrier::kF64, {truth, of.ulps, negated});
}

RegionMaker::Deciding RegionMaker::OfAnd(Register a, const Deciding& of_a, Register b,
                                         const Deciding& of_b) {
  const Register first =
      Decides("decides_smaller", SignedUlps(a, of_a), of_a, SignedUlps(b, of_b), of_b);
  return Chosen(first, of_a, of_b);
}

RegionMaker::Deciding RegionMaker::OfOr(Register a, const Deciding& of_a, Register b,
                                        const Deciding& of_b) {
  const Register first =
      Decides("decides_larger", SignedUlps(a, of_a), of_a, SignedUlps(b, of_b), of_b);
  return Chosen(first, of_a, of_b);
}

// max(min(c, a), min(-c, b), min(a, b)).
RegionMaker::Deciding RegionMaker::OfSelect(Register c, const Deciding& of_c, Register a,
                                            const Deciding& of_a, Register b,
                                            const Deciding& of_b) {
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

// ---- of values ----

Radius RegionMaker::RadiusOfOne(const Deciding& of) const {
  const auto view = [](Carrier carrier, Register all) { return View::Splat(carrier, {}, all); };
  return {view(Carrier::kF64, of.ulps), view(Carrier::kF64, of.own), view(Carrier::kF64, of.unit),
          view(Carrier::kBool, of.has_nan), view(Carrier::kI32, of.test)};
}

Radius RegionMaker::LocalRadius(const Shape& shape) {
  return {out_.Local(Carrier::kF64, shape, "radius"), out_.Local(Carrier::kF64, shape, "margin"),
          out_.Local(Carrier::kF64, shape, "unit"), out_.Local(Carrier::kBool, shape, "has_nan"),
          out_.Local(Carrier::kI32, shape, "test")};
}

RegionMaker::Deciding RegionMaker::OneOf(const Radius& radius) {
  if (!radius.set()) return NoTest();
  return {out_.One(radius.ulps), out_.One(radius.own), out_.One(radius.unit),
          out_.One(radius.has_nan), out_.One(radius.test)};
}

void RegionMaker::StoreDeciding(const Radius& to, const Deciding& of) {
  out_.StoreOne(to.ulps, of.ulps);
  out_.StoreOne(to.own, of.own);
  out_.StoreOne(to.unit, of.unit);
  out_.StoreOne(to.has_nan, of.has_nan);
  out_.StoreOne(to.test, of.test);
}

RegionMaker::Deciding RegionMaker::LeastOf(ValueId id) {
  if (!HasRadius(id)) return NoTest();
  return LeastOf(radii_[Index_(id)], program_[id].type.shape);
}

RegionMaker::Deciding RegionMaker::LeastOf(const Radius& radius, const Shape& shape) {
  const int64_t count = ElementCount(shape);
  if (!radius.set() || count == 0) return NoTest();
  if (radius.ulps.all != kNoRegister || count == 1) return OneOf(radius);
  const Radius least = LocalRadius({});
  StoreDeciding(least, NoTest());
  // Locals of their own, or elements of them: contiguous.
  out_.Each(count, false, [&](Register counter) {
    const auto at = [&](const View& view) {
      Index index = view.start;
      index.terms.emplace_back(counter, 1);
      return out_.Load(view, index);
    };
    const Deciding one = {at(radius.ulps), at(radius.own), at(radius.unit), at(radius.has_nan),
                          at(radius.test)};
    StoreDeciding(least, Least(OneOf(least), one));
  });
  return OneOf(least);
}

// The radius of `any` or `all` over all elements.
RegionMaker::Deciding RegionMaker::OfAnyOrAll(OpCode code, ValueId truths) {
  const bool is_any = code == kAny;
  const View view = out_.ContiguousOf(values_.ViewOf(truths));
  const Radius& radius = radii_[Index_(truths)];
  const Radius deciding = LocalRadius({});
  const View held = out_.Local(Carrier::kBool, {}, is_any ? "any" : "all");
  StoreDeciding(deciding, NoTest());
  out_.StoreOne(held, out_.Constant(Carrier::kBool, is_any ? 0 : 1));
  out_.Each(ElementCount(view.shape), false, [&](Register counter) {
    const auto at = [&](const View& of) {
      Index index = of.start;
      index.terms.emplace_back(counter, 1);
      return out_.Load(of, index);
    };
    const Register truth = at(view);
    const Deciding one = radius.set() ? Deciding{at(radius.ulps), at(radius.own), at(radius.unit),
                                                 at(radius.has_nan), at(radius.test)}
                                      : NoTest();
    const Register before = out_.One(held);
    StoreDeciding(deciding, is_any ? OfOr(before, OneOf(deciding), truth, one)
                                   : OfAnd(before, OneOf(deciding), truth, one));
    out_.StoreOne(held,
                  out_.Call(is_any ? "or_bool" : "and_bool", Carrier::kBool, {before, truth}));
  });
  return OneOf(deciding);
}

void RegionMaker::SetRadius(const Op& op) {
  if (op.code == kWhile || op.code == kFor || op.results.empty() || !HasRadius(op.results[0])) {
    return;
  }
  if (IsByElement(op)) {
    ElementRadii(op);
    const auto joint = tests_.joint.find(op.results[0]);
    if (joint == tests_.joint.end()) return;
    Deciding least = LeastOf(op.results[0]);
    for (ValueId key : joint->second) least = Least(least, LeastOf(key));
    radii_[Index_(op.results[0])] = RadiusOfOne(least);
    return;
  }
  Radius& radius = radii_[Index_(op.results[0])];
  const bool reads_reals = std::any_of(op.operands.begin(), op.operands.end(),
                                       [&](ValueId id) { return program_.IsReal(id); });
  if (reads_reals) {
    const Register none = out_.Constant(Carrier::kF64, 0);
    radius = RadiusOfOne({none, none, out_.Number(0x1p52), out_.Constant(Carrier::kBool, 0),
                          out_.Constant(Carrier::kI32, int64_t{tests_.Of(op.results[0])})});
    return;
  }
  if ((op.code == kAny || op.code == kAll) &&
      ElementCount(program_[op.results[0]].type.shape) == 1) {
    const Deciding deciding = OfAnyOrAll(op.code, op.operands[0]);
    radii_[Index_(op.results[0])] = RadiusOfOne(deciding);
    return;
  }
  Deciding least = NoTest();
  for (ValueId operand : op.operands) {
    if (HasRadius(operand)) least = Least(least, LeastOf(operand));
  }
  radius = RadiusOfOne(least);
}

void RegionMaker::ElementRadii(const Op& op) {
  const Value& result = program_[op.results[0]];
  const Shape& shape = result.type.shape;
  std::vector<View> views = values_.ViewsOf(op.operands);
  std::vector<size_t> at(op.operands.size());  // of the radii; 0: there is none
  for (size_t k = 0; k < op.operands.size(); ++k) {
    if (!HasRadius(op.operands[k]) || !radii_[Index_(op.operands[k])].set()) continue;
    const Radius& radius = radii_[Index_(op.operands[k])];
    at[k] = views.size();
    for (const View* view :
         {&radius.ulps, &radius.own, &radius.unit, &radius.has_nan, &radius.test}) {
      views.push_back(*view);
    }
  }
  const bool compares = IsTest(op) || ComparesTwo(op);
  const size_t compared = op.code == kChoice ? 1 : 0;
  Summands of_lhs, of_rhs;
  if (compares && program_.IsReal(op.operands[compared])) {
    of_lhs = scales_.SummandsOf(op.operands[compared], views);
    of_rhs = scales_.SummandsOf(op.operands[compared + 1], views);
  }
  const bool is_one = ElementCount(shape) == 1;
  const Radius to = is_one ? Radius{} : LocalRadius(shape);
  const size_t own = views.size();
  if (!is_one) {
    for (const View* view : {&to.ulps, &to.own, &to.unit, &to.has_nan, &to.test}) {
      views.push_back(*view);
    }
  }
  Deciding made;
  out_.EachElement(shape, views, [&](const Read& read, const Places& place) {
    const auto radius = [&](size_t k) {
      if (at[k] == 0) return NoTest();
      return Deciding{read(at[k]), read(at[k] + 1), read(at[k] + 2), read(at[k] + 3),
                      read(at[k] + 4)};
    };
    made = ElementRadius(op, read, radius, [&] { return scales_.Extra(of_lhs, of_rhs, read); });
    if (is_one) return;
    out_.Store(to.ulps, place(own), made.ulps);
    out_.Store(to.own, place(own + 1), made.own);
    out_.Store(to.unit, place(own + 2), made.unit);
    out_.Store(to.has_nan, place(own + 3), made.has_nan);
    out_.Store(to.test, place(own + 4), made.test);
  });
  radii_[Index_(op.results[0])] = is_one ? RadiusOfOne(made) : to;
}

RegionMaker::Deciding RegionMaker::ElementRadius(const Op& op, const Read& read,
                                                 const std::function<Deciding(size_t)>& radius,
                                                 const std::function<Register()>& extra) {
  const auto compared = [&] {
    const size_t first = op.code == kChoice ? 1 : 0;
    const Value& lhs = program_[op.operands[first]];
    if (lhs.type.element != ElementType::kReal) return Least(radius(0), radius(1));
    const Register a = read(first);
    const Register b = read(first + 1);
    return OfPair(a, b, extra(), *lhs.format, tests_.Of(op.results[0]));
  };
  if (op.code == kEvent && op.operands.size() > 2) {
    const Deciding of_compared = compared();
    const Register held = out_.Call(ComparisonFunction(op), Carrier::kBool, {read(0), read(1)});
    return OfAnd(read(2), radius(2), held, of_compared);
  }
  if (IsTest(op) || ComparesTwo(op)) return compared();
  const bool is_bool = program_[op.results[0]].type.element == ElementType::kBool;
  if (op.code == kAnd && is_bool) return OfAnd(read(0), radius(0), read(1), radius(1));
  if (op.code == kOr && is_bool) return OfOr(read(0), radius(0), read(1), radius(1));
  if (op.code == kSelect) {
    if (is_bool) {
      return OfSelect(read(0), radius(0), read(1), radius(1), read(2), radius(2));
    }
    return Least(radius(0), Taken(read(0), radius(1), radius(2)));
  }
  if (op.code == kConvert && program_.IsReal(op.operands[0])) return OfConversion(op, read(0));
  if (op.code == kIsFinite) return OfIsFinite(op, read(0));
  Deciding least = NoTest();
  for (size_t k = 0; k < op.operands.size(); ++k) {
    if (!program_.IsReal(op.operands[k])) least = Least(least, radius(k));
  }
  return least;
}

// That of the branch taken.
RegionMaker::Deciding RegionMaker::Taken(Register first, const Deciding& a, const Deciding& b) {
  Deciding taken = Chosen(first, a, b);
  taken.has_nan = out_.Call("select_bool", Carrier::kBool, {first, a.has_nan, b.has_nan});
  return taken;
}

// ---- loops ----

std::vector<Radius> RegionMaker::CarryRadii(std::span<const ValueId> ids) {
  std::vector<Radius> radii;
  for (ValueId id : ids) {
    if (!HasRadius(id)) {
      radii.push_back({});
      continue;
    }
    const Deciding start = LeastOf(id);
    radii.push_back(LocalRadius({}));
    StoreDeciding(radii.back(), start);
  }
  return radii;
}

// The radii of what a `for` stacks: each is the least of all turns.
std::vector<Radius> RegionMaker::StackRadii(const Op& op) {
  std::vector<Radius> radii;
  for (size_t k = static_cast<size_t>(op.attributes.carried); k < op.results.size(); ++k) {
    radii.push_back(HasRadius(op.results[k]) ? LocalRadius({}) : Radius{});
    if (radii.back().set()) StoreDeciding(radii.back(), NoTest());
  }
  return radii;
}

void RegionMaker::MoveRadii(const std::vector<Radius>& to, std::span<const ValueId> from) {
  std::vector<Deciding> next;
  for (size_t k = 0; k < to.size(); ++k) {
    next.push_back(to[k].set() ? LeastOf(from[k]) : Deciding{});
  }
  for (size_t k = 0; k < to.size(); ++k) {
    if (to[k].set()) StoreDeciding(to[k], next[k]);
  }
}

void RegionMaker::BindRadii(std::span<const ValueId> ids, const std::vector<Radius>& radii) {
  for (size_t k = 0; k < radii.size(); ++k) {
    if (HasRadius(ids[k])) radii_[Index_(ids[k])] = RadiusOfOne(OneOf(radii[k]));
  }
}

RegionMaker::LoopRadii RegionMaker::RadiiOf(const Op& op) {
  LoopRadii radii;
  if (behind_.empty() || !records_.decides) return radii;
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  const bool per_element = op.attributes.elements > 0;
  const auto start = [&](ValueId id) {
    if (!per_element) return LeastOf(id);
    const Radius& whole = radii_[Index_(id)];
    Shape shape = program_[id].type.shape;
    shape.erase(shape.begin());
    if (!whole.set() || whole.ulps.all != kNoRegister) return OneOf(whole);
    const auto part = [&](const View& view) { return ElementOf(view, run_); };
    return LeastOf({part(whole.ulps), part(whole.own), part(whole.unit), part(whole.has_nan),
                    part(whole.test)},
                   shape);
  };
  for (size_t k = 0; k < op.operands.size(); ++k) {
    Radius radius;
    if (HasRadius(op.operands[k])) {
      const Deciding first = start(op.operands[k]);
      radius = LocalRadius({});
      StoreDeciding(radius, first);
    }
    if (k < c) radii.carried.push_back(radius);
    radii.entering.push_back(radius);
  }
  for (size_t k = 0; k < static_cast<size_t>(counts.exports); ++k) {
    const bool asked = HasRadius(op.regions[0].yields[FirstExport(op) + k]);
    radii.exports.push_back(asked ? LocalRadius({}) : Radius{});
  }
  for (ValueId id : op.results) {
    if (!HasRadius(id) || radii.tests.set()) continue;
    radii.tests = LocalRadius({});
    StoreDeciding(radii.tests, NoTest());
  }
  return radii;
}

void RegionMaker::TellRadii(const Op& op, const LoopRadii& radii, const View& iterations) {
  const Region& test = op.regions[0];
  for (size_t k = 0; k < radii.exports.size(); ++k) {
    if (radii.exports[k].set()) {
      StoreDeciding(radii.exports[k], LeastOf(test.yields[FirstExport(op) + k]));
    }
  }
  if (!radii.tests.set()) return;
  const Deciding tested = TestRadius(op, iterations);
  StoreDeciding(radii.tests, Least(OneOf(radii.tests), tested));
}

void RegionMaker::BindBodyRadii(const Op& op, const LoopRadii& radii) {
  const std::span<const ValueId> args(op.regions[1].args);
  const size_t c = radii.carried.size();
  BindRadii(args, radii.carried);
  BindRadii(args.subspan(c), radii.exports);
  const auto mapped = radii.entering.begin() + static_cast<std::ptrdiff_t>(c);
  BindRadii(args.subspan(c + radii.exports.size()), {mapped, radii.entering.end()});
}

// The radii over all runs of a loop per element; empty if none is asked for.
std::vector<Radius> RegionMaker::JoinedRadii(const Op& op) {
  std::vector<Radius> joined;
  const bool asked =
      std::any_of(op.results.begin(), op.results.end(), [&](ValueId id) { return HasRadius(id); });
  for (size_t k = 0; asked && k < op.results.size(); ++k) {
    joined.push_back(HasRadius(op.results[k]) ? LocalRadius({}) : Radius{});
    if (joined.back().set()) StoreDeciding(joined.back(), NoTest());
  }
  return joined;
}

// The radius of a run's results is at most that of its tests.
void RegionMaker::GiveRadii(const Op& op, const LoopRadii& radii,
                            const std::vector<Radius>& joined) {
  const size_t c = radii.carried.size();
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (!HasRadius(op.results[k])) continue;
    const bool counts = k + 1 == op.results.size();
    const Deciding own = counts  ? NoTest()
                         : k < c ? OneOf(radii.carried[k])
                                 : OneOf(radii.exports[k - c]);
    const Deciding given = Least(own, OneOf(radii.tests));
    if (joined.empty()) {
      radii_[Index_(op.results[k])] = RadiusOfOne(given);
    } else {
      StoreDeciding(joined[k], Least(OneOf(joined[k]), given));
    }
  }
}

// The radius of the test that was just evaluated; the entry test counts with the first one.
RegionMaker::Deciding RegionMaker::TestRadius(const Op& op, const View& iterations) {
  const Region& test = op.regions[0];
  if (op.attributes.predicate) return LeastOf(test.yields[0]);
  const auto against = [&](size_t k) {
    std::vector<View> views = {values_.ViewOf(test.yields[0]), values_.ViewOf(test.yields[k])};
    const Summands of_lhs = scales_.SummandsOf(test.yields[0], views);
    const Summands of_rhs = scales_.SummandsOf(test.yields[k], views);
    const Read read = [&](size_t v) { return out_.One(views[v]); };
    const Register a = read(0);
    const Register b = read(1);
    return OfPair(a, b, scales_.Extra(of_lhs, of_rhs, read), *program_[test.yields[0]].format,
                  tests_.Of(op.attributes.site));
  };
  const Deciding tested = against(1);
  if (!op.attributes.has_entry) return tested;
  const Register is_first =
      out_.Call("eq_i32", Carrier::kBool, {out_.One(iterations), out_.Constant(Carrier::kI32, 0)});
  const Deciding entered = Least(against(2), tested);
  return Taken(is_first, entered, tested);
}

// Records the evaluation of a predicate; `why` becomes why the loop would stop here.
void RegionMaker::Predicate(const Op& op, const Deciding& of, Register held, const View& why) {
  const Register zero = out_.Constant(Carrier::kF64, 0);
  out_.Emit({.code = Code::kTest,
             .operands = {of.own, zero, held, of.test},
             .site = SiteNumber(op.attributes.site),
             .extra = of.unit,
             .format = Format::kF64});
  const Register none = out_.Call("eq_f64", Carrier::kBool, {of.unit, zero});
  const Register by_counter = out_.Call("and_bool", Carrier::kBool, {none, held});
  const Register counter = out_.Constant(Carrier::kI32, static_cast<int64_t>(StopReason::kCounter));
  out_.StoreOne(why, out_.Call("select_i32", Carrier::kI32, {by_counter, counter, out_.One(why)}));
}

}  // namespace simgrad::sim::plan
