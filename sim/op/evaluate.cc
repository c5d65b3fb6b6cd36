#include "sim/op/evaluate.h"

#include <algorithm>

#include "precision/rounding.h"

namespace simgrad::sim {
namespace {

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
  return a < b || a > b;
}

}  // namespace

bool Compares(Comparison comparison, double a, double b) { return ComparesAny(comparison, a, b); }

bool Compares(Comparison comparison, int64_t a, int64_t b) { return ComparesAny(comparison, a, b); }

double FillOf(const Op& op, const Value& result) {
  const double fill = op.attributes.literal.empty() ? 0.0 : op.attributes.literal[0];
  if (result.type.element == ElementType::kBool) return fill != 0.0 ? 1.0 : 0.0;
  if (result.type.element != ElementType::kReal) return fill;
  return precision::RoundTo(*result.format, fill, Overflow::kSaturate);
}

Array FilledWith(const Op& op, const Value& result) {
  Array array = ZerosOf(result.type);
  const double fill = FillOf(op, result);
  std::fill(array.real.begin(), array.real.end(), fill);
  std::fill(array.integer.begin(), array.integer.end(), static_cast<int64_t>(fill));
  return array;
}

int64_t WrapTo(ElementType type, int64_t value) {
  if (type == ElementType::kI32) return static_cast<int32_t>(static_cast<uint64_t>(value));
  if (type == ElementType::kU32) return static_cast<uint32_t>(value);
  if (type == ElementType::kU8) return static_cast<uint8_t>(value);
  if (type == ElementType::kBool) return value != 0 ? 1 : 0;
  return value;
}

Array EvaluateElementwise(const Evaluation& e, const OpInfo& info) {
  const Value& value = e.result();
  Array result = ZerosOf(value.type);
  const auto at = [&](size_t k, size_t i) {
    return k < e.operands.size() ? e.operands[k]->real[i] : 0.0;
  };
  InPieces(e.meter, static_cast<int64_t>(result.real.size()), kElementWork,
           [&](int64_t begin, int64_t end) {
             for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
               result.real[i] = info.on_reals(*value.format, at(0, i), at(1, i), at(2, i));
             }
           });
  for (size_t i = 0; i < result.integer.size(); ++i) {
    const int64_t b = e.operands.size() > 1 ? e.operands[1]->integer[i] : 0;
    result.integer[i] = WrapTo(value.type.element, info.on_integers(e.operands[0]->integer[i], b));
  }
  return result;
}

}  // namespace simgrad::sim
