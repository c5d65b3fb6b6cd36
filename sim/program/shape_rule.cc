#include "sim/program/shape_rule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/program/field_error.h"

namespace simgrad::sim {
namespace {

using Types = absl::StatusOr<std::vector<Type>>;

std::string Text(const Type& type) {
  return absl::StrCat(std::string(ElementTypeName(type.element)), "[",
                      absl::StrJoin(type.shape, ","), "]");
}

std::string Name(const Op& op) { return std::string(InfoOf(op.code).name); }

const Type& TypeOf(const Program& program, const Op& op, size_t operand) {
  return program[op.operands[operand]].type;
}

absl::Status SameTypes(const Program& program, const Op& op, size_t first) {
  for (size_t i = first + 1; i < op.operands.size(); ++i) {
    if (TypeOf(program, op, i) != TypeOf(program, op, first)) {
      return FieldError(
          absl::StrCat("operands[", i, "]"),
          absl::StrCat(Name(op), " needs equal types, has ", Text(TypeOf(program, op, first)),
                       " and ", Text(TypeOf(program, op, i))));
    }
  }
  return absl::OkStatus();
}

absl::Status NeedsElement(const Program& program, const Op& op, size_t operand,
                          ElementType element) {
  if (TypeOf(program, op, operand).element == element) return absl::OkStatus();
  return FieldError(absl::StrCat("operands[", operand, "]"),
                    absl::StrCat(Name(op), " needs ", std::string(ElementTypeName(element)),
                                 ", has ", Text(TypeOf(program, op, operand))));
}

Types ElementwiseRule(const Program& program, const Op& op) {
  if (absl::Status status = SameTypes(program, op, 0); !status.ok()) return status;
  const Type& type = TypeOf(program, op, 0);
  const bool integer = type.element == ElementType::kI32 || type.element == ElementType::kI64;
  if (type.element == ElementType::kBool || (integer && !InfoOf(op.code).on_integers)) {
    return FieldError("operands[0]", absl::StrCat(Name(op), " is not defined on ", Text(type)));
  }
  return std::vector<Type>{type};
}

Types LogicRule(const Program& program, const Op& op) {
  if (absl::Status status = NeedsElement(program, op, 0, ElementType::kBool); !status.ok()) {
    return status;
  }
  if (absl::Status status = SameTypes(program, op, 0); !status.ok()) return status;
  return std::vector<Type>{TypeOf(program, op, 0)};
}

Types CompareRule(const Program& program, const Op& op) {
  if (absl::Status status = SameTypes(program, op, 0); !status.ok()) return status;
  const Type& type = TypeOf(program, op, 0);
  const bool equality = op.code == OpCode::kEq || op.code == OpCode::kNe;
  if (type.element == ElementType::kBool && !equality) {
    return FieldError("operands[0]", absl::StrCat(Name(op), " is not defined on ", Text(type)));
  }
  return std::vector<Type>{{ElementType::kBool, type.shape}};
}

Types SelectRule(const Program& program, const Op& op) {
  if (absl::Status status = NeedsElement(program, op, 0, ElementType::kBool); !status.ok()) {
    return status;
  }
  if (absl::Status status = SameTypes(program, op, 1); !status.ok()) return status;
  if (TypeOf(program, op, 0).shape != TypeOf(program, op, 1).shape) {
    return FieldError(
        "operands[0]",
        absl::StrCat("select needs a condition of the operands' shape, ",
                     Text(TypeOf(program, op, 1)), ", has ", Text(TypeOf(program, op, 0))));
  }
  return std::vector<Type>{TypeOf(program, op, 1)};
}

Types EventRule(const Program& program, const Op& op) {
  if (op.operands.size() != 2 && op.operands.size() != 3) {
    return FieldError("operands",
                      absl::StrCat("event takes 2 or 3 operands, has ", op.operands.size()));
  }
  const Type& type = TypeOf(program, op, 0);
  if (TypeOf(program, op, 1) != type || type.element == ElementType::kBool) {
    return FieldError("operands[1]",
                      absl::StrCat("event compares two equal real or integer types, has ",
                                   Text(type), " and ", Text(TypeOf(program, op, 1))));
  }
  const Type result{ElementType::kBool, type.shape};
  if (op.operands.size() == 3 && TypeOf(program, op, 2) != result) {
    return FieldError("operands[2]", absl::StrCat("the guard must be ", Text(result), ", is ",
                                                  Text(TypeOf(program, op, 2))));
  }
  return std::vector<Type>{result};
}

Types BroadcastRule(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const auto& dims = op.attributes.dims;
  const Shape& shape = op.attributes.shape;
  if (dims.size() != type.shape.size()) {
    return FieldError("dims", absl::StrCat("needs one axis per axis of the operand, ",
                                           type.shape.size(), ", has ", dims.size()));
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const bool ascending = i == 0 || dims[i] > dims[i - 1];
    if (dims[i] < 0 || dims[i] >= static_cast<int64_t>(shape.size()) || !ascending ||
        shape[static_cast<size_t>(dims[i])] != type.shape[i]) {
      return FieldError("dims", absl::StrCat("axis ", dims[i], " does not fit: ", Text(type),
                                             " to [", absl::StrJoin(shape, ","), "]"));
    }
  }
  return std::vector<Type>{{type.element, shape}};
}

// slice takes a part out of the operand; pad puts the operand into a larger shape.
Types WindowRule(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const Shape& shape = op.attributes.shape;
  const bool slice = op.code == OpCode::kSlice;
  const Shape& large = slice ? type.shape : shape;
  const Shape& small = slice ? shape : type.shape;
  if (shape.size() != type.shape.size() || op.attributes.start.size() != type.shape.size()) {
    return FieldError("start", absl::StrCat("start and shape need ", type.shape.size(), " axes"));
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t start = op.attributes.start[i];
    if (start < 0 || start > large[i] || small[i] < 0 || small[i] > large[i] - start) {
      return FieldError("start", absl::StrCat("[", start, ", ", start, " + ", small[i],
                                              ") leaves axis ", i, " of length ", large[i]));
    }
  }
  return std::vector<Type>{{type.element, shape}};
}

Types ConcatRule(const Program& program, const Op& op) {
  if (op.operands.empty()) return FieldError("operands", "concat needs at least one operand");
  Type type = TypeOf(program, op, 0);
  if (op.attributes.axes.size() != 1 || op.attributes.axes[0] < 0 ||
      op.attributes.axes[0] >= static_cast<int64_t>(type.shape.size())) {
    return FieldError("axes", "concat needs one axis of its operands");
  }
  const size_t axis = static_cast<size_t>(op.attributes.axes[0]);
  for (size_t i = 1; i < op.operands.size(); ++i) {
    Type other = TypeOf(program, op, i);
    if (other.shape.size() != type.shape.size() || other.element != type.element) {
      return FieldError(absl::StrCat("operands[", i, "]"),
                        "concat needs equal element types and ranks");
    }
    const int64_t length = other.shape[axis];
    other.shape[axis] = type.shape[axis];
    if (other.shape != type.shape) {
      return FieldError(absl::StrCat("operands[", i, "]"),
                        absl::StrCat("concat operands differ outside axis ", axis));
    }
    type.shape[axis] += length;
  }
  return std::vector<Type>{type};
}

Types ReductionRule(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const auto& axes = op.attributes.axes;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= static_cast<int64_t>(type.shape.size()) ||
        (i > 0 && axes[i] <= axes[i - 1])) {
      return FieldError("axes", absl::StrCat("axes must ascend within rank ", type.shape.size(),
                                             ", are [", absl::StrJoin(axes, ","), "]"));
    }
  }
  const ElementType needed = op.code == OpCode::kAny ? ElementType::kBool : ElementType::kReal;
  if (absl::Status status = NeedsElement(program, op, 0, needed); !status.ok()) return status;
  if (op.code == OpCode::kCumsum) {
    if (axes.size() != 1) return FieldError("axes", "cumsum takes one axis");
    return std::vector<Type>{type};
  }
  const bool argument = op.code == OpCode::kArgmax || op.code == OpCode::kArgmin;
  const bool extreme = argument || op.code == OpCode::kReduceMax || op.code == OpCode::kReduceMin;
  if (extreme && axes.size() != 1) return FieldError("axes", Name(op) + " takes one axis");
  Type result{argument ? ElementType::kI32 : type.element, {}};
  int64_t reduced = 1;
  for (size_t i = 0; i < type.shape.size(); ++i) {
    const bool goes = std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) != axes.end();
    if (goes)
      reduced *= type.shape[i];
    else
      result.shape.push_back(type.shape[i]);
  }
  if (extreme && reduced == 0)
    return FieldError("axes", Name(op) + " of no elements is not defined");
  return std::vector<Type>{result};
}

