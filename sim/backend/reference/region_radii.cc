// Radii, on which predicates depend, by the rules of sim/program/decision_margin.h.
#include <algorithm>
#include <utility>

#include "precision/ulp.h"
#include "sim/backend/reference/region_runner.h"
#include "sim/op/op_info.h"
#include "sim/program/decision_margin.h"
#include "sim/program/loop.h"

namespace simgrad::sim::reference {

using enum OpCode;

Radius RegionRunner::ComparedRadius(ValueId lhs, ValueId rhs, const Frame& frame, size_t element,
                                    uint32_t test) const {
  const Value& value = program()[lhs];
  if (value.type.element != ElementType::kReal) {
    return LeastOf(frame.RadiusAt(lhs, element), frame.RadiusAt(rhs, element));
  }
  const double extra = precision::Max(ExtraMagnitude(program(), frame, lhs, element),
                                      ExtraMagnitude(program(), frame, rhs, element));
  Radius radius =
      RadiusOfPair(*value.format, frame.At(lhs).real[element], frame.At(rhs).real[element], extra);
  radius.test = test;
  return radius;
}

// The radius of an element that an operation computes from the same element of its operands.
Radius RegionRunner::ElementRadius(const Op& op, const Frame& frame, size_t i) const {
  const auto truth = [&](size_t k) { return frame.At(op.operands[k]).integer[i] != 0; };
  const auto radius = [&](size_t k) { return frame.RadiusAt(op.operands[k], i); };
  const uint32_t test = layouts_.tests().Of(op.results[0]);
  if (op.code == kEvent) {
    const Radius compared = ComparedRadius(op.operands[0], op.operands[1], frame, i, test);
    if (op.operands.size() < 3) return compared;
    const Array& a = frame.At(op.operands[0]);
    const Array& b = frame.At(op.operands[1]);
    const bool held = a.real.empty()
                          ? Compares(op.attributes.comparison, a.integer[i], b.integer[i])
                          : Compares(op.attributes.comparison, a.real[i], b.real[i]);
    return RadiusOfAnd(truth(2), radius(2), held, compared);
  }
  if (ComparesTwo(op)) return ComparedRadius(op.operands[0], op.operands[1], frame, i, test);
  if (op.code == kChoice) return ComparedRadius(op.operands[1], op.operands[2], frame, i, test);
  const bool is_bool = program()[op.results[0]].type.element == ElementType::kBool;
  if (op.code == kAnd && is_bool) return RadiusOfAnd(truth(0), radius(0), truth(1), radius(1));
  if (op.code == kOr && is_bool) return RadiusOfOr(truth(0), radius(0), truth(1), radius(1));
  if (op.code == kSelect) {
    if (is_bool) {
      return RadiusOfSelect(truth(0), radius(0), truth(1), radius(1), truth(2), radius(2));
    }
    return LeastOf(radius(0), truth(0) ? radius(1) : radius(2));
  }
  if (op.code == kConvert && program().IsReal(op.operands[0])) {
    const Value& from = program()[op.operands[0]];
    Radius of = RadiusOfConversion(from.format.value_or(Format::kF64),
                                   frame.At(op.operands[0]).real[i], is_bool);
    of.test = test;
    return of;
  }
  if (op.code == kIsFinite) {
    const Value& x = program()[op.operands[0]];
    Radius of = RadiusOfIsFinite(*x.format, frame.At(op.operands[0]).real[i]);
    of.test = test;
    return of;
  }
  Radius least;
  for (size_t k = 0; k < op.operands.size(); ++k) {
    if (!program().IsReal(op.operands[k])) least = LeastOf(least, radius(k));
  }
  return least;
}

Radius RegionRunner::LeastRadius(ValueId id, const Frame& frame) const {
  Radius least;
  const int64_t count = ElementCount(program()[id].type.shape);
  for (int64_t i = 0; i < count; ++i) {
    least = LeastOf(least, frame.RadiusAt(id, static_cast<size_t>(i)));
  }
  return least;
}

std::vector<Radius> RegionRunner::LeastRadii(std::span<const ValueId> ids,
                                             const Frame& frame) const {
  std::vector<Radius> radii;
  for (ValueId id : ids) radii.push_back(HasRadius(id) ? LeastRadius(id, frame) : Radius());
  return radii;
}

Radius RegionRunner::ElementsRadius(ValueId id, int64_t n, size_t e, const Frame& frame) const {
  Radius least;
  const size_t count = static_cast<size_t>(ElementCount(program()[id].type.shape) / n);
  for (size_t i = e * count; i < (e + 1) * count; ++i) {
    least = LeastOf(least, frame.RadiusAt(id, i));
  }
  return least;
}

// A result has the least of what every run gave, and of every run's tests.
void RegionRunner::SetLoopRadii(const Op& op, const LoopTape& tape, Frame& frame) const {
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (!HasRadius(op.results[k])) continue;
    Radius least;
    for (const LoopRun& run : tape.runs) {
      if (k < c) {
        least = LeastOf(least, run.radii[k]);
      } else if (k + 1 < op.results.size()) {
        const ValueId yield = op.regions[0].yields[FirstExport(op) + k - c];
        least = LeastOf(least, LeastRadius(yield, *run.tests.back()));
      }
      least = LeastOf(least, run.of_tests);
    }
    frame.radii[op.results[k]] = {least};
  }
}

