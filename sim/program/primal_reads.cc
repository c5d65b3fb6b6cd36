#include "sim/program/primal_reads.h"

#include "sim/op/op_info.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

class Finder {
 public:
  explicit Finder(const NumericalProgram& numerical)
      : program_(numerical.program),
        is_input_(program_.values.size(), false),
        found_(program_.values.size(), false) {
    for (const Input& input : program_.inputs) is_input_[Index(input.value)] = true;
  }

  std::vector<bool> Find(const Adjoint& adjoint) && {
    for (const Region* region : RegionsOf(adjoint)) Read(*region);
    return std::move(found_);
  }

 private:
  void Read(const Region& region) {
    for (const Op& op : region.ops) {
      if (IsPrimal(op)) found_[Index(op.results[0])] = true;
      if (op.code == kAccumulate || op.code == kWhileVjp || op.code == kForVjp) Leave(op.operands);
      for (const Region& nested : op.regions) Read(nested);
    }
    Leave(region.yields);
  }

  bool IsPrimal(const Op& op) const {
    if (op.attributes.where != ValueId::kNone) return false;
    if (op.code == kTape) return program_.IsReal(op.results[0]);
    if (op.code != kCast && op.code != kFakeQuantize) return false;
    const size_t source = Index(op.operands[0]);
    return found_[source] || is_input_[source];
  }

  void Leave(const std::vector<ValueId>& taken) {
    for (ValueId id : taken) {
      if (id != ValueId::kNone) found_[Index(id)] = false;
    }
  }

  const Program& program_;
  std::vector<bool> is_input_;
  std::vector<bool> found_;
};

}  // namespace

std::vector<bool> PrimalReadsOf(const NumericalProgram& program) {
  if (!program.adjoint) return {};
  return Finder(program).Find(*program.adjoint);
}

bool ReadsByElement(const Op& op) {
  switch (InfoOf(op.code).op_class) {
    case OpClass::kElementwise:
    case OpClass::kCompare:
    case OpClass::kPredicate:
    case OpClass::kLogic:
    case OpClass::kChoice:
      return true;
    case OpClass::kPrecision:
      return op.code != kFakeQuantize;
    case OpClass::kShape:
    case OpClass::kReduction:
    case OpClass::kIndexing:
    case OpClass::kLinear:
    case OpClass::kConstant:
    case OpClass::kControl:
    case OpClass::kAdjoint:
      return false;
  }
  return false;
}

bool ReadsNumbers(const Program& program, const Op& op) {
  return !op.regions.empty() || (!op.results.empty() && program.IsReal(op.results[0]));
}

}  // namespace simgrad::sim
