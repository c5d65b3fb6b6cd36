#include "sim/plan/radii.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/axes.h"
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

Radii::Radii(const NumericalProgram& numerical, bool decides, Values& values, ScaleWriter& scales,
             StatementWriter& out)
    : program_(numerical.program), values_(values), scales_(scales), out_(out), writer_(out) {
  if (!decides) return;
  behind_ = BehindPredicates(program_);
  if (behind_.empty()) return;
  radii_.resize(behind_.size());
  tests_ = DecidingTestsOf(program_, numerical.sites);
}

void Radii::Set(const Op& op) {
  if (op.code == kWhile || op.code == kFor || op.results.empty() || !Has(op.results[0])) {
    return;
  }
  if (IsByElement(op)) {
    SetByElement(op);
    const auto joint = tests_.joint.find(op.results[0]);
    if (joint == tests_.joint.end()) return;
    Deciding least = LeastOf(op.results[0]);
    for (ValueId key : joint->second) least = writer_.Least(least, LeastOf(key));
    radii_[sim::Index(op.results[0])] = writer_.OfOne(least);
    return;
  }
  Radius& radius = radii_[sim::Index(op.results[0])];
  const bool reads_reals = std::any_of(op.operands.begin(), op.operands.end(),
                                       [&](ValueId id) { return program_.IsReal(id); });
  if (reads_reals) {
    const Register none = out_.Constant(Carrier::kF64, 0);
    radius = writer_.OfOne({none, none, out_.Number(0x1p52), out_.Constant(Carrier::kBool, 0),
                            out_.Constant(Carrier::kI32, int64_t{tests_.Of(op.results[0])})});
    return;
  }
  if ((op.code == kAny || op.code == kAll) &&
      ElementCount(program_[op.results[0]].type.shape) == 1) {
    const Deciding deciding = OfAnyOrAll(op.code, op.operands[0]);
    radii_[sim::Index(op.results[0])] = writer_.OfOne(deciding);
    return;
  }
  Deciding least = writer_.NoTest();
  for (ValueId operand : op.operands) {
    if (Has(operand)) least = writer_.Least(least, LeastOf(operand));
  }
  radius = writer_.OfOne(least);
}

void Radii::SetByElement(const Op& op) {
  const Value& result = program_[op.results[0]];
  const Shape& shape = result.type.shape;
  std::vector<View> views = values_.ViewsOf(op.operands);
  std::vector<size_t> at(op.operands.size());  // of the radii; 0: there is none
  for (size_t k = 0; k < op.operands.size(); ++k) {
    if (!Has(op.operands[k]) || !radii_[sim::Index(op.operands[k])].set()) continue;
    const Radius& radius = radii_[sim::Index(op.operands[k])];
    at[k] = views.size();
    for (const View& view : radius.All()) views.push_back(view);
  }
  const bool compares = IsTest(op) || ComparesTwo(op);
  const size_t compared = op.code == kChoice ? 1 : 0;
  Summands of_lhs, of_rhs;
  if (compares && program_.IsReal(op.operands[compared])) {
    of_lhs = scales_.SummandsOf(op.operands[compared], views);
    of_rhs = scales_.SummandsOf(op.operands[compared + 1], views);
  }
  const bool is_one = ElementCount(shape) == 1;
  const Radius to = is_one ? Radius{} : writer_.Local(shape);
  const std::array<View, 5> all = to.All();
  const size_t own = views.size();
  if (!is_one) views.insert(views.end(), all.begin(), all.end());
  Deciding made;
  out_.EachElement(shape, views, [&](const Read& read, const Places& place) {
    const auto radius = [&](size_t k) {
      if (at[k] == 0) return writer_.NoTest();
      return Deciding{read(at[k]), read(at[k] + 1), read(at[k] + 2), read(at[k] + 3),
                      read(at[k] + 4)};
    };
    made = OfElement(op, read, radius, [&] { return scales_.Extra(of_lhs, of_rhs, read); });
    if (is_one) return;
    for (size_t k = 0; k < all.size(); ++k) out_.Store(all[k], place(own + k), made.All()[k]);
  });
  radii_[sim::Index(op.results[0])] = is_one ? writer_.OfOne(made) : to;
}

