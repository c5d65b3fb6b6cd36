#include "sim/backend/cuda/tape_layout.h"

#include <algorithm>

#include "sim/backend/cuda/source.h"
#include "sim/program/detect.h"

namespace simgrad::sim::cuda {
namespace {

using enum OpCode;

// 8-bit formats are stored in 16 bits (device/tape.h).
int StoredBits(Format format) { return std::max(16, precision::Traits(format).bits); }

int BitsOfInteger(ElementType type) {
  switch (type) {
    case ElementType::kI64:
      return 64;
    case ElementType::kI32:
      return 32;
    default:
      return 8;
  }
}

bool IsLoop(const Op& op) { return op.code == kWhile || op.code == kFor; }
bool IsVjp(const Op& op) { return op.code == kWhileVjp || op.code == kForVjp; }

}  // namespace

const TapeLoop* TapeFrame::LoopOf(const Op& loop) const {
  for (const TapeLoop& known : loops) {
    if (known.loop == &loop) return &known;
  }
  return nullptr;
}

TapeLayout::TapeLayout(const NumericalProgram& program, bool block,
                       const std::vector<bool>& constant) {
  if (!program.adjoint) return;
  unit_bytes_ = StoredBits(program.policy[Role::kTape].format) / 8;
  const Program& p = program.program;
  const Region* terminal = TerminalOf(program);
  if (terminal == nullptr) terminal = &no_region_;
  for (const Region* region : {&p.step, &p.initial, terminal}) Index(*region);
  Scan(program, program.adjoint->terminal, terminal, constant);
  if (program.adjoint->last) Scan(program, *program.adjoint->last, &p.step, constant);
  Scan(program, program.adjoint->inner, &p.step, constant);
  Scan(program, program.adjoint->initial, &p.initial, constant);
  frames_[&p.step].linked = true;
  for (const Region* region : {&p.step, &p.initial, terminal}) Settle(*region, false, block);
}

void TapeLayout::Index(const Region& region) {
  frames_[&region];
  for (ValueId id : region.args) home_[id] = &region;
  for (const Op& op : region.ops) {
    for (ValueId id : op.results) home_[id] = &region;
    if (IsLoop(op) && !op.results.empty()) loops_[op.results[0]] = {&op, &region};
    for (const Region& nested : op.regions) Index(nested);
  }
}

const Region* TapeLayout::HomeOf(ValueId primal, const Region* top) const {
  const auto found = home_.find(primal);
  return found == home_.end() ? top : found->second;
}

void TapeLayout::Scan(const NumericalProgram& program, const Region& adjoint, const Region* top,
                      const std::vector<bool>& constant) {
  for (const Op& op : adjoint.ops) {
    if (op.code == kTape && !constant[static_cast<size_t>(op.attributes.primal)]) {
      AddEntry(program, op, top);
    }
    if (IsVjp(op)) {
      const LoopPlace& place = loops_.at(op.attributes.primal);
      TapeFrame& frame = frames_[place.region];
      if (frame.LoopOf(*place.op) == nullptr) frame.loops.push_back({place.op, 0, 0, false});
    }
    for (const Region& nested : op.regions) Scan(program, nested, top, constant);
  }
}

TapeEntry EntryFor(const NumericalProgram& program, const Op& tape) {
  const Value& value = program.program[tape.attributes.primal];
  TapeEntry entry;
  entry.primal = tape.attributes.primal;
  entry.count = ElementCount(value.type.shape);
  entry.real = value.type.element == ElementType::kReal;
  if (!entry.real) {
    entry.bits = BitsOfInteger(value.type.element);
    return entry;
  }
  const Format from = value.format.value_or(Format::kF64);
  entry.to = program.program[tape.results[0]].format.value_or(Format::kF64);
  entry.overflow = OverflowInForce(program.policy, tape);
  entry.narrows = precision::Narrows(from, entry.to);
  entry.stored = entry.narrows ? entry.to : from;
  entry.bits = StoredBits(entry.stored);
  return entry;
}

void TapeLayout::AddEntry(const NumericalProgram& program, const Op& tape, const Region* top) {
  const TapeEntry entry = EntryFor(program, tape);
  TapeFrame& frame = frames_[HomeOf(entry.primal, top)];
  for (const TapeEntry& known : frame.entries) {
    const bool same = known.to == entry.to && known.overflow == entry.overflow;
    if (known.primal == entry.primal && same) return;
  }
  frame.entries.push_back(entry);
}

int64_t TapeLayout::UnitsOfBits(int bits) const { return std::max(1, bits / (8 * unit_bytes_)); }

// Offsets and sizes, inside out; whether all executions take equally many units.
bool TapeLayout::Settle(const Region& region, bool mapped, bool block) {
  TapeFrame& frame = frames_[&region];
  int64_t head = frame.linked ? UnitsOfBits(32) : 0;
  for (TapeLoop& loop : frame.loops) {
    const int64_t elements = loop.loop->attributes.elements;
    const bool inside = mapped || elements > 0;
    bool equal = true;
    for (const Region& nested : loop.loop->regions) equal &= Settle(nested, inside, block);
    // Threads that run elements side by side take their frames in any order.
    loop.chained = !equal || (block && inside);
    if (loop.chained) {
      for (const Region& nested : loop.loop->regions) {
        frames_[&nested].linked = true;
        Settle(nested, inside, block);
      }
    }
    loop.units_per_run = 2 * UnitsOfBits(32);
    loop.offset = head;
    head += loop.units_per_run * std::max<int64_t>(elements, 1);
  }
  int64_t at = head;
  for (TapeEntry& entry : frame.entries) {
    entry.offset = at;
    at += UnitsOfBits(entry.bits) * entry.count;
  }
  frame.units = at;
  return frame.loops.empty();
}

const TapeFrame& TapeLayout::Of(const Region& region) const { return frames_.at(&region); }

const TapeEntry& TapeLayout::EntryOf(const Region& home, ValueId primal, Format to,
                                     Overflow overflow) const {
  const TapeFrame& frame = Of(home);
  for (const TapeEntry& entry : frame.entries) {
    if (entry.primal == primal && (!entry.real || (entry.to == to && entry.overflow == overflow))) {
      return entry;
    }
  }
  return frame.entries.front();
}

int64_t TapeLayout::LargestUnits(const Region& region) const {
  const TapeFrame& frame = Of(region);
  int64_t units = frame.units;
  for (const TapeLoop& loop : frame.loops) {
    const Attributes& a = loop.loop->attributes;
    int64_t once = 0;
    for (const Region& nested : loop.loop->regions) once += LargestUnits(nested);
    units += once * (a.max_iter + 1) * std::max<int64_t>(a.elements, 1);
  }
  return units;
}

}  // namespace simgrad::sim::cuda
