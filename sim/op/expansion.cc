#include "sim/op/expansion.h"

#include <utility>

namespace simgrad::sim {

Op ExpansionWriter::Begin(OpCode code, std::vector<ValueId> operands) const {
  Op op;
  op.code = code;
  op.role = op_.role;
  op.site = op_.site;
  op.label = op_.label;
  op.operands = std::move(operands);
  return op;
}

ValueId ExpansionWriter::NewValue(Type type) {
  const ValueId id = program_.AddValue(std::move(type));
  budget_.WroteValue(program_[id]);
  return id;
}

ValueId ExpansionWriter::Do(OpCode code, std::vector<ValueId> operands) {
  return Do(code, std::move(operands), TypeOf(op_.results[0]));
}

ValueId ExpansionWriter::Do(OpCode code, std::vector<ValueId> operands, Type type) {
  const ValueId result = NewValue(std::move(type));
  out_.push_back(Begin(code, std::move(operands)));
  out_.back().results = {result};
  return result;
}

ValueId ExpansionWriter::Const(double value) { return Number(value, TypeOf(op_.results[0])); }

ValueId ExpansionWriter::Number(double value, Type type) {
  const ValueId result = Do(OpCode::kLiteral, {}, std::move(type));
  out_.back().attributes.literal = {value};
  return result;
}

void ExpansionWriter::Give(OpCode code, std::vector<ValueId> operands) {
  out_.push_back(Begin(code, std::move(operands)));
  out_.back().results = op_.results;
}

namespace {

bool IsComposite(const Op& op) { return InfoOf(op.code).expand != nullptr; }

void ExpandRegion(Program& program, Region& region, PassBudget& budget);

// A composite may be made of composites.
void ExpandInto(Program& program, Op op, std::vector<Op>& out, PassBudget& budget) {
  for (Region& region : op.regions) ExpandRegion(program, region, budget);
  if (!IsComposite(op)) {
    out.push_back(std::move(op));
    return;
  }
  std::vector<Op> written;
  ExpansionWriter writer(program, op, written, budget);
  InfoOf(op.code).expand(writer);
  for (Op& part : written) {
    budget.WroteOp(part);
    for (const Region& region : part.regions) budget.WroteRegion(region);
    ExpandInto(program, std::move(part), out, budget);
  }
}

void ExpandRegion(Program& program, Region& region, PassBudget& budget) {
  bool as_it_is = true;
  for (const Op& op : region.ops) {
    budget.Visit();
    as_it_is = as_it_is && !IsComposite(op) && op.regions.empty();
  }
  if (as_it_is) return;
  std::vector<Op> ops;
  ops.reserve(region.ops.size());
  for (Op& op : region.ops) ExpandInto(program, std::move(op), ops, budget);
  region.ops = std::move(ops);
}

}  // namespace

Program ExpandComposites(Program program, PassBudget& budget) {
  ExpandRegion(program, program.initial, budget);
  ExpandRegion(program, program.step, budget);
  for (Objective& objective : program.objectives) {
    ExpandRegion(program, objective.stage, budget);
    ExpandRegion(program, objective.terminal, budget);
  }
  return program;
}

}  // namespace simgrad::sim
