// Sites: events, while and for; the pseudocode of sim/program/loop.h as statements.
#include <algorithm>
#include <array>
#include <utility>

#include "sim/diagnostics/diagnostics.h"
#include "sim/op/op_info.h"
#include "sim/plan/region_maker.h"
#include "sim/program/axes.h"
#include "sim/program/loop.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

int64_t StopReasonNumber(StopReason reason) { return static_cast<int64_t>(reason); }

}  // namespace

void RegionMaker::While(const Op& op) {
  if (op.attributes.elements > 0) return MappedWhile(op);
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  const size_t first_export = FirstExport(op);
  std::vector<View> carried;
  std::vector<View> exports;
  const auto local = [&](ValueId id) {
    const Value& value = program_[id];
    return out_.Local(CarrierOf(value), value.type.shape, value.name);
  };
  for (size_t k = 0; k < c; ++k) {
    carried.push_back(local(op.operands[k]));
    out_.Copy(carried.back(), values_.ViewOf(op.operands[k]));
  }
  for (size_t k = 0; k < static_cast<size_t>(counts.exports); ++k) {
    exports.push_back(local(op.regions[0].yields[first_export + k]));
  }
  const View iterations = out_.Local(Carrier::kI32, {}, "iterations");
  const LoopRadii radii = radii_.OfRun(op, out_.around().run);
  WhileRun(op, carried, {}, exports, iterations, radii);
  radii_.Give(op, radii, {});
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (op.results[k] == ValueId::kNone) continue;
    const bool is_count = k + 1 == op.results.size();
    values_.Bind(op.results[k], is_count ? iterations : k < c ? carried[k] : exports[k - c]);
  }
}

// Each element runs alone; operands lose their leading axis, results get it back.
void RegionMaker::MappedWhile(const Op& op) {
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  const size_t first_export = FirstExport(op);
  const int64_t n = op.attributes.elements;
  std::vector<View> results;
  std::vector<View> operands = values_.ViewsOf(op.operands);
  for (ValueId id : op.results) {
    if (id == ValueId::kNone) {
      results.push_back({});
      continue;
    }
    const Value& value = program_[id];
    results.push_back(out_.Local(CarrierOf(value), value.type.shape, value.name));
  }
  const auto local = [&](const Value& value, const Shape& shape) {
    return out_.Local(CarrierOf(value), shape, value.name);
  };
  const std::vector<Radius> joined = radii_.Joined(op);
  out_.Each(n, joined.empty(), [&](Register element) {
    std::vector<View> carried;
    std::vector<View> mapped;
    std::vector<View> exports;
    for (size_t k = 0; k < operands.size(); ++k) {
      const View one = ElementOf(operands[k], element);
      if (k >= c) {
        mapped.push_back(one);
        continue;
      }
      carried.push_back(local(program_[op.operands[k]], one.shape));
      out_.Copy(carried.back(), one);
    }
    for (size_t k = 0; k < static_cast<size_t>(counts.exports); ++k) {
      const Value& value = program_[op.regions[0].yields[first_export + k]];
      exports.push_back(local(value, value.type.shape));
    }
    const View iterations = out_.Local(Carrier::kI32, {}, "iterations");
    const Register around = out_.around().element;
    const Register run_around = std::exchange(out_.around().run, element);
    out_.around().element = around == kNoRegister
                                ? element
                                : out_.Flattened(around, out_.Constant(Carrier::kI64, n), element);
    const LoopRadii radii = radii_.OfRun(op, out_.around().run);
    WhileRun(op, carried, mapped, exports, iterations, radii);
    radii_.Give(op, radii, joined);
    out_.around().element = around;
    out_.around().run = run_around;
    for (size_t k = 0; k < results.size(); ++k) {
      if (!results[k].set()) continue;
      const bool is_count = k + 1 == results.size();
      out_.Copy(ElementOf(results[k], element), is_count ? iterations
                                                : k < c  ? carried[k]
                                                         : exports[k - c]);
    }
  });
  radii_.Bind(op.results, joined);
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (op.results[k] != ValueId::kNone) values_.Bind(op.results[k], results[k]);
  }
}