Deciding Radii::OfElement(const Op& op, const Read& read,
                          const std::function<Deciding(size_t)>& radius,
                          const std::function<Register()>& extra) {
  const auto compared = [&] {
    const size_t first = op.code == kChoice ? 1 : 0;
    const Value& lhs = program_[op.operands[first]];
    if (lhs.type.element != ElementType::kReal) return writer_.Least(radius(0), radius(1));
    const Register a = read(first);
    const Register b = read(first + 1);
    return writer_.OfPair(a, b, extra(), *lhs.format, tests_.Of(op.results[0]));
  };
  if (op.code == kEvent && op.operands.size() > 2) {
    const Deciding of_compared = compared();
    const Register held =
        out_.Call(ComparisonFunction(op.attributes.comparison, program_[op.operands[0]]),
                  Carrier::kBool, {read(0), read(1)});
    return writer_.OfAnd(read(2), radius(2), held, of_compared);
  }
  if (IsTest(op) || ComparesTwo(op)) return compared();
  const bool is_bool = program_[op.results[0]].type.element == ElementType::kBool;
  if (op.code == kAnd && is_bool) return writer_.OfAnd(read(0), radius(0), read(1), radius(1));
  if (op.code == kOr && is_bool) return writer_.OfOr(read(0), radius(0), read(1), radius(1));
  if (op.code == kSelect) {
    if (is_bool) {
      return writer_.OfSelect(read(0), radius(0), read(1), radius(1), read(2), radius(2));
    }
    return writer_.Least(radius(0), writer_.Taken(read(0), radius(1), radius(2)));
  }
  if (op.code == kConvert && program_.IsReal(op.operands[0])) return OfConversion(op, read(0));
  if (op.code == kIsFinite) return OfIsFinite(op, read(0));
  Deciding least = writer_.NoTest();
  for (size_t k = 0; k < op.operands.size(); ++k) {
    if (!program_.IsReal(op.operands[k])) least = writer_.Least(least, radius(k));
  }
  return least;
}

Deciding Radii::OfConversion(const Op& op, Register x) {
  const Carrier carrier = out_.TypeOf(x);
  const Format format = program_[op.operands[0]].format.value_or(Format::kF64);
  const uint32_t test = tests_.Of(op.results[0]);
  if (program_[op.results[0]].type.element == ElementType::kBool) {
    return writer_.OfPair(x, out_.Constant(carrier, 0), kNoRegister, format, test);
  }
  const std::string_view suffix = precision::FormatName(format);
  const Register magnitude = out_.Call(Cat("abs_", suffix), carrier, {x});
  const Register nearest = out_.Call(Cat("round_", suffix), carrier, {magnitude});
  const Register other =
      out_.Call(Cat("max_", suffix), carrier, {nearest, out_.Constant(carrier, 1)});
  return writer_.OfPair(magnitude, other, kNoRegister, format, test);
}

Deciding Radii::OfIsFinite(const Op& op, Register x) {
  const Value& value = program_[op.operands[0]];
  const Format format = *value.format;
  const Carrier carrier = CarrierOf(value);
  const Register most = out_.NumberLike(precision::Traits(format).max_finite, value, "");
  const Register magnitude = out_.Call(Cat("abs_", precision::FormatName(format)), carrier, {x});
  const Register is_finite =
      out_.Call(Cat("is_finite_", CarrierName(carrier)), Carrier::kBool, {x});
  const Register finite =
      out_.Call(Cat("select_", CarrierName(carrier)), carrier, {is_finite, magnitude, most});
  Deciding of = writer_.OfPair(finite, most, kNoRegister, format, tests_.Of(op.results[0]));
  const Register infinite = out_.Number(std::numeric_limits<double>::infinity());
  of.ulps = out_.Call("select_f64", Carrier::kF64, {is_finite, of.ulps, infinite});
  of.own = out_.Call("select_f64", Carrier::kF64, {is_finite, of.own, infinite});
  return of;
}

