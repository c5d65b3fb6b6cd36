#include "sim/program/verify.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/program/field_error.h"
#include "sim/program/loop.h"
#include "sim/program/shape_rule.h"
#include "sim/program/step_work.h"

namespace simgrad::sim {
namespace {

std::string At(std::string_view list, size_t index) {
  return absl::StrCat(std::string(list), "[", index, "]");
}

// How far a value may be used, and what it hangs on.
struct Known {
  bool defined = false;
  int scope = 0;                   // index into Verifier::open_, at definition
  bool from_real_compare = false;  // hangs on an anonymous comparison of reals
  bool free_in_mapped = false;     // literal, config, step: usable inside a mapped loop as it is
};

class Verifier {
 public:
  Verifier(const Program& program, const ProgramLimits& limits)
      : program_(program), limits_(limits), known_(program.values.size()) {}

  absl::Status Run() {
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

 private:
  enum class Kind { kInitial, kStep, kStage, kTerminal };
  // One open region: its values are usable until it closes.
  struct Open {
    bool mapped = false;
    std::vector<ValueId> defined;
  };

  bool InTable(ValueId id) const {
    return static_cast<int32_t>(id) >= 0 && Index(id) < program_.values.size();
  }

  absl::Status CheckTables() {
    if (static_cast<int64_t>(program_.values.size()) > limits_.max_values) {
      return FieldError("values", absl::StrCat(program_.values.size(), " values, the limit is ",
                                               limits_.max_values));
    }
    if (absl::Status s = CheckName(program_.name, "name"); !s.ok()) return s;
    int64_t total = 0;
    for (size_t i = 0; i < program_.values.size(); ++i) {
      const Value& value = program_.values[i];
      int64_t count = 1;
      if (value.type.shape.size() > 8)
        return FieldError(At("values", i) + ".shape", "at most 8 axes");
      for (int64_t dim : value.type.shape) {
        if (dim < 0)
          return FieldError(At("values", i) + ".shape", absl::StrCat("negative axis ", dim));
        if (dim > limits_.max_elements ||
            count > limits_.max_elements / std::max<int64_t>(dim, 1)) {
          return FieldError(
              At("values", i) + ".shape",
              absl::StrCat("[", absl::StrJoin(value.type.shape, ","), "] is above the limit of ",
                           limits_.max_elements, " elements"));
        }
        count *= dim;
      }
      total += count;
      if (total > limits_.max_total_elements) {
        return FieldError(
            "values", absl::StrCat("more than ", limits_.max_total_elements, " elements in all"));
      }
      if (static_cast<int64_t>(value.name.size()) > limits_.max_name_length) {
        return FieldError(At("values", i) + ".name", "longer than the limit");
      }
      if (value.format) return FieldError(At("values", i), "formats are the policy's to assign");
    }
    return absl::OkStatus();
  }

  absl::Status CheckName(const std::string& name, const std::string& field) {
    if (name.empty() || static_cast<int64_t>(name.size()) > limits_.max_name_length) {
      return FieldError(field,
                        absl::StrCat("a name has 1 to ", limits_.max_name_length, " characters"));
    }
    for (char c : name) {
      const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                        (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
      if (!fine) return FieldError(field, "a name is made of letters, digits, '_', '-' and '.'");
    }
    return absl::OkStatus();
  }

  absl::Status CheckInputs() {
    open_.push_back({});
    std::set<std::pair<InputKind, std::string>> names;
    bool states_over = false;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const Input& input = program_.inputs[i];
      const std::string field = At("inputs", i);
      if (absl::Status s = CheckName(input.name, field + ".name"); !s.ok()) return s;
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

  absl::Status CheckInputType(const Input& input, const std::string& field) {
    const Type& type = program_[input.value].type;
    if (input.kind == InputKind::kConfig) {
      if (type != Type{ElementType::kReal, {}}) return FieldError(field, "config is a real scalar");
      if (!input.default_value)
        return FieldError(field + ".default_value", "config needs its number");
    }
    if (input.kind == InputKind::kStep && type != Type{ElementType::kI32, {}}) {
      return FieldError(field, "the step is an i32 scalar");
    }
    if (input.default_value && !std::isfinite(*input.default_value)) {
      return FieldError(field + ".default_value", "must be finite");
    }
    return absl::OkStatus();
  }

  absl::Status Define(ValueId id, const std::string& field) {
    if (!InTable(id)) return FieldError(field, absl::StrCat("no value ", static_cast<int32_t>(id)));
    Known& known = known_[Index(id)];
    if (known.defined || ever_.count(id) != 0) {
      return FieldError(field,
                        absl::StrCat("value ", static_cast<int32_t>(id), " is defined twice"));
    }
    ever_.insert(id);
    known.defined = true;
    known.scope = static_cast<int>(open_.size()) - 1;
    open_.back().defined.push_back(id);
    return absl::OkStatus();
  }

  absl::Status Use(ValueId id, const std::string& field) {
    if (!InTable(id)) return FieldError(field, absl::StrCat("no value ", static_cast<int32_t>(id)));
    const Known& known = known_[Index(id)];
    if (!known.defined) {
      return FieldError(field,
                        absl::StrCat("value ", static_cast<int32_t>(id),
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

  void Close() {
    for (ValueId id : open_.back().defined) known_[Index(id)].defined = false;
    open_.pop_back();
  }

  absl::Status TopRegion(const Region& region, const std::string& field,
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

  absl::Status CheckStates(const Region& region, const std::string& field) {
    const std::vector<int32_t> states = program_.InputsOf(InputKind::kState);
    if (region.yields.size() != states.size()) {
      return FieldError(field + ".yields",
                        absl::StrCat("needs one value per state, ", states.size(), ", has ",
                                     region.yields.size()));
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

  absl::Status OpenRegion(const Region& region, const std::string& field,
                          const std::vector<Type>& types, bool mapped) {
    if (static_cast<int64_t>(open_.size()) > limits_.max_depth + 3) {
      return FieldError(field, absl::StrCat("regions nest deeper than ", limits_.max_depth));
    }
    open_.push_back({mapped, {}});
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

  absl::Status UseYields(const Region& region, const std::string& field) {
    for (size_t i = 0; i < region.yields.size(); ++i) {
      if (absl::Status s = Use(region.yields[i], At(field + ".yields", i)); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status Ops(const Region& region, const std::string& field, int64_t depth,
                   int64_t iterations) {
    for (size_t i = 0; i < region.ops.size(); ++i) {
      const std::string here = At(field + ".ops", i);
      if (++operations_ > limits_.max_operations) {
        return FieldError(here, absl::StrCat("more than ", limits_.max_operations, " operations"));
      }
      absl::Status status = CheckOp(region.ops[i], here, depth, iterations);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status CheckOp(const Op& op, const std::string& field, int64_t depth, int64_t iterations) {
    if (InfoOf(op.code).op_class == OpClass::kAdjoint || op.code == OpCode::kWhileVjp ||
        op.code == OpCode::kForVjp || op.code == OpCode::kPad || op.code == OpCode::kAny) {
      return FieldError(field + ".code", absl::StrCat("'", std::string(InfoOf(op.code).name),
                                                      "' belongs to adjoint programs"));
    }
    if (absl::Status s = CheckContext(op, field); !s.ok()) return s;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (absl::Status s = Use(op.operands[i], At(field + ".operands", i)); !s.ok()) return s;
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (!InTable(op.results[i])) return FieldError(At(field + ".results", i), "no such value");
    }
    if (op.code == OpCode::kWhile || op.code == OpCode::kFor) {
      for (size_t i = 0; i < op.operands.size(); ++i) {
        if (absl::Status s = MayEnterLoop(op.operands[i], At(field + ".operands", i)); !s.ok()) {
          return s;
        }
      }
    }
    if (op.code == OpCode::kWhile) return CheckWhile(op, field, depth, iterations);
    if (op.code == OpCode::kFor) return CheckFor(op, field, depth, iterations);
    if (!op.regions.empty()) return FieldError(field + ".regions", "this operation has no regions");
    const absl::StatusOr<std::vector<Type>> types = ResultTypes(program_, op);
    if (!types.ok()) return InField(field, types.status());
    if (op.results.size() != types->size() || program_[op.results[0]].type != types->front()) {
      return FieldError(field + ".results",
                        absl::StrCat("'", std::string(InfoOf(op.code).name),
                                     "' gives another type than its result has"));
    }
    if (absl::Status s = CheckNumbers(op, field); !s.ok()) return s;
    if (op.code == OpCode::kEvent) {
      if (absl::Status s = CheckSite(op, field); !s.ok()) return s;
    }
    return Results(op, field);
  }

  absl::Status CheckContext(const Op& op, const std::string& field) {
    if (op.role == Role::kTape || op.role == Role::kAdjoint || op.role == Role::kGradient) {
      return FieldError(field + ".role",
                        absl::StrCat("a world does not compute in role '",
                                     std::string(precision::RoleName(op.role)), "'"));
    }
    if (static_cast<int64_t>(op.label.size()) > 4 * limits_.max_name_length) {
      return FieldError(field + ".label", "longer than the limit");
    }
    for (char c : op.label) {
      if (static_cast<unsigned char>(c) < 0x20)
        return FieldError(field + ".label", "control character");
    }
    if (!op.site.empty()) return CheckName(op.site, field + ".site");
    return absl::OkStatus();
  }

  absl::Status CheckNumbers(const Op& op, const std::string& field) {
    if (op.code == OpCode::kLiteral) {
      const ElementType element = program_[op.results[0]].type.element;
      for (double x : op.attributes.literal) {
        if (!std::isfinite(x)) return FieldError(field + ".literal", "must be finite");
        const double bound = element == ElementType::kI32 ? 2147483647.0 : 9007199254740992.0;
        if (element != ElementType::kReal && (x != std::floor(x) || std::abs(x) > bound)) {
          return FieldError(field + ".literal", "is not an integer that fits");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Results(const Op& op, const std::string& field) {
    bool tainted = false;
    const OpClass op_class = InfoOf(op.code).op_class;
    if (op_class == OpClass::kCompare) {
      tainted = program_[op.operands[0]].type.element == ElementType::kReal;
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

  absl::Status CheckSite(const Op& op, const std::string& field) {
    if (kind_ != Kind::kStep) {
      return FieldError(field + ".code", "sites stand in `step`; initial and costs decide nothing");
    }
    if (absl::Status s = CheckName(op.attributes.site, field + ".decision_site"); !s.ok()) return s;
    if (!sites_.insert(op.attributes.site).second) {
      return FieldError(field + ".decision_site",
                        absl::StrCat("site '", op.attributes.site, "' is named twice"));
    }
    return absl::OkStatus();
  }

  // Inside a loop nobody would know any more that a bool hangs on an anonymous comparison.
  absl::Status MayEnterLoop(ValueId id, const std::string& field) const {
    const bool real = program_[id].type.element == ElementType::kReal;
    if (real || !known_[Index(id)].from_real_compare) return absl::OkStatus();
    return FieldError(field,
                      "a loop carries what hangs on a comparison of reals; name it: use an event");
  }

  absl::Status CheckCap(int64_t cap, int64_t lowest, const std::string& field,
                        int64_t& iterations) {
    if (cap < lowest || cap > limits_.max_loop_iterations) {
      return FieldError(field + ".max_iter", absl::StrCat(cap, " is not in ", lowest, " to ",
                                                          limits_.max_loop_iterations));
    }
    iterations *= std::max<int64_t>(cap, 1);
    if (iterations > limits_.max_nested_iterations) {
      return FieldError(field + ".max_iter",
                        absl::StrCat("nested loops may run ", limits_.max_nested_iterations,
                                     " iterations in all"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckFor(const Op& op, const std::string& field, int64_t depth, int64_t iterations) {
    if (op.regions.size() != 1) return FieldError(field + ".regions", "for has one region");
    if (absl::Status s = CheckCap(op.attributes.max_iter, 0, field, iterations); !s.ok()) return s;
    const size_t carried = op.operands.size();
    if (op.attributes.carried != static_cast<int64_t>(carried) || op.results.size() != carried) {
      return FieldError(field + ".carried", "for carries exactly its operands and results");
    }
    std::vector<Type> types = {{ElementType::kI32, {}}};
    for (ValueId id : op.operands) types.push_back(program_[id].type);
    const Region& body = op.regions[0];
    const std::string here = field + ".regions[0]";
    if (absl::Status s = OpenRegion(body, here, types, false); !s.ok()) return s;
    if (absl::Status s = Ops(body, here, depth + 1, iterations); !s.ok()) return s;
    if (absl::Status s = UseYields(body, here); !s.ok()) return s;
    if (body.yields.size() != carried) return FieldError(here + ".yields", "one per carried value");
    for (size_t i = 0; i < carried; ++i) {
      if (absl::Status s = MayEnterLoop(body.yields[i], At(here + ".yields", i)); !s.ok()) return s;
      if (program_[body.yields[i]].type != types[i + 1] ||
          program_[op.results[i]].type != types[i + 1]) {
        return FieldError(At(here + ".yields", i), "differs from the carried type");
      }
    }
    Close();
    return LoopResults(op, field);
  }

  absl::Status LoopResults(const Op& op, const std::string& field) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (absl::Status s = Define(op.results[i], At(field + ".results", i)); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status CheckWhile(const Op& op, const std::string& field, int64_t depth,
                          int64_t iterations) {
    if (absl::Status s = CheckSite(op, field); !s.ok()) return s;
    if (op.regions.size() != 2)
      return FieldError(field + ".regions", "while has two regions, test and body");
    if (absl::Status s = CheckCap(op.attributes.max_iter, 1, field, iterations); !s.ok()) return s;
    const WhileCounts counts = CountsOf(op);
    const int64_t n = op.attributes.elements;
    if (counts.carried < 0 || counts.mapped < 0 || counts.exports < 0 || n < 0 ||
        (n == 0 && counts.mapped != 0)) {
      return FieldError(field + ".carried",
                        "the numbers of operands, results and carried values do not fit");
    }
    std::vector<Type> inner;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Type type = program_[op.operands[i]].type;
      if (n > 0) {
        if (type.shape.empty() || type.shape[0] != n) {
          return FieldError(At(field + ".operands", i),
                            absl::StrCat("needs a leading axis of ", n));
        }
        type.shape.erase(type.shape.begin());
      }
      inner.push_back(std::move(type));
    }
    std::vector<Type> exports;
    if (absl::Status s = CheckTest(op, field, inner, counts, depth, iterations, exports); !s.ok())
      return s;
    return CheckBody(op, field, inner, counts, exports, depth, iterations);
  }

  absl::Status CheckTest(const Op& op, const std::string& field, const std::vector<Type>& inner,
                         const WhileCounts& counts, int64_t depth, int64_t iterations,
                         std::vector<Type>& exports) {
    const Region& test = op.regions[0];
    const std::string here = field + ".regions[0]";
    if (absl::Status s = OpenRegion(test, here, inner, op.attributes.elements > 0); !s.ok())
      return s;
    if (absl::Status s = Ops(test, here, depth + 1, iterations); !s.ok()) return s;
    if (absl::Status s = UseYields(test, here); !s.ok()) return s;
    const size_t tested = op.attributes.has_entry ? 3 : 2;
    if (test.yields.size() != tested + static_cast<size_t>(counts.exports)) {
      return FieldError(here + ".yields", absl::StrCat("needs ", tested, " tested values and ",
                                                       counts.exports, " exports"));
    }
    for (size_t i = 0; i < test.yields.size(); ++i) {
      const Type& type = program_[test.yields[i]].type;
      if (i < tested && type != Type{ElementType::kReal, {}}) {
        return FieldError(At(here + ".yields", i), "what is tested is a real scalar");
      }
      if (i >= tested) {
        exports.push_back(type);
        export_taint_.push_back(known_[Index(test.yields[i])].from_real_compare);
      }
    }
    Close();
    return absl::OkStatus();
  }

  absl::Status CheckBody(const Op& op, const std::string& field, const std::vector<Type>& inner,
                         const WhileCounts& counts, const std::vector<Type>& exports, int64_t depth,
                         int64_t iterations) {
    const size_t c = static_cast<size_t>(counts.carried);
    const std::vector<bool> taint(export_taint_.end() - static_cast<int64_t>(exports.size()),
                                  export_taint_.end());
    export_taint_.resize(export_taint_.size() - exports.size());
    std::vector<Type> args(inner.begin(), inner.begin() + static_cast<int64_t>(c));
    args.insert(args.end(), exports.begin(), exports.end());
    args.insert(args.end(), inner.begin() + static_cast<int64_t>(c), inner.end());
    const Region& body = op.regions[1];
    const std::string here = field + ".regions[1]";
    if (absl::Status s = OpenRegion(body, here, args, op.attributes.elements > 0); !s.ok())
      return s;
    for (size_t i = 0; i < exports.size(); ++i) {
      known_[Index(body.args[c + i])].from_real_compare = taint[i];
    }
    if (absl::Status s = Ops(body, here, depth + 1, iterations); !s.ok()) return s;
    if (absl::Status s = UseYields(body, here); !s.ok()) return s;
    if (body.yields.size() != c) return FieldError(here + ".yields", "one per carried value");
    std::vector<Type> results(inner.begin(), inner.begin() + static_cast<int64_t>(c));
    for (size_t i = 0; i < c; ++i) {
      if (absl::Status s = MayEnterLoop(body.yields[i], At(here + ".yields", i)); !s.ok()) return s;
      if (program_[body.yields[i]].type != inner[i]) {
        return FieldError(At(here + ".yields", i), "differs from the carried type");
      }
    }
    results.insert(results.end(), exports.begin(), exports.end());
    results.push_back({ElementType::kI32, {}});
    for (size_t i = 0; i < results.size(); ++i) {
      Type type = results[i];
      if (op.attributes.elements > 0) type.shape.insert(type.shape.begin(), op.attributes.elements);
      if (program_[op.results[i]].type != type) {
        return FieldError(At(field + ".results", i), "has another type than the loop gives");
      }
    }
    Close();
    if (absl::Status s = LoopResults(op, field); !s.ok()) return s;
    for (size_t i = 0; i < exports.size(); ++i) {
      known_[Index(op.results[c + i])].from_real_compare = taint[i];
    }
    return absl::OkStatus();
  }

  // Of a program that is otherwise sound. A stage cost is part of its step.
  absl::Status CheckWork() const {
    const auto check = [this](double work, const std::string& field) {
      if (work <= static_cast<double>(limits_.max_step_work)) return absl::OkStatus();
      return FieldError(field, absl::StrCat("one step may take ", work,
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

  absl::Status CheckExports() {
    std::set<std::string> names;
    for (const Input& input : program_.inputs) {
      if (input.kind == InputKind::kState) names.insert(input.name);
    }
    for (size_t i = 0; i < program_.exports.size(); ++i) {
      const Export& exported = program_.exports[i];
      const std::string field = At("exports", i);
      if (absl::Status s = CheckName(exported.name, field + ".name"); !s.ok()) return s;
      if (!names.insert(exported.name).second) {
        return FieldError(field + ".name",
                          absl::StrCat("'", exported.name, "' is already a state or an export"));
      }
      if (absl::Status s = Use(exported.value, field + ".value"); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status CheckObjectives() {
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
    for (const Export& exported : program_.exports)
      terminal.push_back(program_[exported.value].type);
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
        if (absl::Status s = TopRegion(objective.stage, field + ".stage", {}, Kind::kStage);
            !s.ok())
          return s;
      }
    }
    // Terminal costs see z[T] and the last exports as arguments; an input per step is that of step
    // T - 1 (sim/backend/semantics.h).
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
    }
    return absl::OkStatus();
  }

  const Program& program_;
  const ProgramLimits& limits_;
  std::vector<Known> known_;
  std::set<ValueId> ever_;
  std::vector<Open> open_;
  std::set<std::string> sites_;
  std::vector<bool> export_taint_;
  Kind kind_ = Kind::kStep;
  int64_t operations_ = 0;
};

}  // namespace

absl::Status Verify(const Program& program, const ProgramLimits& limits) {
  return Verifier(program, limits).Run();
}

}  // namespace simgrad::sim
