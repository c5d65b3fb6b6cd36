// Regions and the operations in them: what is defined where, types, roles, sites.
#include <cmath>

#include "sim/op/op_info.h"
#include "sim/op/types.h"
#include "sim/program/field_error.h"
#include "sim/program/verifier.h"

namespace simgrad::sim::internal {

absl::Status Verifier::Define(ValueId id, const std::string& field) {
  if (!InTable(id)) return FieldError(field, absl::StrCat("no value ", static_cast<int32_t>(id)));
  Known& known = known_[Index(id)];
  if (known.defined || ever_.count(id) != 0) {
    return FieldError(field, absl::StrCat("value ", static_cast<int32_t>(id), " is defined twice"));
  }
  ever_.insert(id);
  known.defined = true;
  known.scope = static_cast<int>(open_.size()) - 1;
  open_.back().defined.push_back(id);
  return absl::OkStatus();
}

absl::Status Verifier::Use(ValueId id, const std::string& field) {
  if (!InTable(id)) return FieldError(field, absl::StrCat("no value ", static_cast<int32_t>(id)));
  const Known& known = known_[Index(id)];
  if (!known.defined) {
    return FieldError(field, absl::StrCat("value ", static_cast<int32_t>(id),
                                          " is used before it is defined, or outside its region"));
  }
  for (size_t scope = open_.size() - 1; static_cast<int>(scope) > known.scope; --scope) {
    if (open_[scope].mapped && !known.free_in_mapped) {
      return FieldError(field,
                        absl::StrCat("value ", static_cast<int32_t>(id),
                                     " from outside is used in a loop per element; pass it as "
                                     "a mapped operand"));
    }
  }
  return absl::OkStatus();
}

void Verifier::Close() {
  for (ValueId id : open_.back().defined) known_[Index(id)].defined = false;
  open_.pop_back();
}

absl::Status Verifier::TopRegion(const Region& region, const std::string& field,
                                 const std::vector<Type>& arg_types, Kind kind) {
  kind_ = kind;
  // The values of `step` stay usable for exports; stage and terminal see inputs only through
  // `open_`.
  if (absl::Status s = OpenRegion(region, field, arg_types, false); !s.ok()) return s;
  if (absl::Status s = Ops(region, field, 1, 1); !s.ok()) return s;
  if (absl::Status s = UseYields(region, field); !s.ok()) return s;
  if (kind == Kind::kStep || kind == Kind::kInitial) {
    if (absl::Status s = CheckStates(region, field); !s.ok()) return s;
  } else if (region.yields.size() != 1 ||
             program_[region.yields[0]].type != Type{ElementType::kReal, {}}) {
    return FieldError(field + ".yields", "a cost is one real scalar");
  }
  if (kind != Kind::kStep) Close();
  return absl::OkStatus();
}

absl::Status Verifier::CheckStates(const Region& region, const std::string& field) {
  const std::vector<int32_t> states = program_.InputsOf(InputKind::kState);
  if (region.yields.size() != states.size()) {
    return FieldError(field + ".yields", absl::StrCat("needs one value per state, ", states.size(),
                                                      ", has ", region.yields.size()));
  }
  for (size_t i = 0; i < states.size(); ++i) {
    const Input& input = program_.inputs[static_cast<size_t>(states[i])];
    if (program_[region.yields[i]].type != program_[input.value].type) {
      return FieldError(At(field + ".yields", i),
                        absl::StrCat("differs from the type of state '", input.name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status Verifier::OpenRegion(const Region& region, const std::string& field,
                                  const std::vector<Type>& types, bool mapped) {
  if (static_cast<int64_t>(open_.size()) > limits_.max_depth + 3) {
    return LimitError(field, absl::StrCat("regions nest deeper than ", limits_.max_depth));
  }
  open_.push_back({mapped, {}});
  if (absl::Status s = CountOperands(region.args.size(), field + ".args"); !s.ok()) return s;
  if (region.args.size() != types.size()) {
    return FieldError(field + ".args",
                      absl::StrCat("needs ", types.size(), ", has ", region.args.size()));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (absl::Status s = Define(region.args[i], At(field + ".args", i)); !s.ok()) return s;
    if (program_[region.args[i]].type != types[i]) {
      return FieldError(At(field + ".args", i), "has another type than what enters the region");
    }
  }
  return absl::OkStatus();
}

absl::Status Verifier::UseYields(const Region& region, const std::string& field) {
  if (absl::Status s = CountOperands(region.yields.size(), field + ".yields"); !s.ok()) return s;
  for (size_t i = 0; i < region.yields.size(); ++i) {
    if (absl::Status s = Use(region.yields[i], At(field + ".yields", i)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Verifier::Ops(const Region& region, const std::string& field, int64_t depth,
                           int64_t iterations) {
  for (size_t i = 0; i < region.ops.size(); ++i) {
    const std::string here = At(field + ".ops", i);
    budget_.Visit();
    if (++operations_ > limits_.max_operations) {
      return LimitError(here, absl::StrCat("more than ", limits_.max_operations, " operations"));
    }
    absl::Status status = CheckOp(region.ops[i], here, depth, iterations);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckOp(const Op& op, const std::string& field, int64_t depth,
                               int64_t iterations) {
  if (!InfoOf(op.code).in_worlds) {
    return FieldError(field + ".code", absl::StrCat("'", std::string(InfoOf(op.code).name),
                                                    "' belongs to adjoint programs"));
  }
  if (absl::Status s = CheckContext(op, field); !s.ok()) return s;
  if (absl::Status s = CheckSizes(op, field); !s.ok()) return s;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    if (absl::Status s = Use(op.operands[i], At(field + ".operands", i)); !s.ok()) return s;
  }
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (!InTable(op.results[i])) return FieldError(At(field + ".results", i), "no such value");
  }
  const bool has_regions = op.code == OpCode::kWhile || op.code == OpCode::kFor ||
                           op.code == OpCode::kCond || op.code == OpCode::kCall;
  if (has_regions) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (absl::Status s = MayEnterLoop(op.operands[i], At(field + ".operands", i)); !s.ok()) {
        return s;
      }
    }
  }
  if (op.code == OpCode::kWhile) return CheckWhile(op, field, depth, iterations);
  if (op.code == OpCode::kFor) return CheckFor(op, field, depth, iterations);
  if (op.code == OpCode::kCond) return CheckCond(op, field, depth, iterations);
  if (op.code == OpCode::kCall) return CheckCall(op, field, depth, iterations);
  if (!op.regions.empty()) return FieldError(field + ".regions", "this operation has no regions");
  if (op.code == OpCode::kHalt) return CheckHalt(op, field);
  const absl::StatusOr<std::vector<Type>> types = ResultTypes(program_, op);
  if (!types.ok()) return InField(field, types.status());
  if (op.results.size() != types->size()) {
    return FieldError(field + ".results",
                      absl::StrCat("'", std::string(InfoOf(op.code).name), "' gives ",
                                   types->size(), ", has ", op.results.size()));
  }
  if (program_[op.results[0]].type != types->front()) {
    return FieldError(field + ".results", absl::StrCat("'", std::string(InfoOf(op.code).name),
                                                       "' gives another type than its result has"));
  }
  if (absl::Status s = CheckNumbers(op, field); !s.ok()) return s;
  if (absl::Status s = CheckDraw(op, field); !s.ok()) return s;
  if (IsTest(op) || op.code == OpCode::kAccept || !op.attributes.site.empty()) {
    if (absl::Status s = CheckNamedTest(op, field); !s.ok()) return s;
  }
  return Results(op, field);
}

absl::Status Verifier::CheckContext(const Op& op, const std::string& field) {
  if (op.role == Role::kTape || op.role == Role::kAdjoint || op.role == Role::kGradient) {
    return FieldError(field + ".role",
                      absl::StrCat("a world does not compute in role '",
                                   std::string(precision::RoleName(op.role)), "'"));
  }
  if (static_cast<int64_t>(op.label.size()) > 4 * limits_.max_name_length) {
    return LimitError(field + ".label", absl::StrCat("longer than the limit of ",
                                                     4 * limits_.max_name_length, " characters"));
  }
  if (absl::Status s = CountName(op.label, field + ".label"); !s.ok()) return s;
  for (char c : op.label) {
    if (static_cast<unsigned char>(c) < 0x20)
      return FieldError(field + ".label", "control character");
  }
  if (!op.site.empty()) return CheckName(op.site, field + ".site");
  return absl::OkStatus();
}

// Lists that no rule reads are copied with the operation all the same.
absl::Status Verifier::CheckSizes(const Op& op, const std::string& field) {
  if (absl::Status s = CountOperands(op.operands.size(), field + ".operands"); !s.ok()) return s;
  if (absl::Status s = CountOperands(op.results.size(), field + ".results"); !s.ok()) return s;
  const Attributes& a = op.attributes;
  const bool lists_elements = op.code == OpCode::kTake;
  for (const std::vector<int64_t>* list : {&a.axes, &a.start, &a.shape, &a.dims}) {
    if (list->size() > 8 && !(lists_elements && list == &a.start)) {
      return LimitError(field, "a list of axes has at most 8 entries");
    }
  }
  if (absl::Status s = CountName(a.site, field + ".decision_site"); !s.ok()) return s;
  const int64_t numbers =
      static_cast<int64_t>(a.literal.size() + (lists_elements ? a.start.size() : 0));
  literal_elements_ += numbers;
  budget_.Visit(numbers / 16);
  if (literal_elements_ <= limits_.max_literal_elements) return absl::OkStatus();
  return LimitError(
      field + ".literal",
      absl::StrCat("literals hold more than ", limits_.max_literal_elements, " numbers in all"));
}

absl::Status Verifier::CheckNumbers(const Op& op, const std::string& field) {
  if (op.code == OpCode::kLiteral) {
    const ElementType element = program_[op.results[0]].type.element;
    for (double x : op.attributes.literal) {
      if (std::isnan(x)) return FieldError(field + ".literal", "must be a number, not NaN");
      if (std::isinf(x) && element != ElementType::kReal) {
        return FieldError(field + ".literal", "an infinite number is a real");
      }
      if (!Holds(element, x)) {
        return FieldError(
            field + ".literal",
            absl::StrCat(
                x, " is no whole number that ", std::string(ElementTypeName(element)), " holds",
                element == ElementType::kI64 ? "; its literals are from -2^53 to 2^53" : ""));
      }
    }
  }
  return absl::OkStatus();
}

// It stands in `step` itself, where every instance comes once in a step.
absl::Status Verifier::CheckHalt(const Op& op, const std::string& field) {
  if (op.operands.size() != 1 || program_[op.operands[0]].type != Type{ElementType::kBool, {}}) {
    return FieldError(field + ".operands", "halt takes one bool scalar");
  }
  if (!op.results.empty()) return FieldError(field + ".results", "halt gives nothing");
  if (absl::Status s = MayEnterLoop(op.operands[0], field + ".operands[0]"); !s.ok()) return s;
  if (kind_ != Kind::kStep || open_.size() != 2) {
    return FieldError(field + ".code", "halt stands in `step`, and in no region of it");
  }
  if (++halts_ > kMostHalts) {
    return LimitError(field, absl::StrCat("more than ", kMostHalts, " halts"));
  }
  return CheckName(op.attributes.site, field + ".decision_site");
}

absl::Status Verifier::CheckDraw(const Op& op, const std::string& field) const {
  const bool casts = IsStochastic(op);
  if (op.code != OpCode::kUniform && op.code != OpCode::kNormal && !casts) return absl::OkStatus();
  if (kind_ == Kind::kStep && in_vjp_ == 0) return absl::OkStatus();
  return FieldError(field + (casts ? ".rounding" : ".code"),
                    "draws stand in `step`, and in no vjp");
}

absl::Status Verifier::Results(const Op& op, const std::string& field) {
  bool tainted = false;
  const OpClass op_class = InfoOf(op.code).op_class;
  if (op_class == OpClass::kCompare) {
    tainted = program_.IsReal(op.operands[0]) && program_.level == TestLevel::kDeclared;
  }
  if (op.code != OpCode::kEvent) {
    for (ValueId id : op.operands) tainted = tainted || known_[Index(id)].from_real_compare;
  }
  if (op.code == OpCode::kSelect && known_[Index(op.operands[0])].from_real_compare) {
    return FieldError(
        field + ".operands[0]",
        "a select on a comparison of reals decides control flow; name it: use an event");
  }
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (absl::Status s = Define(op.results[i], At(field + ".results", i)); !s.ok()) return s;
    known_[Index(op.results[i])].from_real_compare = tainted;
    known_[Index(op.results[i])].free_in_mapped = op.code == OpCode::kLiteral;
  }
  return absl::OkStatus();
}

// An event, or a comparison with a name of its own.
absl::Status Verifier::CheckNamedTest(const Op& op, const std::string& field) {
  const bool has_level = program_.level != TestLevel::kDeclared;
  if (InfoOf(op.code).op_class == OpClass::kCompare && !has_level) {
    return FieldError(field + ".decision_site",
                      "a comparison is a test with a name only where the program states a level");
  }
  if (op.attributes.kind != TestKind::kFromFlow && !has_level) {
    return FieldError(field + ".test_kind", "tests have a kind where the program states a level");
  }
  return CheckSite(op, field);
}

// A decision inside a vjp has a name and is not recorded.
absl::Status Verifier::CheckSite(const Op& op, const std::string& field) {
  if (in_vjp_ > 0) return CheckName(op.attributes.site, field + ".decision_site");
  if (kind_ != Kind::kStep) {
    return FieldError(field + ".code", "sites stand in `step`; initial and costs decide nothing");
  }
  if (absl::Status s = CheckName(op.attributes.site, field + ".decision_site"); !s.ok()) return s;
  const bool once = program_.level == TestLevel::kDeclared;
  if (!sites_.insert(op.attributes.site).second && once) {
    return FieldError(field + ".decision_site",
                      absl::StrCat("site '", op.attributes.site, "' is named twice"));
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim::internal