// Whether the test of a comparison ends the loop; the entry test comes first.
Register RegionMaker::Compared(const Op& op, const View& lhs, const View& why,
                               const View& iterations, const std::string& suffix) {
  const Region& test = op.regions[0];
  const Register tested = out_.One(values_.ViewOf(test.yields[0]));
  out_.StoreOne(lhs, tested);
  const Register held =
      out_.Call(ComparisonFunction(op.attributes.comparison, program_[test.yields[0]]),
                Carrier::kBool, {tested, out_.One(values_.ViewOf(test.yields[1]))});
  if (op.attributes.has_entry) {
    const Register is_first = out_.Call("eq_i32", Carrier::kBool,
                                        {out_.One(iterations), out_.Constant(Carrier::kI32, 0)});
    const Register enters = out_.Call(Cat("ge_", suffix), Carrier::kBool,
                                      {tested, out_.One(values_.ViewOf(test.yields[2]))});
    const Register refuses = out_.Call("not_bool", Carrier::kBool, {enters});
    sites_.Test(op, test.yields[0], test.yields[2], refuses, is_first);
    const Register ends = out_.Call("and_bool", Carrier::kBool, {is_first, refuses});
    const Register reason = out_.Constant(Carrier::kI32, StopReasonNumber(StopReason::kNotEntered));
    out_.StoreOne(why, out_.Call("select_i32", Carrier::kI32, {ends, reason, out_.One(why)}));
    out_.Leave(ends);
  }
  sites_.Test(op, test.yields[0], test.yields[1], held, kNoRegister);
  return held;
}