// The radius of `any` or `all` over all elements.
Deciding Radii::OfAnyOrAll(OpCode code, ValueId truths) {
  const bool is_any = code == kAny;
  const View view = out_.ContiguousOf(values_.ViewOf(truths));
  const Radius& radius = radii_[sim::Index(truths)];
  const Radius deciding = writer_.Local({});
  const View held = out_.Local(Carrier::kBool, {}, is_any ? "any" : "all");
  writer_.Store(deciding, writer_.NoTest());
  out_.StoreOne(held, out_.Constant(Carrier::kBool, is_any ? 0 : 1));
  out_.Each(ElementCount(view.shape), false, [&](Register counter) {
    Index index = view.start;
    index.terms.emplace_back(counter, 1);
    const Register truth = out_.Load(view, index);
    const Deciding one = radius.set() ? writer_.At(radius, counter) : writer_.NoTest();
    const Register before = out_.One(held);
    writer_.Store(deciding, is_any ? writer_.OfOr(before, writer_.One(deciding), truth, one)
                                   : writer_.OfAnd(before, writer_.One(deciding), truth, one));
    out_.StoreOne(held,
                  out_.Call(is_any ? "or_bool" : "and_bool", Carrier::kBool, {before, truth}));
  });
  return writer_.One(deciding);
}

Deciding Radii::LeastOf(ValueId id) {
  if (!Has(id)) return writer_.NoTest();
  return writer_.LeastOf(radii_[sim::Index(id)], program_[id].type.shape);
}

// ---- loops ----

std::vector<Radius> Radii::Carry(std::span<const ValueId> ids) {
  std::vector<Radius> radii;
  for (ValueId id : ids) {
    if (!Has(id)) {
      radii.push_back({});
      continue;
    }
    const Deciding start = LeastOf(id);
    radii.push_back(writer_.Local({}));
    writer_.Store(radii.back(), start);
  }
  return radii;
}

// The radii of what a `for` stacks: each is the least of all turns.
std::vector<Radius> Radii::Stack(const Op& op) {
  std::vector<Radius> radii;
  for (size_t k = static_cast<size_t>(op.attributes.carried); k < op.results.size(); ++k) {
    radii.push_back(Has(op.results[k]) ? writer_.Local({}) : Radius{});
    if (radii.back().set()) writer_.Store(radii.back(), writer_.NoTest());
  }
  return radii;
}

void Radii::Gather(const Radius& to, ValueId of_turn) {
  if (to.set()) writer_.Store(to, writer_.Least(writer_.One(to), LeastOf(of_turn)));
}

void Radii::Move(const std::vector<Radius>& to, std::span<const ValueId> from) {
  std::vector<Deciding> next;
  for (size_t k = 0; k < to.size(); ++k) {
    next.push_back(to[k].set() ? LeastOf(from[k]) : Deciding{});
  }
  for (size_t k = 0; k < to.size(); ++k) {
    if (to[k].set()) writer_.Store(to[k], next[k]);
  }
}

void Radii::Bind(std::span<const ValueId> ids, const std::vector<Radius>& radii) {
  for (size_t k = 0; k < radii.size(); ++k) {
    if (Has(ids[k])) radii_[sim::Index(ids[k])] = writer_.OfOne(writer_.One(radii[k]));
  }
}

LoopRadii Radii::OfRun(const Op& op, Register run) {
  LoopRadii radii;
  if (behind_.empty()) return radii;
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  const bool per_element = op.attributes.elements > 0;
  const auto start = [&](ValueId id) {
    if (!per_element) return LeastOf(id);
    const Radius& whole = radii_[sim::Index(id)];
    Shape shape = program_[id].type.shape;
    shape.erase(shape.begin());
    if (!whole.set() || whole.ulps.all != kNoRegister) return writer_.One(whole);
    const auto part = [&](const View& view) { return ElementOf(view, run); };
    return writer_.LeastOf({part(whole.ulps), part(whole.own), part(whole.unit),
                            part(whole.has_nan), part(whole.test)},
                           shape);
  };
  for (size_t k = 0; k < op.operands.size(); ++k) {
    Radius radius;
    if (Has(op.operands[k])) {
      const Deciding first = start(op.operands[k]);
      radius = writer_.Local({});
      writer_.Store(radius, first);
    }
    if (k < c) radii.carried.push_back(radius);
    radii.entering.push_back(radius);
  }
  for (size_t k = 0; k < static_cast<size_t>(counts.exports); ++k) {
    const bool asked = Has(op.regions[0].yields[FirstExport(op) + k]);
    radii.exports.push_back(asked ? writer_.Local({}) : Radius{});
  }
  for (ValueId id : op.results) {
    if (!Has(id) || radii.tests.set()) continue;
    radii.tests = writer_.Local({});
    writer_.Store(radii.tests, writer_.NoTest());
  }
  return radii;
}