Types FromResult(const Program& program, const Op& op) {
  if (op.results.size() != 1) {
    return FieldError("results", Name(op) + " has one result");
  }
  return std::vector<Type>{program[op.results[0]].type};
}

Types LiteralRule(const Program& program, const Op& op) {
  Types types = FromResult(program, op);
  if (!types.ok()) return types;
  const int64_t count = ElementCount(types->front().shape);
  const size_t given = op.attributes.literal.size();
  if (given != 1 && static_cast<int64_t>(given) != count) {
    const std::string each = count == 1 ? "" : absl::StrCat(" or ", count);
    return FieldError("literal", absl::StrCat("needs 1 number", each, ", has ", given));
  }
  return types;
}

Types AdjointRule(const Program& program, const Op& op) {
  switch (op.code) {
    case OpCode::kTape:
      return FromResult(program, op);
    case OpCode::kMerge:
    case OpCode::kMerge2:
      return std::vector<Type>{TypeOf(program, op, 0)};
    default:
      return std::vector<Type>{};  // accumulate
  }
}

Types ReshapeRule(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  if (ElementCount(op.attributes.shape) != ElementCount(type.shape)) {
    return FieldError("shape", absl::StrCat("[", absl::StrJoin(op.attributes.shape, ","),
                                            "] has another number of elements than ", Text(type)));
  }
  return std::vector<Type>{{type.element, op.attributes.shape}};
}

