#include "sim/program/renumber.h"

#include <utility>
#include <vector>

#include "sim/program/simplify.h"

namespace simgrad::sim {
namespace {

class Numbering {
 public:
  Numbering(std::vector<Value>& old, PassBudget& budget)
      : old_(old), budget_(budget), to_(old.size(), ValueId::kNone) {}

  void Define(ValueId id) {
    if (id == ValueId::kNone || to_[Index(id)] != ValueId::kNone) return;
    to_[Index(id)] = static_cast<ValueId>(values_.size());
    values_.push_back(std::move(old_[Index(id)]));
  }

  void DefineAll(const Region& region) {
    for (ValueId id : region.args) Define(id);
    for (const Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.results.size()));
      for (ValueId id : op.results) Define(id);
      for (const Region& nested : op.regions) DefineAll(nested);
    }
  }

  // Ends lowering where no region defines a value that is read: a pass is wrong then.
  void Map(ValueId& id) const {
    if (id == ValueId::kNone) return;
    id = to_[Index(id)];
    if (id == ValueId::kNone) {
      throw PassBudget::Ended{absl::InternalError("a value is read that nothing defines")};
    }
  }

  void MapAll(Region& region) {
    for (ValueId& id : region.args) Map(id);
    for (ValueId& id : region.yields) Map(id);
    for (Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.operands.size()));
      for (ValueId& id : op.operands) Map(id);
      for (ValueId& id : op.results) Map(id);
      Map(op.attributes.primal);
      Map(op.attributes.where);
      for (Region& nested : op.regions) MapAll(nested);
    }
  }

  std::vector<Value> Take() {
    values_.shrink_to_fit();
    return std::move(values_);
  }

 private:
  std::vector<Value>& old_;  // given up value by value
  PassBudget& budget_;
  std::vector<ValueId> to_;
  std::vector<Value> values_;
};

}  // namespace

NumericalProgram MarkUsedInputs(NumericalProgram numerical, PassBudget& budget) {
  std::vector<bool> read(numerical.program.values.size(), false);
  for (const Region* region : RegionsOf(numerical)) MarkUses(*region, read, &budget);
  for (const Export& exported : numerical.program.exports) read[Index(exported.value)] = true;
  for (Input& input : numerical.program.inputs) {
    input.used = input.kind == InputKind::kState || read[Index(input.value)];
  }
  return numerical;
}

NumericalProgram Renumber(NumericalProgram numerical, PassBudget& budget) {
  Program& program = numerical.program;
  Numbering numbering(program.values, budget);
  for (const Input& input : program.inputs) numbering.Define(input.value);
  const std::vector<Region*> regions = RegionsOf(numerical);
  for (const Region* region : regions) numbering.DefineAll(*region);
  for (Region* region : regions) numbering.MapAll(*region);
  for (Input& input : program.inputs) numbering.Map(input.value);
  for (Export& exported : program.exports) numbering.Map(exported.value);
  numbering.Map(numerical.stage_cost);
  program.values = numbering.Take();
  return numerical;
}

}  // namespace simgrad::sim
