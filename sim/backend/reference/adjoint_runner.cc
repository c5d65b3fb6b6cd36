#include "sim/backend/reference/adjoint_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "precision/arithmetic.h"
#include "sim/program/detect.h"
#include "sim/program/primal_reads.h"

namespace simgrad::sim::reference {
namespace {

using enum OpCode;

void MoveTo(std::vector<Slot>& to, std::vector<Slot> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

std::vector<Slot> Part(const std::vector<Slot>& slots, size_t first, size_t count) {
  const auto begin = slots.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

// Element e of n of a slot over a leading axis.
Slot ElementOf(const Slot& slot, size_t e, size_t n) {
  const auto part = [&](const std::optional<Array>& whole) -> std::optional<Array> {
    if (!whole) return std::nullopt;
    return SliceOf(*whole, e, SizeOf(*whole) / n);
  };
  return {part(slot.cotangent), part(slot.mask)};
}

std::vector<Slot> ElementsOf(const std::vector<Slot>& slots, size_t e, size_t n) {
  std::vector<Slot> elements;
  for (const Slot& slot : slots) elements.push_back(n == 0 ? slot : ElementOf(slot, e, n));
  return elements;
}

Array MaskOf(size_t n, bool value) { return {{}, std::vector<int64_t>(n, value ? 1 : 0)}; }

// Joins the elements of one slot along a leading axis again. Each part has `count` elements.
Slot Join(const std::vector<Slot>& parts, size_t count) {
  Slot joined{Array{}, Array{}};
  for (const Slot& part : parts) {
    AppendTo(*joined.cotangent, part.cotangent.value_or(Array{std::vector<double>(count), {}}));
    AppendTo(*joined.mask, part.mask.value_or(MaskOf(count, part.cotangent.has_value())));
  }
  return joined;
}

}  // namespace

std::vector<Slot> ReadSlots(const SlotList& list, const Frame& frame) {
  std::vector<Slot> slots(list.size());
  for (size_t k = 0; k < list.size(); ++k) {
    if (list.cotangents[k] == ValueId::kNone) continue;
    slots[k].cotangent = frame.At(list.cotangents[k]);
    if (list.masks[k] != ValueId::kNone) slots[k].mask = frame.At(list.masks[k]);
  }
  return slots;
}

void BindSlot(const Program& program, ValueId cotangent, ValueId mask, Slot slot, Frame& frame) {
  if (cotangent == ValueId::kNone) return;
  const Value& value = program[cotangent];
  const size_t n = static_cast<size_t>(ElementCount(value.type.shape));
  const bool present = slot.cotangent.has_value();
  Array array = present ? std::move(*slot.cotangent) : ZerosOf(value.type);
  // A cotangent that arrives in another format is cast back to that of the value.
  for (double& x : array.real) x = precision::RoundTo(*value.format, x);
  frame.Set(cotangent, std::move(array));
  if (mask == ValueId::kNone) return;
  frame.Set(mask, slot.mask && present ? std::move(*slot.mask) : MaskOf(n, present));
}

std::vector<Slot> AdjointRunner::RunRegion(const Region& region, const Frame* around,
                                           const Frame& primal, const std::vector<Array>& leading,
                                           std::vector<Slot> slots) {
  Frame frame(layouts_.Of(region), around);
  frame.primal = &primal;
  frame.iteration = primal.iteration;
  frame.element = primal.element;
  frame.loop_site = primal.loop_site;
  for (size_t k = 0; k < leading.size(); ++k) frame.Set(region.args[k], leading[k]);
  const SlotList args = SlotList::Of(std::span(region.args).subspan(leading.size()));
  for (size_t k = 0; k < args.size(); ++k) {
    BindSlot(program(), args.cotangents[k], args.masks[k], std::move(slots[k]), frame);
  }
  Run(region, frame);
  return ReadSlots(SlotList::Of(region.yields), frame);
}

void AdjointRunner::Execute(const Op& op, Frame& frame) {
  SeeReads(op, frame);
  if (op.code == kTape) return ExecuteTape(op, frame);
  if (op.code == kAccumulate) return ExecuteAccumulate(op, frame);
  if (op.code == kWhileVjp) return ExecuteWhileVjp(op, frame);
  if (op.code == kForVjp) return ExecuteForVjp(op, frame);
  RegionRunner::Execute(op, frame);
}

void AdjointRunner::SeeReads(const Op& op, const Frame& frame) const {
  if (sinks_.watch == nullptr || !sinks_.watch->watching()) return;
  if (!ReadsNumbers(program(), op)) return;
  if (!op.results.empty() && layouts_.IsPrimalRead(op.results[0])) return;
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const ValueId operand = op.operands[k];
    if (!layouts_.IsPrimalRead(operand)) continue;
    const size_t elements = SizeOf(frame.At(operand));
    const Array mask = MaskOfRead(op, k, elements, frame, WhereOf(op, frame));
    SeeRead(operand, frame, &mask);
  }
}

Array AdjointRunner::MaskOfRead(const Op& reader, size_t k, size_t elements, const Frame& frame,
                                const Array* where) {
  if (!ReadsByElement(reader)) return MaskOf(elements, IsExecuted(where, 0, SIZE_MAX));
  Array mask = MaskOf(elements, true);
  for (size_t i = 0; i < elements; ++i) {
    bool reads = IsExecuted(where, i, elements);
    if (reader.code == OpCode::kSelect) {
      reads = reads && (frame.At(reader.operands[0]).integer[i] != 0) == (k == 1);
    }
    mask.integer[i] = reads ? 1 : 0;
  }
  return mask;
}

// A tape is shown before its cast.
void AdjointRunner::SeeRead(ValueId read, const Frame& frame, const Array* where) const {
  if (!layouts_.IsPrimalRead(read)) return;
  const Op& maker = layouts_.ProducerOf(read);
  const Frame& home = frame.HomeOf(read);
  const bool tapes = maker.code == OpCode::kTape;
  const ValueId source = tapes ? maker.attributes.primal : maker.operands[0];
  if (!tapes) SeeRead(source, frame, where);
  const Array* const operands[] = {&home.At(source)};
  sinks_.watch->SeeResult(maker, operands, home, home.At(read), where);
}

void AdjointRunner::ExecuteTape(const Op& op, Frame& frame) {
  const Array& primal = frame.At(op.attributes.primal);
  Array read = primal;
  const Value& value = program()[op.results[0]];
  for (double& x : read.real) {
    sinks_.meter->Add(kElementWork);
    x = precision::RoundTo(*value.format, x, OverflowInForce(program_.policy, op));
  }
  const Array* const operands[] = {&primal};
  if (sinks_.arithmetic != nullptr) CountResults(op, operands, frame, read);
  Store(op, operands, frame, std::move(read));
}

void AdjointRunner::ExecuteAccumulate(const Op& op, Frame& frame) {
  GradientSum& gradient = gradients_[static_cast<size_t>(op.attributes.input)];
  if (gradient.sum.empty()) return;
  const Array& value = frame.At(op.operands[0]);
  const Array* mask = op.operands.size() > 1 ? &frame.At(op.operands[1]) : nullptr;
  const Format format = program_.policy[Role::kGradient].format;
  const size_t n = value.real.size();
  // The terminal cost has read the control of the last step.
  const size_t last = n == 0 ? 0 : gradient.sum.size() / n - 1;
  const size_t entry = static_cast<size_t>(step_ - gradient.first);
  const size_t offset = gradient.per_step ? std::min(entry, last) * n : 0;
  const std::string& input = program().inputs[static_cast<size_t>(op.attributes.input)].name;
  ArithmeticCounts unasked;
  ArithmeticCounts& counts =
      sinks_.arithmetic == nullptr
          ? unasked
          : sinks_.arithmetic->Of(Role::kGradient, InfoOf(op.code).name, input, {});
  ArithmeticCounter counter(counts, {});
  for (size_t i = 0; i < n; ++i) {
    sinks_.meter->Add(kElementWork);
    if (!IsExecuted(mask, i, n) || !IsExecuted(WhereOf(op, frame), i, n)) continue;
    double& sum = gradient.sum[offset + i];
    const double before = sum;
    sum = op.attributes.combine == Combine::kMax ? precision::Max(before, value.real[i])
                                                 : precision::Add(format, before, value.real[i]);
    gradient.connected = true;
    ++counts.results;
    if (op.attributes.combine != Combine::kMax) counter.Added(before, value.real[i], sum);
    const bool overflows = precision::IsFinite(before) && precision::IsFinite(value.real[i]);
    if (overflows && !precision::IsFinite(sum)) ++counts.overflows;
    if (sinks_.watch == nullptr) continue;
    sinks_.watch->SeeAccumulate(op, frame, input, format, static_cast<int64_t>(i), before,
                                value.real[i], sum);
  }
}

std::vector<Slot> AdjointRunner::ReverseWhile(const Op& op, const Frame& around, const LoopRun& run,
                                              std::vector<Slot> carried,
                                              const std::vector<Slot>& exports,
                                              std::vector<Slot> captures) {
  const size_t c = carried.size();
  const size_t x = captures.size();
  const size_t e = exports.size();
  const auto apply = [&](size_t region, const Frame& primal,
                         std::initializer_list<const std::vector<Slot>*> received) {
    std::vector<Slot> slots = std::move(carried);
    for (const std::vector<Slot>* list : received) MoveTo(slots, *list);
    MoveTo(slots, std::move(captures));
    return RunRegion(op.regions[region], &around, primal, {}, std::move(slots));
  };
  const auto test = [&](size_t region, int64_t i,
                        std::initializer_list<const std::vector<Slot>*> received) {
    const std::vector<Slot> out = apply(region, *run.tests[static_cast<size_t>(i)], received);
    carried = Part(out, 0, c);
    captures = Part(out, c, x);
  };
  if (run.last_test == run.iterations) test(2, run.last_test, {&exports});
  const int64_t last = op.attributes.last;
  const int64_t first = last == 0 ? 0 : std::max<int64_t>(0, run.iterations - last);
  for (int64_t i = run.iterations - 1; i >= first; --i) {
    const std::vector<Slot> out = apply(0, *run.bodies[static_cast<size_t>(i)], {});
    carried = Part(out, 0, c);
    const std::vector<Slot> from_body = Part(out, c, e);
    captures = Part(out, c + e, x);
    if (i == run.last_test) {
      test(3, i, {&exports, &from_body});
    } else {
      test(1, i, {&from_body});
    }
  }
  MoveTo(carried, std::move(captures));
  return carried;
}

void AdjointRunner::ExecuteWhileVjp(const Op& op, Frame& frame) {
  const Op& loop = layouts_.ProducerOf(op.attributes.primal);
  const std::vector<Slot> slots = ReadSlots(SlotList::Of(op.operands), frame);
  const size_t c = static_cast<size_t>(op.attributes.carried);
  const size_t e = static_cast<size_t>(CountsOf(loop).exports);
  const size_t x = slots.size() - c - e;
  const size_t n = static_cast<size_t>(loop.attributes.elements);
  const LoopTape& tape = frame.LoopAt(op.attributes.primal);
  std::vector<std::vector<Slot>> reversed;  // by element
  for (size_t element = 0; element < tape.runs.size(); ++element) {
    reversed.push_back(ReverseWhile(
        op, frame, tape.runs[element], ElementsOf(Part(slots, 0, c), element, n),
        ElementsOf(Part(slots, c, e), element, n), ElementsOf(Part(slots, c + e, x), element, n)));
  }
  const SlotList results = SlotList::Of(op.results);
  for (size_t k = 0; k < results.size(); ++k) {
    if (results.cotangents[k] == ValueId::kNone) continue;
    const int64_t count = ElementCount(program()[results.cotangents[k]].type.shape);
    std::vector<Slot> parts;
    for (std::vector<Slot>& element : reversed) parts.push_back(std::move(element[k]));
    BindSlot(program(), results.cotangents[k], results.masks[k],
             Join(parts, static_cast<size_t>(count) / parts.size()), frame);
  }
}

void AdjointRunner::ExecuteForVjp(const Op& op, Frame& frame) {
  const Op& loop = layouts_.ProducerOf(op.attributes.primal);
  const LoopRun& run = frame.LoopAt(op.attributes.primal).runs[0];
  const std::vector<Slot> given = ReadSlots(SlotList::Of(op.operands), frame);
  const size_t c = static_cast<size_t>(op.attributes.carried);
  const size_t k = StackedOf(loop);
  const size_t s = static_cast<size_t>(loop.attributes.scanned);
  const size_t x = given.size() - c - k - s;
  const size_t n = static_cast<size_t>(loop.attributes.max_iter);
  const std::vector<Slot> stacked = Part(given, c, k);
  std::vector<Slot> carried = Part(given, 0, c);
  std::vector<Slot> captures = Part(given, c + k, x);
  std::vector<std::vector<Slot>> scanned(s, std::vector<Slot>(n));  // [operand][element]
  for (int64_t i = run.iterations - 1; i >= 0; --i) {
    const int64_t element = loop.attributes.reverse ? run.iterations - 1 - i : i;
    const size_t at = static_cast<size_t>(element);
    const Array index{{}, {element}};
    std::vector<Slot> slots = std::move(carried);
    if (k > 0) MoveTo(slots, ElementsOf(stacked, at, n));
    MoveTo(slots, std::move(captures));
    slots.resize(slots.size() + s);
    const std::vector<Slot> out = RunRegion(
        op.regions[0], &frame, *run.bodies[static_cast<size_t>(i)], {index}, std::move(slots));
    carried = Part(out, 0, c);
    captures = Part(out, c + k, x);
    for (size_t j = 0; j < s; ++j) scanned[j][at] = out[c + k + x + j];
  }
  std::vector<Slot> slots = std::move(carried);
  slots.resize(c + k);
  MoveTo(slots, std::move(captures));
  const SlotList results = SlotList::Of(op.results);
  for (size_t j = 0; j < s; ++j) {
    const ValueId id = results.cotangents[slots.size()];
    const size_t count =
        id == ValueId::kNone
            ? 0
            : static_cast<size_t>(ElementCount(program()[id].type.shape)) / std::max<size_t>(n, 1);
    slots.push_back(Join(scanned[j], count));
  }
  for (size_t j = 0; j < results.size(); ++j) {
    BindSlot(program(), results.cotangents[j], results.masks[j], std::move(slots[j]), frame);
  }
}

}  // namespace simgrad::sim::reference
