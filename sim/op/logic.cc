// Comparisons, logic and select: what gives bools, and what they choose.
#include "absl/strings/str_cat.h"
#include "sim/op/evaluate.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

Types ComparisonTypes(const Program& program, const Op& op, bool of_bools) {
  if (absl::Status status = SameTypes(program, op, 0); !status.ok()) return status;
  const Type& type = TypeOf(program, op, 0);
  if (type.element == ElementType::kBool && !of_bools) return NotDefinedOn(op, type);
  return std::vector<Type>{{ElementType::kBool, type.shape}};
}
Types OrderTypes(const Program& program, const Op& op) {
  return ComparisonTypes(program, op, false);
}
Types EqualityTypes(const Program& program, const Op& op) {
  return ComparisonTypes(program, op, true);
}

Array Compare(const Evaluation& e, Comparison comparison) {
  const Array& a = *e.operands[0];
  const Array& b = *e.operands[1];
  Array result;
  for (size_t i = 0; i < a.real.size(); ++i) {
    result.integer.push_back(Compares(comparison, a.real[i], b.real[i]) ? 1 : 0);
  }
  for (size_t i = 0; i < a.integer.size(); ++i) {
    result.integer.push_back(Compares(comparison, a.integer[i], b.integer[i]) ? 1 : 0);
  }
  return result;
}

Types LogicTypes(const Program& program, const Op& op) {
  if (absl::Status status = NeedsElement(program, op, 0, ElementType::kBool); !status.ok()) {
    return status;
  }
  if (absl::Status status = SameTypes(program, op, 0); !status.ok()) return status;
  return std::vector<Type>{TypeOf(program, op, 0)};
}

// Element by element, of 0 and 1.
template <class F>
Array Logic(const Evaluation& e, const F& f) {
  Array result = ZerosOf(e.result().type);
  for (size_t i = 0; i < result.integer.size(); ++i) {
    const int64_t b = e.operands.size() > 1 ? e.operands[1]->integer[i] : 0;
    result.integer[i] = f(e.operands[0]->integer[i], b) ? 1 : 0;
  }
  return result;
}

Types SelectTypes(const Program& program, const Op& op) {
  if (absl::Status status = NeedsElement(program, op, 0, ElementType::kBool); !status.ok()) {
    return status;
  }
  if (absl::Status status = SameTypes(program, op, 1); !status.ok()) return status;
  if (TypeOf(program, op, 0).shape != TypeOf(program, op, 1).shape) {
    return FieldError(
        "operands[0]",
        absl::StrCat("select needs a condition of the operands' shape, ",
                     TypeText(TypeOf(program, op, 1)), ", has ", TypeText(TypeOf(program, op, 0))));
  }
  return std::vector<Type>{TypeOf(program, op, 1)};
}

Array EvaluateSelect(const Evaluation& e) {
  const Array& condition = *e.operands[0];
  const Array& a = *e.operands[1];
  Array result = *e.operands[2];
  for (size_t i = 0; i < condition.integer.size(); ++i) {
    if (condition.integer[i] != 0) CopyElement(a, i, result, i);
  }
  return result;
}

constexpr OpInfo ComparisonEntry(std::string_view name, std::string_view doc,
                                 Types (*types)(const Program&, const Op&),
                                 Array (*evaluate)(const Evaluation&)) {
  return {.name = name,
          .doc = doc,
          .op_class = OpClass::kCompare,
          .operands = "a, b",
          .result = Result::kBool,
          .types = types,
          .evaluate = evaluate};
}

}  // namespace

const OpInfo kLt = Complete(ComparisonEntry(
    "lt", "The bool a < b. Of reals it decides no `select` and enters no loop: use `event`.",
    OrderTypes, [](const Evaluation& e) { return Compare(e, Comparison::kLt); }));

const OpInfo kLe =
    Complete(ComparisonEntry("le", "The bool a <= b; of reals as for `lt`.", OrderTypes,
                             [](const Evaluation& e) { return Compare(e, Comparison::kLe); }));

const OpInfo kGt =
    Complete(ComparisonEntry("gt", "The bool a > b; of reals as for `lt`.", OrderTypes,
                             [](const Evaluation& e) { return Compare(e, Comparison::kGt); }));

const OpInfo kGe =
    Complete(ComparisonEntry("ge", "The bool a >= b; of reals as for `lt`.", OrderTypes,
                             [](const Evaluation& e) { return Compare(e, Comparison::kGe); }));

const OpInfo kEq = Complete(
    ComparisonEntry("eq", "The bool a == b, also of bools; of reals as for `lt`.", EqualityTypes,
                    [](const Evaluation& e) { return Compare(e, Comparison::kEq); }));

const OpInfo kNe = Complete(ComparisonEntry(
    "ne", "The bool a != b, also of bools, false where one is NaN; of reals as for `lt`.",
    EqualityTypes, [](const Evaluation& e) { return Compare(e, Comparison::kNe); }));

const OpInfo kAnd = Complete({
    .name = "and",
    .doc = "Whether both bools hold.",
    .op_class = OpClass::kLogic,
    .operands = "a, b",
    .result = Result::kBool,
    .types = LogicTypes,
    .evaluate =
        [](const Evaluation& e) {
          return Logic(e, [](int64_t a, int64_t b) { return a != 0 && b != 0; });
        },
});

const OpInfo kOr = Complete({
    .name = "or",
    .doc = "Whether one of two bools holds.",
    .op_class = OpClass::kLogic,
    .operands = "a, b",
    .result = Result::kBool,
    .types = LogicTypes,
    .evaluate =
        [](const Evaluation& e) {
          return Logic(e, [](int64_t a, int64_t b) { return a != 0 || b != 0; });
        },
});

const OpInfo kNot = Complete({
    .name = "not",
    .doc = "Whether a bool does not hold.",
    .op_class = OpClass::kLogic,
    .operands = "a",
    .result = Result::kBool,
    .types = LogicTypes,
    .evaluate =
        [](const Evaluation& e) { return Logic(e, [](int64_t a, int64_t) { return a == 0; }); },
});

const OpInfo kSelect = Complete({
    .name = "select",
    .doc = "a where the condition, a bool of their shape, holds, else b.",
    .op_class = OpClass::kChoice,
    .operands = "condition, a, b",
    .types = SelectTypes,
    .passage = [](const Program&, const Op&,
                  size_t operand) { return operand == 0 ? Passage::kNone : Passage::kMasked; },
    .vjp = [](VjpRule& r) { r.Choice(r.X(0), 1, 2); },
    .evaluate = EvaluateSelect,
});

}  // namespace simgrad::sim::op
