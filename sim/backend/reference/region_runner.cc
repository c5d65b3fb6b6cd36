#include "sim/backend/reference/region_runner.h"

#include <cmath>
#include <utility>

#include "precision/selection.h"
#include "sim/program/axes.h"
#include "sim/program/compared_scale.h"
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

// The work of beginning an operation or a region, in element-operations.
constexpr int64_t kDispatch = 64;

// A frame is kept like so many values.
constexpr int64_t kValuesOfFrame = 2;

}  // namespace

namespace {

// The element of the operand of a move that became element `element` of its result.
size_t Source(const Program& program, const Op& move, size_t element) {
  if (move.code == kReshape) return element;
  const Shape& from = program[move.operands[0]].type.shape;
  const Shape& to = program[move.results[0]].type.shape;
  const std::vector<int64_t> strides = StridesOf(from);
  const Attributes& a = move.attributes;
  std::vector<int64_t> index(to.size());
  int64_t rest = static_cast<int64_t>(element);
  for (size_t axis = to.size(); axis-- > 0;) {
    index[axis] = rest % to[axis];
    rest /= to[axis];
  }
  int64_t source = 0;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    const int64_t step = a.dims.empty() ? 1 : a.dims[axis];
    const int64_t at = move.code == kBroadcast ? index[static_cast<size_t>(a.dims[axis])]
                                               : a.start[axis] + index[axis] * step;
    source += at * strides[axis];
  }
  return static_cast<size_t>(source);
}

double ScaleAt(const Program& program, const Frame& frame, const std::vector<ScaleNode>& nodes,
               size_t element) {
  std::vector<double> scales;
  for (const ScaleNode& node : nodes) {
    size_t at = element;
    for (const Op* move : node.moves) at = Source(program, *move, at);
    const auto magnitude = [&](ValueId id) { return precision::Abs(frame.At(id).real[at]); };
    const double own = magnitude(node.value);
    const auto operand = [&](size_t k) { return magnitude(node.op->operands[k]); };
    double behind = own;
    switch (node.rule) {
      case ScaleRule::kOwn:
        break;
      case ScaleRule::kSum:
        behind = precision::Max(operand(0), operand(1));
        break;
      case ScaleRule::kFusedSum:
        behind = precision::Max(operand(0) * operand(1), operand(2));
        break;
      case ScaleRule::kProduct:
        behind = precision::Max(scales[node.first] * operand(1), operand(0) * scales[node.second]);
        break;
      case ScaleRule::kQuotient:
        behind = scales[node.first] / operand(1);
        break;
      case ScaleRule::kRoot:
        behind = own == 0.0 ? own : scales[node.first] / own;
        break;
      case ScaleRule::kChoice:
        behind = frame.At(node.op->operands[0]).integer[at] != 0 ? scales[node.first]
                                                                 : scales[node.second];
        break;
      case ScaleRule::kSame:
        behind = scales[node.first];
    }
    const bool multiplies = node.rule == ScaleRule::kProduct || node.rule == ScaleRule::kQuotient ||
                            node.rule == ScaleRule::kRoot;
    // Infinities behind a number may make a NaN, which tells nothing of the number.
    scales.push_back(multiplies ? (behind > own ? behind : own) : precision::Max(own, behind));
  }
  return scales.back();
}

}  // namespace

double ExtraMagnitude(const Program& program, const Frame& frame, ValueId id, size_t element) {
  const auto producer = [&](ValueId value) -> const Op* {
    const int32_t place = frame.layout->PlaceOf(value);
    return place < 0 ? nullptr : frame.layout->producer[static_cast<size_t>(place)];
  };
  if (program.level != TestLevel::kDeclared) {
    const std::vector<ScaleNode> nodes = ScaleOf(program, id, producer);
    return nodes.empty() ? 0.0 : ScaleAt(program, frame, nodes, element);
  }
  const Op* sum = ComparedSum(program, id, producer);
  if (sum == nullptr) return 0.0;
  const auto magnitude = [&](size_t k) {
    return precision::Abs(frame.At(sum->operands[k]).real[element]);
  };
  if (sum->code == kFma) return precision::Max(magnitude(0) * magnitude(1), magnitude(2));
  return precision::Max(magnitude(0), magnitude(1));
}

