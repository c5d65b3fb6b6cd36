#include "sim/program/verify.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_join.h"
#include "sim/op/types.h"
#include "sim/program/field_error.h"
#include "sim/program/simplify.h"
#include "sim/program/step_work.h"
#include "sim/program/verifier.h"

namespace simgrad::sim::internal {

absl::Status Verifier::Run() {
  if (absl::Status s = CheckTables(); !s.ok()) return s;
  if (absl::Status s = CheckInputs(); !s.ok()) return s;
  if (program_.HasInitial() || !program_.initial.ops.empty()) {
    if (absl::Status s = TopRegion(program_.initial, "initial", {}, Kind::kInitial); !s.ok())
      return s;
  }
  if (absl::Status s = TopRegion(program_.step, "step", {}, Kind::kStep); !s.ok()) return s;
  if (absl::Status s = CheckExports(); !s.ok()) return s;
  if (absl::Status s = CheckObjectives(); !s.ok()) return s;
  return CheckWork();
}

absl::Status Verifier::CheckTables() {
  const std::pair<const char*, std::pair<size_t, int64_t>> lists[] = {
      {"values", {program_.values.size(), limits_.max_values}},
      {"exports", {program_.exports.size(), limits_.max_exports}},
      {"objectives", {program_.objectives.size(), limits_.max_objectives}},
  };
  for (const auto& [list, sizes] : lists) {
    const auto [size, limit] = sizes;
    if (static_cast<int64_t>(size) <= limit) continue;
    return LimitError(list, absl::StrCat(size, " ", list, ", the limit is ", limit));
  }
  if (absl::Status s = CheckName(program_.name, "name"); !s.ok()) return s;
  for (size_t i = 0; i < program_.values.size(); ++i) {
    budget_.Visit();
    if (absl::Status s = CheckValue(program_.values[i], At("values", i)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckValue(const Value& value, const std::string& field) {
  int64_t count = 1;
  if (value.type.shape.size() > 8) return LimitError(field + ".shape", "at most 8 axes");
  for (int64_t dim : value.type.shape) {
    if (dim < 0) return FieldError(field + ".shape", absl::StrCat("negative axis ", dim));
    if (dim > limits_.max_elements || count > limits_.max_elements / std::max<int64_t>(dim, 1)) {
      return LimitError(field + ".shape", absl::StrCat("[", absl::StrJoin(value.type.shape, ","),
                                                       "] is above the limit of ",
                                                       limits_.max_elements, " elements"));
    }
    count *= dim;
  }
  elements_ += count;
  if (elements_ > limits_.max_total_elements) {
    return LimitError("values",
                      absl::StrCat("more than ", limits_.max_total_elements, " elements in all"));
  }
  if (static_cast<int64_t>(value.name.size()) > limits_.max_name_length) {
    return LimitError(field + ".name", absl::StrCat("longer than the limit of ",
                                                    limits_.max_name_length, " characters"));
  }
  if (value.format) return FieldError(field, "formats are the policy's to assign");
  return CountName(value.name, field + ".name");
}

// Lowering copies names, so their total length is bounded too.
absl::Status Verifier::CountName(const std::string& name, const std::string& field) {
  name_bytes_ += static_cast<int64_t>(name.size());
  if (name_bytes_ <= limits_.max_name_bytes) return absl::OkStatus();
  return LimitError(field, absl::StrCat("names, labels and descriptions hold more than ",
                                        limits_.max_name_bytes, " bytes in all"));
}

absl::Status Verifier::CountOperands(size_t count, const std::string& field) {
  if (static_cast<int64_t>(count) > limits_.max_operands) {
    return LimitError(field,
                      absl::StrCat(count, " in one list, the limit is ", limits_.max_operands));
  }
  operands_ += static_cast<int64_t>(count);
  budget_.Visit(static_cast<int64_t>(count));
  if (operands_ <= limits_.max_total_operands) return absl::OkStatus();
  return LimitError(field, absl::StrCat("more than ", limits_.max_total_operands,
                                        " operands, results, arguments and yields in all"));
}

absl::Status Verifier::CheckName(const std::string& name, const std::string& field) {
  if (name.empty() || static_cast<int64_t>(name.size()) > limits_.max_name_length) {
    return FieldError(field,
                      absl::StrCat("a name has 1 to ", limits_.max_name_length, " characters"));
  }
  for (char c : name) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '-' || c == '.';
    if (!fine) return FieldError(field, "a name is made of letters, digits, '_', '-' and '.'");
  }
  return CountName(name, field);
}

absl::Status Verifier::CheckInputs() {
  open_.push_back({});
  std::set<std::pair<InputKind, std::string>> names;
  bool states_over = false;
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const Input& input = program_.inputs[i];
    const std::string field = At("inputs", i);
    budget_.Visit();
    if (absl::Status s = CheckName(input.name, field + ".name"); !s.ok()) return s;
    if (absl::Status s = CountName(input.description, field + ".description"); !s.ok()) return s;
    if (!names.insert({input.kind, input.name}).second) {
      return FieldError(field + ".name", absl::StrCat("'", input.name, "' is used twice"));
    }
    if (!InTable(input.value)) return FieldError(field + ".value", "no such value");
    if (input.kind == InputKind::kState && states_over) {
      return FieldError(field + ".kind", "states come before all other inputs");
    }
    states_over = states_over || input.kind != InputKind::kState;
    if (absl::Status s = CheckInputType(input, field); !s.ok()) return s;
    if (absl::Status s = Define(input.value, field + ".value"); !s.ok()) return s;
    known_[Index(input.value)].free_in_mapped =
        input.kind == InputKind::kConfig || input.kind == InputKind::kStep;
  }
  if (program_.InputsOf(InputKind::kState).empty()) {
    return FieldError("inputs", "a world has at least one state");
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckInputType(const Input& input, const std::string& field) {
  const Type& type = program_[input.value].type;
  if (input.kind == InputKind::kConfig) {
    if (type != Type{ElementType::kReal, {}}) return FieldError(field, "config is a real scalar");
    if (!input.default_value)
      return FieldError(field + ".default_value", "config needs its number");
  }
  if (input.weights && (input.kind != InputKind::kParam || type.element != ElementType::kReal)) {
    return FieldError(field + ".weights", "only a real param is declared weights");
  }
  if (input.kind == InputKind::kStep && type != Type{ElementType::kI32, {}}) {
    return FieldError(field, "the step is an i32 scalar");
  }
  if (input.default_value && !std::isfinite(*input.default_value)) {
    return FieldError(field + ".default_value", "must be finite");
  }
  if (input.default_value && !Holds(type.element, *input.default_value)) {
    return FieldError(
        field + ".default_value",
        absl::StrCat(*input.default_value, " is not a number that ",
                     std::string(ElementTypeName(type.element)), " holds, or not exactly"));
  }
  return absl::OkStatus();
}

// Expects a program that is otherwise sound. A stage cost is part of its step.
absl::Status Verifier::CheckWork() const {
  const auto check = [this](double work, const std::string& field) {
    if (work <= static_cast<double>(limits_.max_step_work)) return absl::OkStatus();
    return LimitError(field, absl::StrCat("one step may take ", work,
                                          " element-operations with every loop at its cap; the "
                                          "limit is ",
                                          limits_.max_step_work));
  };
  const double step = WorkAtCaps(program_, program_.step);
  if (absl::Status s = check(step, "step"); !s.ok()) return s;
  if (absl::Status s = check(WorkAtCaps(program_, program_.initial), "initial"); !s.ok()) {
    return s;
  }
  for (size_t i = 0; i < program_.objectives.size(); ++i) {
    const Objective& objective = program_.objectives[i];
    const double stage = step + WorkAtCaps(program_, objective.stage);
    if (absl::Status s = check(stage, At("objectives", i) + ".stage"); !s.ok()) return s;
    const double terminal = WorkAtCaps(program_, objective.terminal);
    if (absl::Status s = check(terminal, At("objectives", i) + ".terminal"); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckExports() {
  std::set<std::string> names;
  for (const Input& input : program_.inputs) {
    if (input.kind == InputKind::kState) names.insert(input.name);
  }
  for (size_t i = 0; i < program_.exports.size(); ++i) {
    const Export& exported = program_.exports[i];
    const std::string field = At("exports", i);
    budget_.Visit();
    if (absl::Status s = CheckName(exported.name, field + ".name"); !s.ok()) return s;
    if (!names.insert(exported.name).second) {
      return FieldError(field + ".name",
                        absl::StrCat("'", exported.name, "' is already a state or an export"));
    }
    if (absl::Status s = Use(exported.value, field + ".value"); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckObjectives() {
  // Stage costs may use inputs and exported values; hide every other value of `step`.
  const std::vector<ValueId> of_step = open_.back().defined;
  std::set<ValueId> visible;
  for (const Export& exported : program_.exports) visible.insert(exported.value);
  for (ValueId id : of_step) {
    if (visible.count(id) == 0) known_[Index(id)].defined = false;
  }
  std::set<std::string> names;
  std::vector<Type> terminal;
  for (const Input& input : program_.inputs) {
    if (input.kind == InputKind::kState) terminal.push_back(program_[input.value].type);
  }
  for (const Export& exported : program_.exports) terminal.push_back(program_[exported.value].type);
  for (size_t i = 0; i < program_.objectives.size(); ++i) {
    const Objective& objective = program_.objectives[i];
    const std::string field = At("objectives", i);
    if (absl::Status s = CheckName(objective.name, field + ".name"); !s.ok()) return s;
    if (!names.insert(objective.name).second) {
      return FieldError(field + ".name", absl::StrCat("'", objective.name, "' is used twice"));
    }
    if (!objective.HasStage() && !objective.HasTerminal()) {
      return FieldError(field, "an objective has a stage cost or a terminal cost");
    }
    if (objective.HasStage()) {
      if (absl::Status s = TopRegion(objective.stage, field + ".stage", {}, Kind::kStage); !s.ok())
        return s;
    }
  }
  // Terminal costs see z[T] and the last exports as arguments; an input per step is that of step
  // T - 1 (docs/semantics.md).
  for (ValueId id : of_step) known_[Index(id)].defined = false;
  for (const Input& input : program_.inputs) {
    if (input.kind == InputKind::kState) known_[Index(input.value)].defined = false;
  }
  for (size_t i = 0; i < program_.objectives.size(); ++i) {
    const Objective& objective = program_.objectives[i];
    if (!objective.HasTerminal()) continue;
    const std::string field = At("objectives", i) + ".terminal";
    if (absl::Status s = TopRegion(objective.terminal, field, terminal, Kind::kTerminal); !s.ok())
      return s;
    if (absl::Status s = CheckStanding(objective.terminal, field); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// Observables of an instance that has halted are 0, so a terminal cost must not read them.
absl::Status Verifier::CheckStanding(const Region& terminal, const std::string& field) {
  if (halts_ == 0) return absl::OkStatus();
  std::vector<bool> used(program_.values.size(), false);
  MarkUses(terminal, used, &budget_);
  for (size_t k = program_.InputsOf(InputKind::kState).size(); k < terminal.args.size(); ++k) {
    if (!used[Index(terminal.args[k])]) continue;
    return FieldError(field, "in a program with halts a terminal cost reads states alone");
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim::internal

namespace simgrad::sim {

absl::Status Verify(const Program& program, const ProgramLimits& limits, PassBudget* budget) {
  PassBudget unlimited;
  absl::Status verified;
  const absl::Status ended = WithinBudget(
      [&] { verified = internal::Verifier(program, limits, budget ? *budget : unlimited).Run(); });
  return ended.ok() ? verified : ended;
}

}  // namespace simgrad::sim
