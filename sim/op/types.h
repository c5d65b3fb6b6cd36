// Rules for the types of results that several operations share; `ResultTypes` calls an entry's.
//
// Errors: INVALID_ARGUMENT with a field inside the operation.
#pragma once

#include <string>

#include "sim/op/op_info.h"
#include "sim/program/field_error.h"

namespace simgrad::sim {

std::string TypeText(const Type& type);  // "f64[3,4]"
std::string NameOf(const Op& op);

inline const Type& TypeOf(const Program& program, const Op& op, size_t operand) {
  return program[op.operands[operand]].type;
}

// Operands from `first` on have one type.
absl::Status SameTypes(const Program& program, const Op& op, size_t first);
absl::Status NeedsElement(const Program& program, const Op& op, size_t operand,
                          ElementType element);
// The operand is not of the type of this operation.
absl::Status NotDefinedOn(const Op& op, const Type& type);

// Whether a type is i32, i64, u32 or u8.
bool IsInteger(ElementType type);
bool IsUnsigned(ElementType type);
int BitsOf(ElementType type);  // of an integer
// Whether a literal or `fill` of this type may be the finite number x. Of a bool any whole number.
bool Holds(ElementType type, double x);

// `fill`, the number that stands where the operand has none.
absl::Status CheckFill(const Op& op, const Type& type);

// `axes` ascend within the rank of the first operand.
absl::Status CheckAxes(const Program& program, const Op& op);
// The shape of the first operand without `axes`.
Shape KeptShape(const Program& program, const Op& op);

Types SameAsOperand(const Program& program, const Op& op);
// The type that the result has been given.
Types OfResult(const Program& program, const Op& op);

}  // namespace simgrad::sim
