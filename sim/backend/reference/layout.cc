#include "sim/backend/reference/layout.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "sim/program/decision_margin.h"
#include "sim/program/primal_reads.h"

namespace simgrad::sim::reference {
namespace {

// Room for these values, none of which has a place yet.
void Span(const std::vector<ValueId>& ids, RegionLayout& layout) {
  size_t end = 0;
  layout.first = SIZE_MAX;
  for (ValueId id : ids) {
    if (id == ValueId::kNone) continue;
    layout.first = std::min(layout.first, Index(id));
    end = std::max(end, Index(id) + 1);
  }
  if (end > 0) layout.place.assign(end - layout.first, -1);
}

}  // namespace

Layouts::Layouts(const NumericalProgram& program)
    : used_inputs_(ReadInputs(program)),
      behind_predicates_(BehindPredicates(program.program)),
      primal_reads_(PrimalReadsOf(program)),
      tests_(DecidingTestsOf(program.program, program.sites)),
      additions_(AdditionsOf(program)) {
  const Program& p = program.program;
  Add(p.step);
  Add(p.initial);
  if (const Region* terminal = TerminalOf(program)) Add(*terminal);
  if (program.adjoint) {
    for (const Region* region : RegionsOf(*program.adjoint)) Add(*region);
  }
  std::vector<ValueId> of_inputs;
  for (const Input& input : p.inputs) of_inputs.push_back(input.value);
  Span(of_inputs, inputs_);
  for (const Input& input : p.inputs) {
    inputs_.place[Index(input.value) - inputs_.first] =
        static_cast<int32_t>(inputs_.producer.size());
    inputs_.producer.push_back(nullptr);
  }
}

void Layouts::Add(const Region& region) {
  RegionLayout layout;
  std::vector<ValueId> defined = region.args;
  for (const Op& op : region.ops)
    defined.insert(defined.end(), op.results.begin(), op.results.end());
  Span(defined, layout);
  const auto define = [&](ValueId id, const Op* producer) {
    if (id == ValueId::kNone) return;
    layout.place[Index(id) - layout.first] = static_cast<int32_t>(layout.producer.size());
    layout.producer.push_back(producer);
  };
  for (ValueId id : region.args) define(id, nullptr);
  for (const Op& op : region.ops) {
    for (ValueId id : op.results) {
      define(id, &op);
      producers_.emplace(id, &op);
    }
    for (const Region& nested : op.regions) Add(nested);
  }
  regions_.emplace(&region, std::move(layout));
}

Frame::Frame(const RegionLayout& of, const Frame* around)
    : layout(&of), parent(around), values(of.producer.size()) {
  if (around == nullptr) return;
  primal = around->primal;
  iteration = around->iteration;
  element = around->element;
  loop_site = around->loop_site;
}

Frame::~Frame() = default;
Frame::Frame(Frame&&) noexcept = default;

const Array& Frame::At(ValueId id) const {
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent) {
    const int32_t place = frame->layout->PlaceOf(id);
    if (place >= 0) return frame->values[static_cast<size_t>(place)];
  }
  return primal->At(id);
}

const Frame& Frame::HomeOf(ValueId id) const {
  const Frame* frame = this;
  while (frame->layout->PlaceOf(id) < 0) frame = frame->parent;
  return *frame;
}

void Frame::Set(ValueId id, Array value) {
  if (id == ValueId::kNone) return;
  values[static_cast<size_t>(layout->PlaceOf(id))] = std::move(value);
}

const Radius& Frame::RadiusAt(ValueId id, size_t at) const {
  static const Radius kNone;
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent) {
    const auto found = frame->radii.find(id);
    if (found != frame->radii.end()) {
      return found->second[found->second.size() == 1 ? 0 : at];
    }
    if (frame->layout->PlaceOf(id) >= 0) return kNone;
  }
  return kNone;
}

const LoopTape& Frame::LoopAt(ValueId first_result) const {
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent) {
    const auto found = frame->loops.find(first_result);
    if (found != frame->loops.end()) return found->second;
  }
  return primal->LoopAt(first_result);
}

}  // namespace simgrad::sim::reference
