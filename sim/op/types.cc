#include "sim/op/types.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/program/axes.h"

namespace simgrad::sim {

std::string TypeText(const Type& type) {
  return absl::StrCat(std::string(ElementTypeName(type.element)), "[",
                      absl::StrJoin(type.shape, ","), "]");
}

std::string NameOf(const Op& op) { return std::string(InfoOf(op.code).name); }

absl::Status SameTypes(const Program& program, const Op& op, size_t first) {
  for (size_t i = first + 1; i < op.operands.size(); ++i) {
    if (TypeOf(program, op, i) != TypeOf(program, op, first)) {
      return FieldError(
          absl::StrCat("operands[", i, "]"),
          absl::StrCat(NameOf(op), " needs equal types, has ", TypeText(TypeOf(program, op, first)),
                       " and ", TypeText(TypeOf(program, op, i))));
    }
  }
  return absl::OkStatus();
}

absl::Status NeedsElement(const Program& program, const Op& op, size_t operand,
                          ElementType element) {
  if (TypeOf(program, op, operand).element == element) return absl::OkStatus();
  return FieldError(absl::StrCat("operands[", operand, "]"),
                    absl::StrCat(NameOf(op), " needs ", std::string(ElementTypeName(element)),
                                 ", has ", TypeText(TypeOf(program, op, operand))));
}

absl::Status NotDefinedOn(const Op& op, const Type& type) {
  return FieldError("operands[0]", absl::StrCat(NameOf(op), " is not defined on ", TypeText(type)));
}

Types ElementwiseTypes(const Program& program, const Op& op) {
  if (absl::Status status = SameTypes(program, op, 0); !status.ok()) return status;
  const Type& type = TypeOf(program, op, 0);
  const bool has_integers = InfoOf(op.code).on_integers != nullptr;
  if (type.element == ElementType::kBool || (IsInteger(type.element) && !has_integers)) {
    return NotDefinedOn(op, type);
  }
  return std::vector<Type>{type};
}

bool IsUnsigned(ElementType type) { return type == ElementType::kU32 || type == ElementType::kU8; }

bool IsInteger(ElementType type) {
  return type == ElementType::kI32 || type == ElementType::kI64 || IsUnsigned(type);
}

int BitsOf(ElementType type) {
  if (type == ElementType::kU8) return 8;
  return type == ElementType::kI64 ? 64 : 32;
}

bool Holds(ElementType type, double x) {
  if (type == ElementType::kReal) return true;
  if (x != std::floor(x)) return false;
  if (IsUnsigned(type)) return x >= 0.0 && x < std::ldexp(1.0, BitsOf(type));
  if (type == ElementType::kI32) return x >= -2147483648.0 && x <= 2147483647.0;
  return std::abs(x) <= 9007199254740992.0;
}

absl::Status CheckFill(const Op& op, const Type& type) {
  if (op.attributes.literal.size() > 1) return FieldError("fill", "is one number");
  const double fill = op.attributes.literal.empty() ? 0.0 : op.attributes.literal[0];
  if (!std::isfinite(fill)) return FieldError("fill", "must be finite");
  if (type.element != ElementType::kReal && !Holds(type.element, fill)) {
    return FieldError("fill", absl::StrCat(fill, " is no whole number that ",
                                           std::string(ElementTypeName(type.element)), " holds"));
  }
  return absl::OkStatus();
}

absl::Status CheckAxes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const auto& axes = op.attributes.axes;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= static_cast<int64_t>(type.shape.size()) ||
        (i > 0 && axes[i] <= axes[i - 1])) {
      return FieldError("axes", absl::StrCat("axes must ascend within rank ", type.shape.size(),
                                             ", are [", absl::StrJoin(axes, ","), "]"));
    }
  }
  return absl::OkStatus();
}

Shape KeptShape(const Program& program, const Op& op) {
  const Shape& shape = TypeOf(program, op, 0).shape;
  Shape kept;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (!IsReduced(op, axis)) kept.push_back(shape[axis]);
  }
  return kept;
}

Types SameAsOperand(const Program& program, const Op& op) {
  return std::vector<Type>{TypeOf(program, op, 0)};
}

Types OfResult(const Program& program, const Op& op) {
  if (op.results.size() != 1) return FieldError("results", NameOf(op) + " has one result");
  return std::vector<Type>{program[op.results[0]].type};
}

}  // namespace simgrad::sim