void Radii::Tell(const Op& op, const LoopRadii& radii, const View& iterations) {
  const Region& test = op.regions[0];
  for (size_t k = 0; k < radii.exports.size(); ++k) {
    if (radii.exports[k].set()) {
      writer_.Store(radii.exports[k], LeastOf(test.yields[FirstExport(op) + k]));
    }
  }
  if (!radii.tests.set()) return;
  const Deciding tested = OfTest(op, iterations);
  writer_.Store(radii.tests, writer_.Least(writer_.One(radii.tests), tested));
}

void Radii::BindBody(const Op& op, const LoopRadii& radii) {
  const std::span<const ValueId> args(op.regions[1].args);
  const size_t c = radii.carried.size();
  Bind(args, radii.carried);
  Bind(args.subspan(c), radii.exports);
  const auto mapped = radii.entering.begin() + static_cast<std::ptrdiff_t>(c);
  Bind(args.subspan(c + radii.exports.size()), {mapped, radii.entering.end()});
}

// The radii over all runs of a loop per element; empty if none is asked for.
std::vector<Radius> Radii::Joined(const Op& op) {
  std::vector<Radius> joined;
  const bool asked =
      std::any_of(op.results.begin(), op.results.end(), [&](ValueId id) { return Has(id); });
  for (size_t k = 0; asked && k < op.results.size(); ++k) {
    joined.push_back(Has(op.results[k]) ? writer_.Local({}) : Radius{});
    if (joined.back().set()) writer_.Store(joined.back(), writer_.NoTest());
  }
  return joined;
}

// The radius of a run's results is at most that of its tests.
void Radii::Give(const Op& op, const LoopRadii& radii, const std::vector<Radius>& joined) {
  const size_t c = radii.carried.size();
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (!Has(op.results[k])) continue;
    const bool counts = k + 1 == op.results.size();
    const Deciding own = counts  ? writer_.NoTest()
                         : k < c ? writer_.One(radii.carried[k])
                                 : writer_.One(radii.exports[k - c]);
    const Deciding given = writer_.Least(own, writer_.One(radii.tests));
    if (joined.empty()) {
      radii_[sim::Index(op.results[k])] = writer_.OfOne(given);
    } else {
      writer_.Store(joined[k], writer_.Least(writer_.One(joined[k]), given));
    }
  }
}

// The radius of the test that was just evaluated; the entry test counts with the first one.
Deciding Radii::OfTest(const Op& op, const View& iterations) {
  const Region& test = op.regions[0];
  if (op.attributes.predicate) return LeastOf(test.yields[0]);
  const auto against = [&](size_t k) {
    std::vector<View> views = {values_.ViewOf(test.yields[0]), values_.ViewOf(test.yields[k])};
    const Summands of_lhs = scales_.SummandsOf(test.yields[0], views);
    const Summands of_rhs = scales_.SummandsOf(test.yields[k], views);
    const Read read = [&](size_t v) { return out_.One(views[v]); };
    const Register a = read(0);
    const Register b = read(1);
    return writer_.OfPair(a, b, scales_.Extra(of_lhs, of_rhs, read),
                          *program_[test.yields[0]].format, tests_.Of(op.attributes.site));
  };
  const Deciding tested = against(1);
  if (!op.attributes.has_entry) return tested;
  const Register is_first =
      out_.Call("eq_i32", Carrier::kBool, {out_.One(iterations), out_.Constant(Carrier::kI32, 0)});
  const Deciding entered = writer_.Least(against(2), tested);
  return writer_.Taken(is_first, entered, tested);
}

}  // namespace simgrad::sim::plan