void RegionRunner::BindRadii(std::span<const ValueId> args, const std::vector<Radius>& radii,
                             Frame& frame) const {
  for (size_t k = 0; k < radii.size(); ++k) {
    if (HasRadius(args[k])) frame.radii[args[k]] = {radii[k]};
  }
}

void RegionRunner::SetRadius(const Op& op, Frame& frame) const {
  if (!HasRadius(op.results[0])) return;
  std::vector<Radius>& radii = frame.radii[op.results[0]];
  radii.clear();
  const OpClass op_class = InfoOf(op.code).op_class;
  const bool by_element = op_class == OpClass::kElementwise || op_class == OpClass::kCompare ||
                          op_class == OpClass::kLogic || op_class == OpClass::kChoice ||
                          IsTest(op) || op.code == kConvert || op.code == kIsFinite;
  const size_t count = static_cast<size_t>(ElementCount(program()[op.results[0]].type.shape));
  if (by_element) {
    for (size_t i = 0; i < count; ++i) radii.push_back(ElementRadius(op, frame, i));
    const auto joint = layouts_.tests().joint.find(op.results[0]);
    if (joint == layouts_.tests().joint.end()) return;
    Radius least = LeastRadius(op.results[0], frame);
    for (ValueId key : joint->second) least = LeastOf(least, LeastRadius(key, frame));
    radii = {least};
    return;
  }
  const bool reads_reals = std::any_of(op.operands.begin(), op.operands.end(),
                                       [&](ValueId id) { return program().IsReal(id); });
  if (reads_reals) {
    radii.push_back({0.0, 0.0, 0x1p52, false, layouts_.tests().Of(op.results[0])});
    return;
  }
  if ((op.code == kAny || op.code == kAll) && count == 1) {
    const Array& truths = frame.At(op.operands[0]);
    const bool is_any = op.code == kAny;
    Radius radius;
    bool held = !is_any;
    for (size_t i = 0; i < truths.integer.size(); ++i) {
      const bool truth = truths.integer[i] != 0;
      const Radius of_truth = frame.RadiusAt(op.operands[0], i);
      radius = is_any ? RadiusOfOr(held, radius, truth, of_truth)
                      : RadiusOfAnd(held, radius, truth, of_truth);
      held = is_any ? held || truth : held && truth;
    }
    radii.push_back(radius);
    return;
  }
  Radius least;
  for (ValueId operand : op.operands) {
    if (!program().IsReal(operand)) least = LeastOf(least, LeastRadius(operand, frame));
  }
  radii.push_back(least);
}

TestedPair RegionRunner::Predicate(const Op& op, const Frame& frame, LoopRun& run) const {
  const ValueId stop = op.regions[0].yields[0];
  TestedPair pair;
  pair.held = frame.At(stop).integer[0] != 0;
  if (sinks_.decisions == nullptr) return pair;
  const Radius radius = LeastRadius(stop, frame);
  run.of_tests = LeastOf(run.of_tests, radius);
  pair.tested = radius.own;
  pair.margin = precision::MarginOf(Format::kF64, radius.own, 0.0, radius.unit);
  pair.by_counter = radius.unit == 0.0;
  pair.has_nan = radius.has_nan;
  pair.test = radius.test;
  return pair;
}

}  // namespace simgrad::sim::reference
