#include "sim/backend/reference/layout.h"

#include <utility>

namespace simgrad::sim::reference {

Layouts::Layouts(const NumericalProgram& program) {
  const Program& p = program.program;
  const size_t values = p.values.size();
  used_values_.assign(values, false);
  Add(p.step, values);
  Add(p.initial, values);
  if (const Region* terminal = TerminalOf(program)) Add(*terminal, values);
  const std::vector<bool> used_forward = used_values_;
  if (program.adjoint) {
    for (const Region* region : {&program.adjoint->terminal, &program.adjoint->last,
                                 &program.adjoint->inner, &program.adjoint->initial}) {
      Add(*region, values);
    }
  }
  empty_.slot.assign(values, -1);
  inputs_.slot.assign(values, -1);
  for (const Input& input : p.inputs) {
    inputs_.slot[Index(input.value)] = static_cast<int32_t>(inputs_.producer.size());
    inputs_.producer.push_back(nullptr);
    used_inputs_.push_back(used_forward[Index(input.value)]);
  }
}

void Layouts::Add(const Region& region, size_t values) {
  RegionLayout layout;
  layout.slot.assign(values, -1);
  const auto define = [&](ValueId id, const Op* producer) {
    if (id == ValueId::kNone) return;
    layout.slot[Index(id)] = static_cast<int32_t>(layout.producer.size());
    layout.producer.push_back(producer);
  };
  const auto use = [&](ValueId id) {
    if (id != ValueId::kNone) used_values_[Index(id)] = true;
  };
  for (ValueId id : region.args) define(id, nullptr);
  for (const Op& op : region.ops) {
    for (ValueId id : op.results) {
      define(id, &op);
      producers_.emplace(id, &op);
    }
    for (ValueId id : op.operands) use(id);
    for (const Region& nested : op.regions) Add(nested, values);
  }
  for (ValueId id : region.yields) use(id);
  regions_.emplace(&region, std::move(layout));
}

const Region* TerminalOf(const NumericalProgram& program) {
  if (program.objective.empty()) return nullptr;
  const Objective* objective = program.program.FindObjective(program.objective);
  return objective != nullptr && objective->HasTerminal() ? &objective->terminal : nullptr;
}

Frame::Frame(const RegionLayout& of, const Frame* around)
    : layout(&of), parent(around), values(of.producer.size()) {
  if (around == nullptr) return;
  iteration = around->iteration;
  element = around->element;
  loop_site = around->loop_site;
}

Frame::~Frame() = default;
Frame::Frame(Frame&&) noexcept = default;

const Array& Frame::At(ValueId id) const {
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent) {
    const int32_t slot = frame->layout->slot[Index(id)];
    if (slot >= 0) return frame->values[static_cast<size_t>(slot)];
  }
  return primal->At(id);
}

void Frame::Set(ValueId id, Array value) {
  if (id == ValueId::kNone) return;
  values[static_cast<size_t>(layout->slot[Index(id)])] = std::move(value);
}

const LoopRecord& Frame::LoopAt(ValueId first_result) const {
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent) {
    const auto found = frame->loops.find(first_result);
    if (found != frame->loops.end()) return found->second;
  }
  return primal->LoopAt(first_result);
}

}  // namespace simgrad::sim::reference
