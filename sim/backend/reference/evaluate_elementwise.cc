// Elementwise arithmetic, comparisons, logic and select.
#include <cmath>

#include "precision/arithmetic.h"
#include "precision/elementary.h"
#include "precision/selection.h"
#include "sim/backend/reference/evaluate.h"

namespace simgrad::sim::reference {
namespace {

using enum OpCode;

double Elementary(OpCode code, double a, double b) {
  switch (code) {
    case kExp:
      return precision::Exp(a);
    case kLog:
      return precision::Log(a);
    case kLog1p:
      return precision::Log1p(a);
    case kExpm1:
      return precision::Expm1(a);
    case kSin:
      return precision::Sin(a);
    case kCos:
      return precision::Cos(a);
    case kTanh:
      return precision::Tanh(a);
    case kSigmoid:
      return precision::Sigmoid(a);
    case kSoftplus:
      return precision::Softplus(a);
    case kAtan2:
      return precision::Atan2(a, b);
    default:
      return precision::Pow(a, b);
  }
}

double OnReals(OpCode code, Format format, double a, double b, double c) {
  switch (code) {
    case kAdd:
      return precision::Add(format, a, b);
    case kSub:
      return precision::Sub(format, a, b);
    case kMul:
      return precision::Mul(format, a, b);
    case kDiv:
      return precision::Div(format, a, b);
    case kFma:
      return precision::Fma(format, a, b, c);
    case kSqrt:
      return precision::Sqrt(format, a);
    case kMod:
      return precision::Mod(format, a, b);
    case kNeg:
      return precision::Neg(a);
    case kAbs:
      return precision::Abs(a);
    case kSign:
      return precision::Sign(a);
    case kMin:
      return precision::Min(a, b);
    case kMax:
      return precision::Max(a, b);
    case kFloor:
      return precision::Floor(a);
    case kRound:
      return precision::Round(a);
    default:
      return precision::RoundTo(format, Elementary(code, a, b));
  }
}

// Unsigned arithmetic wraps; the caller wraps once more to the width of the type.
int64_t Wrapping(OpCode code, int64_t a, int64_t b) {
  const uint64_t x = static_cast<uint64_t>(a);
  const uint64_t y = static_cast<uint64_t>(b);
  switch (code) {
    case kAdd:
      return static_cast<int64_t>(x + y);
    case kSub:
      return static_cast<int64_t>(x - y);
    case kMul:
      return static_cast<int64_t>(x * y);
    default:
      return static_cast<int64_t>(0 - x);  // neg
  }
}

// Toward minus infinity; 0 for a zero divisor; the smallest number by -1 wraps to itself.
int64_t FloorDivide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return Wrapping(kNeg, a, 0);
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// The remainder of FloorDivide: it has the sign of b.
int64_t FloorRemainder(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

int64_t OnIntegers(OpCode code, int64_t a, int64_t b) {
  switch (code) {
    case kAbs:
      return a < 0 ? Wrapping(kNeg, a, 0) : a;
    case kSign:
      return a > 0 ? 1 : a < 0 ? -1 : 0;
    case kMin:
      return a < b ? a : b;
    case kMax:
      return a > b ? a : b;
    case kDiv:
      return FloorDivide(a, b);
    case kMod:
      return FloorRemainder(a, b);
    case kAnd:
      return a & b;
    case kOr:
      return a | b;
    case kNot:
      return a == 0 ? 1 : 0;
    default:
      return Wrapping(code, a, b);
  }
}

Array Compare(Comparison comparison, const Array& a, const Array& b) {
  Array result;
  for (size_t i = 0; i < a.real.size(); ++i) {
    result.integer.push_back(Compares(comparison, a.real[i], b.real[i]) ? 1 : 0);
  }
  for (size_t i = 0; i < a.integer.size(); ++i) {
    result.integer.push_back(Compares(comparison, a.integer[i], b.integer[i]) ? 1 : 0);
  }
  return result;
}

Array Select(const Array& condition, const Array& a, const Array& b) {
  Array result = b;
  for (size_t i = 0; i < condition.integer.size(); ++i) {
    if (condition.integer[i] == 0) continue;
    if (a.real.empty()) {
      result.integer[i] = a.integer[i];
    } else {
      result.real[i] = a.real[i];
    }
  }
  return result;
}

template <class T>
bool ComparesAny(Comparison comparison, T a, T b) {
  switch (comparison) {
    case Comparison::kLt:
      return a < b;
    case Comparison::kLe:
      return a <= b;
    case Comparison::kGt:
      return a > b;
    case Comparison::kGe:
      return a >= b;
    case Comparison::kEq:
      return a == b;
    case Comparison::kNe:
      break;
  }
  // A comparison with NaN is false, this one included (docs/numerics.md section 2).
  return a < b || a > b;
}

}  // namespace

bool Compares(Comparison comparison, double a, double b) { return ComparesAny(comparison, a, b); }

bool Compares(Comparison comparison, int64_t a, int64_t b) { return ComparesAny(comparison, a, b); }

int64_t WrapTo(ElementType type, int64_t value) {
  if (type == ElementType::kI32) return static_cast<int32_t>(static_cast<uint64_t>(value));
  if (type == ElementType::kBool) return value != 0 ? 1 : 0;
  return value;
}

Array EvaluateElementwise(const Program& program, const Op& op, Operands operands,
                          WorkMeter& meter) {
  if (InfoOf(op.code).op_class == OpClass::kCompare) {
    const int offset = static_cast<int>(op.code) - static_cast<int>(kLt);
    return Compare(static_cast<Comparison>(offset), *operands[0], *operands[1]);
  }
  if (op.code == kSelect) return Select(*operands[0], *operands[1], *operands[2]);
  const Value& value = program[op.results[0]];
  Array result = ZerosOf(value.type);
  const auto at = [&](size_t k, size_t i) {
    return k < operands.size() ? operands[k]->real[i] : 0.0;
  };
  InPieces(meter, static_cast<int64_t>(result.real.size()), kElementWork,
           [&](int64_t begin, int64_t end) {
             for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
               result.real[i] = OnReals(op.code, *value.format, at(0, i), at(1, i), at(2, i));
             }
           });
  for (size_t i = 0; i < result.integer.size(); ++i) {
    const int64_t b = operands.size() > 1 ? operands[1]->integer[i] : 0;
    result.integer[i] = WrapTo(value.type.element, OnIntegers(op.code, operands[0]->integer[i], b));
  }
  return result;
}

}  // namespace simgrad::sim::reference
