// Counts what rounding did to the numbers of an operation.
#include <algorithm>
#include <cmath>
#include <optional>

#include "precision/arithmetic.h"
#include "sim/backend/reference/region_runner.h"
#include "sim/op/op_info.h"

namespace simgrad::sim::reference {
namespace {

using enum OpCode;

// Moves and choices give numbers that fit; literals and draws have no operands that say what would;
// pivots are those of a factor that counts.
bool Rounds(OpCode code) {
  const OpInfo& info = InfoOf(code);
  if (info.op_class == OpClass::kConstant) return false;
  if (code == kLuPivots || code == kCholeskyPivots) return false;
  return info.op_class == OpClass::kElementwise || info.can_create();
}

// For one element of the result, more than one of an operand.
bool ReadsMany(const OpInfo& info) {
  return info.op_class == OpClass::kReduction || info.op_class == OpClass::kLinear ||
         info.op_class == OpClass::kIndexing;
}

bool AreFinite(Arrays operands, WorkMeter& meter) {
  const auto is_finite = [](double x) { return precision::IsFinite(x); };
  for (const Array* operand : operands) {
    meter.Add(static_cast<int64_t>(operand->real.size()));
    if (!std::all_of(operand->real.begin(), operand->real.end(), is_finite)) return false;
  }
  return true;
}

// Marks the elements, of n, that are executed; empty: all.
std::vector<bool> Executed(const Array* where, size_t n) {
  if (where == nullptr) return {};
  const std::vector<int64_t>& mask = where->integer;
  if (mask.size() == n) return {mask.begin(), mask.end()};
  return IsExecuted(where, 0, n) ? std::vector<bool>() : std::vector<bool>(n, false);
}

// An elementwise result whose size tells that it does not fit.
void CountShrunk(const Op& op, Arrays operands, Format format, size_t element, double result,
                 ArithmeticCounter& counter) {
  const auto at = [&](size_t k) { return k < operands.size() ? operands[k]->real[element] : 0.0; };
  for (size_t k = 0; k < operands.size() && k < 2; ++k) {
    if (at(k) == 0.0) return;
  }
  for (size_t k = 0; k < operands.size(); ++k) {
    if (!precision::IsFinite(at(k))) return;
  }
  // The addend of an fma may cancel its product, exactly.
  if (op.code == kFma && !IsTiny(format, at(0) * at(1))) return;
  const double exact = InfoOf(op.code).on_reals(Format::kF64, at(0), at(1), at(2));
  counter.Shrunk(format, exact, result);
}

}  // namespace

ArithmeticCounts& RegionRunner::ArithmeticOf(const Op& op, const Frame& frame) const {
  const std::string_view site = op.site.empty() ? frame.loop_site : std::string_view(op.site);
  return sinks_.arithmetic->Of(op.role, InfoOf(op.code).name, op.label, site);
}

Array RegionRunner::EvaluateCounted(Evaluation e, const Frame& frame) const {
  if (!Rounds(e.op.code) || !program().IsReal(e.op.results[0])) return Evaluate(e);
  const auto n = static_cast<size_t>(ElementCount(e.result().type.shape));
  ArithmeticCounter counter(ArithmeticOf(e.op, frame), Executed(WhereOf(e.op, frame), n));
  e.arithmetic = &counter;
  Array result = Evaluate(e);
  CountResults(e.op, e.operands, frame, result);
  return result;
}

Addends AddendsAt(const Op& op, Arrays operands, Format format, size_t element) {
  const auto at = [&](size_t k) { return operands[k]->real[element]; };
  if (op.code == kFma) return {precision::Mul(format, at(0), at(1)), at(2)};
  return {at(0), op.code == kSub ? -at(1) : at(1)};
}

// Whether the result of one element that is not finite did not fit. An operation that reads many
// elements for each tells only where all of them are finite: else each would have to be looked at.
bool RegionRunner::Overflows(const Op& op, Arrays operands, const Array& result, size_t element,
                             bool finite) const {
  const OpInfo& info = InfoOf(op.code);
  if (!finite) return false;
  if (ReadsMany(info) && info.divides_by_zero == nullptr) {
    return std::isinf(result.real[element]) || info.birth == Birth::kAccumulation;
  }
  const NonFiniteClass why = ClassOf(program(), op, operands, result, element);
  return why == NonFiniteClass::kOverflow || why == NonFiniteClass::kConversion;
}

void RegionRunner::CountResults(const Op& op, Arrays operands, const Frame& frame,
                                const Array& result) const {
  if (!program().IsReal(op.results[0])) return;
  const OpInfo& info = InfoOf(op.code);
  const Format format = *program()[op.results[0]].format;
  const bool adds = info.scale == ScaleRule::kSum || info.scale == ScaleRule::kFusedSum;
  const bool casts = op.code == kCast || op.code == kTape;
  const auto source = [&] { return op.code == kTape ? op.attributes.primal : op.operands[0]; };
  const bool narrows = casts && precision::Narrows(*program()[source()].format, format);
  const std::vector<bool> executed = Executed(WhereOf(op, frame), result.real.size());
  ArithmeticCounts& counts = ArithmeticOf(op, frame);
  ArithmeticCounter counter(counts, {});
  std::optional<bool> finite;  // all operands, of an operation that reads more than one element
  for (size_t i = 0; i < result.real.size(); ++i) {
    sinks_.meter->Add(kElementWork);
    if (!executed.empty() && !executed[i]) continue;
    ++counts.results;
    const double r = result.real[i];
    if (casts) {
      const double x = operands[0]->real[i];
      if (!narrows || !precision::IsFinite(x)) continue;
      counter.Rounded(format, x, r);
      // A saturated r is finite; one that is rounded by chance may be infinite where the nearest is not.
      const bool fits =
          precision::IsFinite(r) && precision::IsFinite(precision::RoundTo(format, x));
      counts.overflows += fits ? 0 : 1;
      continue;
    }
    if (!precision::IsFinite(r)) {
      if (!finite && ReadsMany(info)) {
        finite = AreFinite(operands, *sinks_.meter);
      }
      counts.overflows += Overflows(op, operands, result, i, finite.value_or(true)) ? 1 : 0;
    }
    if (adds) {
      const Addends terms = AddendsAt(op, operands, format, i);
      counter.Added(terms.x, terms.y, r);
    }
    if (info.underflows) CountShrunk(op, operands, format, i, r, counter);
  }
}

}  // namespace simgrad::sim::reference