void RegionMaker::WhileRun(const Op& op, const std::vector<View>& carried,
                           const std::vector<View>& mapped, const std::vector<View>& exports,
                           const View& iterations, const LoopRadii& radii) {
  const Attributes& a = op.attributes;
  const Region& test = op.regions[0];
  const Region& body = op.regions[1];
  // A predicate tells its deciding test in f64.
  const Format tested_in = a.predicate ? Format::kF64 : *program_[test.yields[0]].format;
  const Carrier real = tested_in == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
  const std::string suffix(precision::FormatName(tested_in));
  const bool records = records_.decides && !IsBranch(op);
  const Register cap = out_.Integer(Carrier::kI32, a.max_iter);
  const View why = out_.Local(Carrier::kI32, {}, "reason");
  const View lhs = out_.Local(real, {}, "tested");
  const View has_nan = a.predicate && records ? out_.Local(Carrier::kBool, {}, "has_nan") : View{};
  if (has_nan.set()) out_.StoreOne(has_nan, out_.Constant(Carrier::kBool, 0));
  out_.StoreOne(iterations, out_.Constant(Carrier::kI32, 0));
  out_.StoreOne(why, out_.Constant(Carrier::kI32, StopReasonNumber(StopReason::kConverged)));
  out_.StoreOne(lhs, out_.Constant(real, 0));
  const auto stop_at_cap = [&] {
    const Register is_last = out_.Call("eq_i32", Carrier::kBool, {out_.One(iterations), cap});
    const Register reason = out_.Constant(Carrier::kI32, StopReasonNumber(StopReason::kMaxIter));
    out_.StoreOne(why, out_.Call("select_i32", Carrier::kI32, {is_last, reason, out_.One(why)}));
    out_.Leave(is_last);
  };
  const auto bind = [&](const Region& region,
                        std::initializer_list<const std::vector<View>*> lists) {
    size_t at = 0;
    for (const std::vector<View>* list : lists) {
      for (const View& view : *list) {
        const ValueId arg = region.args[at++];
        if (arg != ValueId::kNone) values_.Bind(arg, view);
      }
    }
  };
  const auto flattened = [&] {
    if (IsBranch(op)) return out_.around().iteration;
    const Register it = out_.Call("convert_i32_i64", Carrier::kI64, {out_.One(iterations)});
    if (out_.around().iteration == kNoRegister) return it;
    const Register wide = out_.Call("convert_i32_i64", Carrier::kI64, {cap});
    const Register radix =
        out_.Call("add_i64", Carrier::kI64, {wide, out_.Constant(Carrier::kI64, 1)});
    return out_.Flattened(out_.around().iteration, radix, it);
  };
  const Register around = out_.around().iteration;
  const FrameWriter::Chain chain = frames_.Open(op);
  out_.Repeat([&] {
    const bool cap_first = a.cap_order == CapOrder::kCapFirst;
    if (cap_first) stop_at_cap();
    out_.around().iteration = flattened();
    frames_.Next(chain, op);
    bind(test, {&carried, &mapped});
    radii_.Bind(test.args, radii.entering);
    frames_.KeepArgs(test);
    // The test's records look for the operations that made what it compares.
    Run(test);
    values_.Enter(test);
    for (size_t k = 0; k < exports.size(); ++k) {
      out_.Copy(exports[k], values_.ViewOf(test.yields[FirstExport(op) + k]));
    }
    radii_.Tell(op, radii, iterations);
    const Register held = a.predicate ? out_.One(values_.ViewOf(test.yields[0]))
                                      : Compared(op, lhs, why, iterations, suffix);
    if (a.predicate && records) {
      const Deciding of = radii_.LeastOf(test.yields[0]);
      out_.StoreOne(lhs, of.own);
      out_.StoreOne(has_nan, of.has_nan);
      sites_.Predicate(op, of, held, why);
    }
    values_.Leave();
    out_.Leave(held);
    if (!cap_first) stop_at_cap();
    bind(body, {&carried, &exports, &mapped});
    radii_.BindBody(op, radii);
    frames_.KeepArgs(body);
    Run(body);
    std::vector<View> yields = values_.ViewsOf(body.yields);
    radii_.Move(radii.carried, body.yields);
    out_.CopyAtOnce(carried, yields);
    out_.StoreOne(iterations, out_.Call("add_i32", Carrier::kI32,
                                        {out_.One(iterations), out_.Constant(Carrier::kI32, 1)}));
  });
  out_.around().iteration = around;
  const Register is_capped = out_.Call(
      "eq_i32", Carrier::kBool,
      {out_.One(why), out_.Constant(Carrier::kI32, StopReasonNumber(StopReason::kMaxIter))});
  const Register is_bad = has_nan.set() ? out_.One(has_nan)
                                        : out_.Call("not_bool", Carrier::kBool,
                                                    {out_.Call(Cat("is_finite_", CarrierName(real)),
                                                               Carrier::kBool, {out_.One(lhs)})});
  const Register is_nonfinite = out_.Call("and_bool", Carrier::kBool, {is_capped, is_bad});
  const Register nonfinite = out_.Constant(Carrier::kI32, StopReasonNumber(StopReason::kNonFinite));
  const Register reason =
      out_.Call("select_i32", Carrier::kI32, {is_nonfinite, nonfinite, out_.One(why)});
  if (chain.place != nullptr) {
    // A loop that looks at its cap first did not evaluate test number `iterations` where it was
    // capped.
    const Register all = out_.One(iterations);
    const Register before =
        out_.Call("sub_i32", Carrier::kI32, {all, out_.Constant(Carrier::kI32, 1)});
    const bool cap_first = a.cap_order == CapOrder::kCapFirst;
    const Register tests =
        cap_first ? out_.Call("select_i32", Carrier::kI32, {is_capped, before, all}) : all;
    frames_.Close(chain, a.elements > 0 ? out_.around().run : kNoRegister, all, tests);
  }
  if (!records) return;
  const Register ran = out_.One(iterations);
  sites_.Ran(op, ran, reason, out_.One(lhs), tested_in);
}