void RegionRunner::Run(const Region& region, Frame& frame) {
  sinks_.meter->Add(kDispatch);
  if (sinks_.tape_values != nullptr) *sinks_.tape_values += kValuesOfFrame;
  for (const Op& op : region.ops) Execute(op, frame);
}

void RegionRunner::Execute(const Op& op, Frame& frame) {
  if (op.code == kEvent) return ExecuteEvent(op, frame);
  if (op.code == kChoice) return ExecuteChoice(op, frame);
  if (op.code == kWhile) return ExecuteWhile(op, frame);
  if (op.code == kFor) return ExecuteFor(op, frame);
  std::vector<const Array*> operands = Gather(op.operands, frame);
  // A draw hangs on where it stands.
  const Array place = {{}, {frame.iteration, frame.element}};
  if (op.code == kUniform || op.code == kNormal || IsStochastic(op)) operands.push_back(&place);
  sinks_.meter->Add(kDispatch + ElementCount(program()[op.results[0]].type.shape));
  for (const Array* operand : operands) sinks_.meter->Add(static_cast<int64_t>(SizeOf(*operand)));
  const Evaluation evaluation{program_, program(), op, operands, *sinks_.meter};
  Store(op, operands, frame,
        sinks_.arithmetic == nullptr ? Evaluate(evaluation) : EvaluateCounted(evaluation, frame));
  SetRadius(op, frame);
}

const Array* RegionRunner::WhereOf(const Op& op, const Frame& frame) const {
  const ValueId where = op.attributes.where;
  return where == ValueId::kNone ? nullptr : &frame.At(where);
}

void RegionRunner::Store(const Op& op, Arrays operands, Frame& frame, Array result) {
  const Array* where = WhereOf(op, frame);
  if (sinks_.watch != nullptr && !layouts_.IsPrimalRead(op.results[0])) {
    sinks_.watch->SeeResult(op, operands, frame, result, where);
  }
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
  if (sinks_.additions != nullptr) NoteAdditions(op, operands, result);
  if (sinks_.tape_values != nullptr) ++*sinks_.tape_values;
  if (sinks_.tape_bytes != nullptr) {
    *sinks_.tape_bytes += static_cast<int64_t>(SizeOf(result) * sizeof(double));
  }
  frame.Set(op.results[0], std::move(result));
}

void RegionRunner::NoteAdditions(const Op& op, Arrays operands, const Array& sum) const {
  const Addition* const addition = layouts_.AdditionOf(op.results[0]);
  if (addition == nullptr) return;
  AdditionCounts& counts = (*sinks_.additions)[static_cast<size_t>(addition->site)];
  const Format format = *program()[op.results[0]].format;
  for (size_t i = 0; i < sum.real.size(); ++i) {
    sinks_.meter->Add(kElementWork);
    const auto [x, y] = AddendsAt(op, operands, format, i);
    double stored = sum.real[i];
    for (const Op* cast : addition->casts) {
      stored = precision::RoundTo(*program()[cast->results[0]].format, stored,
                                  OverflowInForce(program_.policy, *cast),
                                  cast->attributes.rounding.value_or(CastRounding::kNearestEven));
    }
    counts.Note(x, y, stored);
  }
}

TestedPair RegionRunner::Compare(Comparison comparison, ValueId lhs, ValueId rhs,
                                 const Frame& frame, size_t element) const {
  const Value& type = program()[lhs];
  const Array& a = frame.At(lhs);
  const Array& b = frame.At(rhs);
  TestedPair pair;
  if (type.type.element != ElementType::kReal) {
    pair.tested = a.AsDouble(element);
    const double distance = precision::IntegerMargin(a.integer[element], b.integer[element]);
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

void RegionRunner::ExecuteChoice(const Op& op, Frame& frame) {
  Array result = frame.At(op.operands[0]);
  const size_t own = result.integer.size();
  for (size_t i = 0; i < own; ++i) {
    sinks_.meter->Add(kDispatch);
    if (sinks_.decisions == nullptr) continue;
    const TestedPair pair = Compare(Comparison::kGt, op.operands[1], op.operands[2], frame, i);
    const int64_t element = frame.element * static_cast<int64_t>(own) + static_cast<int64_t>(i);
    sinks_.decisions->Choice(op.attributes.site, {frame.iteration, element},
                             static_cast<uint32_t>(result.integer[i]), pair.margin);
  }
  frame.Set(op.results[0], std::move(result));
  SetRadius(op, frame);
}

}  // namespace simgrad::sim::reference
