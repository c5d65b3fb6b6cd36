// Comparisons and select: what gives bools, and what they choose (bits.cc: what joins them).
#include "absl/strings/str_cat.h"
#include "precision/selection.h"
#include "sim/op/evaluate.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

template <bool kOfBools>
Types ComparisonTypes(const Program& program, const Op& op) {
  if (absl::Status status = SameTypes(program, op, 0); !status.ok()) return status;
  const Type& type = TypeOf(program, op, 0);
  if (type.element == ElementType::kBool && !kOfBools) return NotDefinedOn(op, type);
  return std::vector<Type>{{ElementType::kBool, type.shape}};
}

template <Comparison kComparison>
Array Compare(const Evaluation& e) {
  const Array& a = *e.operands[0];
  const Array& b = *e.operands[1];
  Array result;
  for (size_t i = 0; i < a.real.size(); ++i) {
    result.integer.push_back(Compares(kComparison, a.real[i], b.real[i]) ? 1 : 0);
  }
  for (size_t i = 0; i < a.integer.size(); ++i) {
    result.integer.push_back(Compares(kComparison, a.integer[i], b.integer[i]) ? 1 : 0);
  }
  return result;
}

Types OfRealTypes(const Program& program, const Op& op) {
  if (absl::Status status = NeedsElement(program, op, 0, ElementType::kReal); !status.ok()) {
    return status;
  }
  return std::vector<Type>{{ElementType::kBool, TypeOf(program, op, 0).shape}};
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

// Bools can only be compared with `eq` and `ne`.
template <Comparison kComparison>
consteval OpInfo ComparisonEntry(std::string_view name, std::string_view doc) {
  constexpr bool kOfBools = kComparison == Comparison::kEq || kComparison == Comparison::kNe;
  return Complete({.name = name,
                   .doc = doc,
                   .op_class = OpClass::kCompare,
                   .operands = "a, b",
                   .attributes = {Attribute::kSite, Attribute::kTestKind},
                   .result = Result::kBool,
                   .types = ComparisonTypes<kOfBools>,
                   .evaluate = Compare<kComparison>});
}

}  // namespace

const OpInfo kLt = ComparisonEntry<Comparison::kLt>(
    "lt",
    "The bool a < b. Of reals it is a site where the program's `level` says so; without a level it "
    "decides no `select` and enters no loop: use `event`.");
const OpInfo kLe = ComparisonEntry<Comparison::kLe>("le", "The bool a <= b; of reals as for `lt`.");
const OpInfo kGt = ComparisonEntry<Comparison::kGt>("gt", "The bool a > b; of reals as for `lt`.");
const OpInfo kGe = ComparisonEntry<Comparison::kGe>("ge", "The bool a >= b; of reals as for `lt`.");
const OpInfo kEq =
    ComparisonEntry<Comparison::kEq>("eq", "The bool a == b, also of bools; of reals as for `lt`.");
const OpInfo kNe = ComparisonEntry<Comparison::kNe>(
    "ne", "The bool a != b, also of bools, false where one is NaN; of reals as for `lt`.");

const OpInfo kIsFinite = Complete({
    .name = "is_finite",
    .doc = "Whether a real is neither infinite nor NaN; no test, as it has no threshold.",
    .op_class = OpClass::kPredicate,
    .operands = "a",
    .result = Result::kBool,
    .types = OfRealTypes,
    .evaluate =
        [](const Evaluation& e) {
          Array result;
          for (double x : e.operands[0]->real) {
            result.integer.push_back(precision::IsFinite(x) ? 1 : 0);
          }
          return result;
        },
});

const OpInfo kSelect = Complete({
    .name = "select",
    .doc = "a where the condition, a bool of their shape, holds, else b.",
    .op_class = OpClass::kChoice,
    .operands = "condition, a, b",
    .types = SelectTypes,
    .scale = ScaleRule::kChoice,
    .passage = [](const Program&, const Op&,
                  size_t operand) { return operand == 0 ? Passage::kNone : Passage::kMasked; },
    .vjp = [](VjpRule& r) { r.Choice(r.X(0), 1, 2); },
    .evaluate = EvaluateSelect,
});

}  // namespace simgrad::sim::op
