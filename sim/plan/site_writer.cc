#include "sim/plan/site_writer.h"

#include <vector>

#include "sim/diagnostics/diagnostics.h"
#include "sim/text.h"

namespace simgrad::sim::plan {

SiteWriter::SiteWriter(const NumericalProgram& numerical, const Records& records, Values& values,
                       ScaleWriter& scales, StatementWriter& out)
    : program_(numerical.program), records_(records), values_(values), scales_(scales), out_(out) {
  for (const Site& site : numerical.sites) numbers_.emplace(site.name, site.number);
}

// A choice tells what was chosen as an i32.
Register SiteWriter::Outcome(const Op& choice, Register chosen) {
  const Carrier carrier = CarrierOf(program_[choice.results[0]]);
  if (carrier == Carrier::kI32) return chosen;
  return out_.Call(Cat("convert_", CarrierName(carrier), "_i32"), Carrier::kI32, {chosen});
}

void SiteWriter::Decide(const Op& op) {
  const bool chooses = op.code == OpCode::kChoice;
  const size_t compared = chooses ? 1 : 0;  // the first of two operands
  const Value& lhs = program_[op.operands[compared]];
  const Value& result = program_[op.results[0]];
  std::vector<View> views = values_.ViewsOf(op.operands);
  const size_t own = views.size();
  Summands of_lhs, of_rhs;
  if (records_.decides) {
    of_lhs = scales_.SummandsOf(op.operands[compared], views);
    const bool is_same = op.operands[compared] == op.operands[compared + 1];
    if (!is_same) of_rhs = scales_.SummandsOf(op.operands[compared + 1], views);
  }
  const bool is_one = ElementCount(result.type.shape) == 1;
  const Carrier carrier = CarrierOf(result);
  const View to = is_one ? View{} : out_.Local(carrier, result.type.shape, result.name);
  if (!is_one) views.push_back(to);
  const int64_t count = ElementCount(result.type.shape);
  out_.EachElement(result.type.shape, views, [&](const Read& read, const Places& place) {
    Register value = chooses ? read(0)
                             : out_.Call(ComparisonFunction(op.attributes.comparison, lhs),
                                         Carrier::kBool, {read(0), read(1)}, result.name);
    const Register guard = !chooses && own > 2 ? read(2) : kNoRegister;
    if (guard != kNoRegister) value = out_.Call("and_bool", Carrier::kBool, {guard, value});
    if (records_.decides) {
      const Register element =
          is_one ? out_.around().element : out_.ElementNumber(place(views.size() - 1), count);
      const Register a = read(compared);
      const Register b = read(compared + 1);
      const Register extra = scales_.Extra(of_lhs, of_rhs, read);
      const Register outcome = chooses ? Outcome(op, value) : value;
      out_.Emit({.code = Code::kDecide,
                 .operands = {a, b, outcome},
                 .site = NumberOf(op),
                 .extra = extra,
                 .where = guard,
                 .iteration = out_.around().iteration,
                 .element = element,
                 .format = lhs.format.value_or(Format::kF64)});
    }
    if (is_one) {
      values_.Bind(op.results[0], View::Splat(carrier, result.type.shape, value));
    } else {
      out_.Store(to, place(views.size() - 1), value);
    }
  });
  if (!is_one) values_.Bind(op.results[0], to);
}

void SiteWriter::Test(const Op& op, ValueId lhs, ValueId rhs, Register ends, Register where) {
  if (!records_.decides) return;
  std::vector<View> views = {values_.ViewOf(lhs), values_.ViewOf(rhs)};
  const Summands of_lhs = scales_.SummandsOf(lhs, views);
  const Summands of_rhs = scales_.SummandsOf(rhs, views);
  const Read read = [&](size_t k) { return out_.One(views[k]); };
  const Register a = read(0);
  const Register b = read(1);
  const Register extra = scales_.Extra(of_lhs, of_rhs, read);
  out_.Emit({.code = Code::kTest,
             .operands = {a, b, ends},
             .site = NumberOf(op),
             .extra = extra,
             .where = where,
             .format = program_[lhs].format.value_or(Format::kF64)});
}

void SiteWriter::Predicate(const Op& op, const Deciding& of, Register held, const View& why) {
  const Register zero = out_.Constant(Carrier::kF64, 0);
  out_.Emit({.code = Code::kTest,
             .operands = {of.own, zero, held, of.test},
             .site = NumberOf(op),
             .extra = of.unit,
             .format = Format::kF64});
  const Register none = out_.Call("eq_f64", Carrier::kBool, {of.unit, zero});
  const Register by_counter = out_.Call("and_bool", Carrier::kBool, {none, held});
  const Register counter = out_.Constant(Carrier::kI32, static_cast<int64_t>(StopReason::kCounter));
  out_.StoreOne(why, out_.Call("select_i32", Carrier::kI32, {by_counter, counter, out_.One(why)}));
}

void SiteWriter::Ran(const Op& op, Register iterations, Register reason, Register last,
                     Format tested_in) {
  RecordedSite& site = out_.plan().terminations[static_cast<size_t>(NumberOf(op))];
  site.has_entry = op.attributes.has_entry;
  site.cap_first = op.attributes.cap_order == CapOrder::kCapFirst;
  out_.Emit({.code = Code::kRun,
             .operands = {iterations, reason, last},
             .site = NumberOf(op),
             .iteration = out_.around().iteration,
             .element = out_.around().element,
             .format = tested_in});
}

}  // namespace simgrad::sim::plan
