#include "sim/program/told.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace simgrad::sim {
namespace {

void Place(Region& region, int32_t first, PassBudget& budget) {
  for (Op& op : region.ops) {
    budget.Visit();
    for (Region& nested : op.regions) Place(nested, first, budget);
    const bool tells = op.code == OpCode::kAccumulate && op.attributes.input < -1;
    if (tells) op.attributes.input = first - 2 - op.attributes.input;
  }
}

}  // namespace

bool Tells(const precision::Policy& policy) {
  const Format format = policy[Role::kGradient].format;
  return format == Format::kF32 || format == Format::kF64;
}

NumericalProgram PlaceTold(NumericalProgram numerical, PassBudget& budget) {
  if (!numerical.adjoint || numerical.adjoint->told.empty()) return numerical;
  Program& program = numerical.program;
  Adjoint& adjoint = *numerical.adjoint;
  adjoint.first_told = static_cast<int32_t>(program.inputs.size());
  for (const std::string& site : adjoint.told) {
    for (const auto& [part, count] :
         {std::pair("counted", kCountedNumbers), std::pair("largest", kLargestNumbers)}) {
      const std::string name = absl::StrCat(site, " ", part);
      const ValueId value = program.AddValue({ElementType::kReal, {count}}, name);
      program[value].format = Format::kF64;
      budget.WroteValue(program[value]);
      program.inputs.push_back({.kind = InputKind::kData, .name = name, .value = value});
    }
  }
  numerical.adjoint_spec->wanted.resize(program.inputs.size(), true);
  for (Region* region : {&adjoint.terminal, &adjoint.inner, &adjoint.initial}) {
    Place(*region, adjoint.first_told, budget);
  }
  if (adjoint.last) Place(*adjoint.last, adjoint.first_told, budget);
  return numerical;
}

int32_t ToldInput(const Adjoint& adjoint, size_t number, ToldPart part) {
  return adjoint.first_told + static_cast<int32_t>(kToldParts * static_cast<int64_t>(number) +
                                                   static_cast<int64_t>(part));
}

size_t UntoldInputs(const NumericalProgram& numerical) {
  const bool tells = numerical.adjoint && numerical.adjoint->first_told >= 0;
  return tells ? static_cast<size_t>(numerical.adjoint->first_told)
               : numerical.program.inputs.size();
}

}  // namespace simgrad::sim