// The number of the element that a turn reads and writes.
Register RegionMaker::IndexOfTurn(const Op& loop, Register trips, Register turn) {
  if (!loop.attributes.reverse) return turn;
  const Register next =
      out_.Call("add_i64", Carrier::kI64, {turn, out_.Constant(Carrier::kI64, 1)});
  return out_.Call("sub_i64", Carrier::kI64, {trips, next});
}

void RegionMaker::For(const Op& op) {
  const Region& body = op.regions[0];
  const size_t c = static_cast<size_t>(op.attributes.carried);
  std::vector<View> carried;
  for (size_t k = 0; k < c; ++k) {
    const Value& value = program_[op.operands[k]];
    carried.push_back(out_.Local(CarrierOf(value), value.type.shape, value.name));
    out_.Copy(carried.back(), values_.ViewOf(op.operands[k]));
  }
  std::vector<View> scanned;
  for (size_t k = c; k < op.operands.size(); ++k) scanned.push_back(values_.ViewOf(op.operands[k]));
  std::vector<View> stacked;
  for (size_t k = 0; k < StackedOf(op); ++k) {
    const Value& element = program_[body.yields[c + k]];
    Shape shape = element.type.shape;
    shape.insert(shape.begin(), op.attributes.max_iter);
    stacked.push_back(out_.Local(CarrierOf(element), std::move(shape), element.name));
  }
  const std::span operands(op.operands);
  std::vector<Radius> radii = radii_.Carry(operands);
  const std::vector<Radius> of_carried(radii.begin(),
                                       radii.begin() + static_cast<std::ptrdiff_t>(c));
  const std::vector<Radius> of_stacked = radii_.Stack(op);
  const Register trips = out_.Integer(Carrier::kI64, op.attributes.max_iter);
  const Register around = out_.around().iteration;
  const FrameWriter::Chain chain = frames_.Open(op);
  out_.EachOf(trips, [&](Register counter) {
    frames_.Next(chain, op);
    out_.around().iteration = out_.Flattened(around, trips, counter);
    if (body.args[0] != ValueId::kNone) {
      const Register element = IndexOfTurn(op, trips, counter);
      const Register index = out_.Call("convert_i64_i32", Carrier::kI32, {element});
      values_.Bind(body.args[0], View::Splat(Carrier::kI32, {}, index));
    }
    for (size_t k = 0; k < op.operands.size(); ++k) {
      if (body.args[k + 1] == ValueId::kNone) continue;
      values_.Bind(
          body.args[k + 1],
          k < c ? carried[k] : CountedElement(scanned[k - c], counter, op.attributes.reverse));
    }
    radii_.Bind(std::span(body.args).subspan(1), radii);
    frames_.KeepArgs(body);
    Run(body);
    std::vector<View> yields;
    for (size_t k = 0; k < c; ++k) yields.push_back(values_.ViewOf(body.yields[k]));
    for (size_t k = 0; k < stacked.size(); ++k) {
      out_.Copy(CountedElement(stacked[k], counter, op.attributes.reverse),
                values_.ViewOf(body.yields[c + k]));
      radii_.Gather(of_stacked[k], body.yields[c + k]);
    }
    radii_.Move(of_carried, body.yields);
    out_.CopyAtOnce(carried, yields);
  });
  radii_.Bind(op.results, of_carried);
  radii_.Bind(std::span(op.results).subspan(c), of_stacked);
  out_.around().iteration = around;
  frames_.Close(chain, kNoRegister, kNoRegister, kNoRegister);
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (op.results[k] != ValueId::kNone)
      values_.Bind(op.results[k], k < c ? carried[k] : stacked[k - c]);
  }
}

}  // namespace simgrad::sim::plan
