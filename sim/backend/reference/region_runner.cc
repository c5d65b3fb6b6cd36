#include "sim/backend/reference/region_runner.h"

#include <cmath>
#include <utility>

#include "precision/selection.h"
#include "sim/program/compared_sum.h"

namespace simgrad::sim::reference {
namespace {

using enum OpCode;

std::vector<const Array*> Gather(const std::vector<ValueId>& ids, const Frame& frame) {
  std::vector<const Array*> found;
  found.reserve(ids.size());
  for (ValueId id : ids) found.push_back(&frame.At(id));
  return found;
}

// What beginning an operation or a region takes, in operations on an element.
constexpr int64_t kDispatch = 64;

}  // namespace

double ExtraMagnitude(const Program& program, const Frame& frame, ValueId id, size_t element) {
  const Op* sum = ComparedSum(program, id, [&](ValueId value) -> const Op* {
    const int32_t slot = frame.layout->SlotOf(value);
    return slot < 0 ? nullptr : frame.layout->producer[static_cast<size_t>(slot)];
  });
  if (sum == nullptr) return 0.0;
  const auto magnitude = [&](size_t k) {
    return precision::Abs(frame.At(sum->operands[k]).real[element]);
  };
  if (sum->code == kFma) return precision::Max(magnitude(0) * magnitude(1), magnitude(2));
  return precision::Max(magnitude(0), magnitude(1));
}

void RegionRunner::Run(const Region& region, Frame& frame) {
  sinks_.meter->Add(kDispatch);
  for (const Op& op : region.ops) Execute(op, frame);
}

void RegionRunner::Execute(const Op& op, Frame& frame) {
  if (op.code == kEvent) return ExecuteEvent(op, frame);
  if (op.code == kWhile) return ExecuteWhile(op, frame);
  if (op.code == kFor) return ExecuteFor(op, frame);
  std::vector<const Array*> operands = Gather(op.operands, frame);
  // A draw hangs on where it stands.
  const Array place = {{}, {frame.iteration, frame.element}};
  if (op.code == kUniform || op.code == kNormal) operands.push_back(&place);
  sinks_.meter->Add(kDispatch + ElementCount(program()[op.results[0]].type.shape));
  for (const Array* operand : operands) sinks_.meter->Add(static_cast<int64_t>(SizeOf(*operand)));
  Store(op, operands, frame, Evaluate({program_, program(), op, operands, *sinks_.meter}));
  SetRadius(op, frame);
}

const Array* RegionRunner::WhereOf(const Op& op, const Frame& frame) const {
  const ValueId where = op.attributes.where;
  return where == ValueId::kNone ? nullptr : &frame.At(where);
}

void RegionRunner::Store(const Op& op, Arrays operands, Frame& frame, Array result) {
  const Array* where = WhereOf(op, frame);
  if (sinks_.watch != nullptr) sinks_.watch->SeeResult(op, operands, frame, result, where);
  if (sinks_.ranges != nullptr && (op.code == kCast || op.code == kTape)) {
    const ValueId source = op.code == kCast ? op.operands[0] : op.attributes.primal;
    for (size_t i = 0; i < result.real.size(); ++i) {
      sinks_.meter->Add(kElementWork);
      const double x = operands[0]->real[i];
      if (!IsExecuted(where, i, result.real.size()) || !precision::IsFinite(x)) continue;
      const Format to = *program()[op.results[0]].format;
      if (!precision::Narrows(*program()[source].format, to)) continue;
      sinks_.ranges->NoteCast(op.role, to, x, result.real[i]);
    }
  }
  if (sinks_.recorded_bytes != nullptr) {
    *sinks_.recorded_bytes += static_cast<int64_t>(SizeOf(result) * sizeof(double));
  }
  frame.Set(op.results[0], std::move(result));
}

TestedPair RegionRunner::Compare(Comparison comparison, ValueId lhs, ValueId rhs,
                                 const Frame& frame, size_t element) const {
  const Value& type = program()[lhs];
  const Array& a = frame.At(lhs);
  const Array& b = frame.At(rhs);
  TestedPair pair;
  if (type.type.element != ElementType::kReal) {
    pair.tested = a.AsDouble(element);
    const double distance = pair.tested - b.AsDouble(element);
    pair.margin = {distance, distance};
    pair.held = Compares(comparison, a.integer[element], b.integer[element]);
    return pair;
  }
  const double extra = precision::Max(ExtraMagnitude(program(), frame, lhs, element),
                                      ExtraMagnitude(program(), frame, rhs, element));
  pair.tested = a.real[element];
  pair.margin = precision::MarginOf(*type.format, pair.tested, b.real[element], extra);
  pair.held = Compares(comparison, pair.tested, b.real[element]);
  return pair;
}

void RegionRunner::ExecuteEvent(const Op& op, Frame& frame) {
  const bool guarded = op.operands.size() > 2;
  Array result = ZerosOf(program()[op.results[0]].type);
  const size_t own = result.integer.size();
  for (size_t i = 0; i < own; ++i) {
    sinks_.meter->Add(kDispatch);
    const bool guard = !guarded || frame.At(op.operands[2]).integer[i] != 0;
    TestedPair pair;
    if (guard) {
      pair = Compare(op.attributes.comparison, op.operands[0], op.operands[1], frame, i);
    }
    result.integer[i] = pair.held ? 1 : 0;
    if (sinks_.decisions == nullptr) continue;
    const int64_t element = frame.element * static_cast<int64_t>(own) + static_cast<int64_t>(i);
    sinks_.decisions->Event(op.attributes.site, {frame.iteration, element}, guard, pair);
  }
  frame.Set(op.results[0], std::move(result));
  SetRadius(op, frame);
}

}  // namespace simgrad::sim::reference