Types ShapeRule(const Program& program, const Op& op) {
  switch (op.code) {
    case OpCode::kBroadcast:
      return BroadcastRule(program, op);
    case OpCode::kReshape:
      return ReshapeRule(program, op);
    case OpCode::kConcat:
      return ConcatRule(program, op);
    default:
      return WindowRule(program, op);
  }
}

Types PrecisionRule(const Program& program, const Op& op) {
  if (op.code == OpCode::kStopGradient) return std::vector<Type>{TypeOf(program, op, 0)};
  if (op.code == OpCode::kCast) {
    if (absl::Status status = NeedsElement(program, op, 0, ElementType::kReal); !status.ok()) {
      return status;
    }
    return std::vector<Type>{TypeOf(program, op, 0)};
  }
  if (op.results.size() != 1) return FieldError("results", "convert has one result");
  return std::vector<Type>{{program[op.results[0]].type.element, TypeOf(program, op, 0).shape}};
}

}  // namespace

absl::StatusOr<std::vector<Type>> ResultTypes(const Program& program, const Op& op) {
  const OpInfo& info = InfoOf(op.code);
  if (info.operands >= 0 && static_cast<int>(op.operands.size()) != info.operands) {
    return FieldError(
        "operands", absl::StrCat(Name(op), " takes ", info.operands, ", has ", op.operands.size()));
  }
  switch (info.op_class) {
    case OpClass::kElementwise:
      return ElementwiseRule(program, op);
    case OpClass::kCompare:
      return CompareRule(program, op);
    case OpClass::kLogic:
      return LogicRule(program, op);
    case OpClass::kChoice:
      return SelectRule(program, op);
    case OpClass::kShape:
      return ShapeRule(program, op);
    case OpClass::kReduction:
      return ReductionRule(program, op);
    case OpClass::kPrecision:
      return PrecisionRule(program, op);
    case OpClass::kConstant:
      return LiteralRule(program, op);
    case OpClass::kAdjoint:
      return AdjointRule(program, op);
    case OpClass::kControl:
      break;
  }
  if (op.code == OpCode::kEvent) return EventRule(program, op);
  return absl::InternalError(Name(op) + " has regions");
}

}  // namespace simgrad::sim
