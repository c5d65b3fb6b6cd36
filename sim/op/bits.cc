// Logic of bools, the same bit by bit of integers, and shifts.
#include "sim/op/evaluate.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

Types LogicTypes(const Program& program, const Op& op) {
  if (absl::Status status = SameTypes(program, op, 0); !status.ok()) return status;
  const Type& type = TypeOf(program, op, 0);
  if (type.element == ElementType::kReal) return NotDefinedOn(op, type);
  return std::vector<Type>{type};
}

Types ShiftTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  if (type.element == ElementType::kBool) return NotDefinedOn(op, type);
  return LogicTypes(program, op);
}

// Element by element, in two's complement before it wraps to the width of the type; an operation
// with one operand ignores `b`.
template <int64_t (*kBits)(ElementType type, int64_t a, int64_t b)>
Array Bits(const Evaluation& e) {
  const ElementType type = e.result().type.element;
  Array result = ZerosOf(e.result().type);
  for (size_t i = 0; i < result.integer.size(); ++i) {
    const int64_t b = e.operands.size() > 1 ? e.operands[1]->integer[i] : 0;
    result.integer[i] = WrapTo(type, kBits(type, e.operands[0]->integer[i], b));
  }
  return result;
}

int64_t Both(ElementType, int64_t a, int64_t b) { return a & b; }
int64_t Either(ElementType, int64_t a, int64_t b) { return a | b; }
int64_t OneOf(ElementType, int64_t a, int64_t b) { return a ^ b; }
int64_t Opposite(ElementType type, int64_t a, int64_t) {
  return type == ElementType::kBool ? 1 - a : ~a;
}

bool IsWithinWidth(ElementType type, int64_t count) { return 0 <= count && count < BitsOf(type); }

int64_t Left(ElementType type, int64_t a, int64_t count) {
  if (!IsWithinWidth(type, count)) return 0;
  return static_cast<int64_t>(static_cast<uint64_t>(a) << count);
}

// Unsigned numbers are not negative here, so what is left of them in the end is 0.
int64_t Right(ElementType type, int64_t a, int64_t count) {
  return a >> (IsWithinWidth(type, count) ? count : 63);
}

template <int64_t (*kBits)(ElementType type, int64_t a, int64_t b)>
consteval OpInfo LogicEntry(std::string_view name, std::string_view doc, Operands operands,
                            Rule<Types(const Program& program, const Op& op)> types = LogicTypes) {
  return Complete({.name = name,
                   .doc = doc,
                   .op_class = OpClass::kLogic,
                   .operands = operands,
                   .types = types,
                   .evaluate = Bits<kBits>});
}

}  // namespace

const OpInfo kAnd = LogicEntry<Both>(
    "and", "Whether both bools hold; of integers the bits that both have.", "a, b");
const OpInfo kOr = LogicEntry<Either>(
    "or", "Whether one of two bools holds; of integers the bits that one of them has.", "a, b");
const OpInfo kNot = LogicEntry<Opposite>(
    "not", "Whether a bool does not hold; of an integer the bits that it does not have.", "a");
const OpInfo kXor = LogicEntry<OneOf>(
    "xor", "Whether just one of two bools holds; of integers the bits that just one of them has.",
    "a, b");
const OpInfo kShl = LogicEntry<Left>(
    "shl",
    "The bits of an integer moved up by b places; 0 where b is negative, or the width or more.",
    "a, b", ShiftTypes);
const OpInfo kShr = LogicEntry<Right>(
    "shr",
    "The bits of an integer moved down by b places, copies of the sign behind them; nothing but "
    "the sign where b is negative, or the width or more.",
    "a, b", ShiftTypes);

}  // namespace simgrad::sim::op
