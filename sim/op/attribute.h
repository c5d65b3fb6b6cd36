// The attributes that operations may have: name in the message, place in Attributes, text.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/program/program.h"

namespace simgrad::sim {

// In the order in which an operation's text gives them.
enum class Attribute : uint8_t {
  kLiteral,
  kAxes,
  kStart,
  kShape,
  kDims,
  kSite,
  kComparison,
  kMaxIter,
  kCount,  // `for`: stands in max_iter too
  kCapFirst,
  kHasEntry,
  kPredicate,
  kElements,
  kCarried,
  kScanned,  // `for`
  kTestKind,
  kForCarried,  // `for`: says nothing that its operands do not, and is not printed
  kFormat,
  kReverse,
  kStride,
  kInterior,
  kIndices,
  kFill,
  kBounds,
  kCombine,
  kUpper,
  kTransposed,
  kUnit,
  kError,   // `halt`
  kTarget,  // the format of `fake_quantize`, which is not that of its result
  // Filled in by a pass, and in no message.
  kDraw,
  kInputs,    // `matmul`: how it reads its operands
  kProducts,  // `matmul`: how it adds them
  kOrder,
  kAccumulator,
  kTaped,
  kReversed,
  kLast,
  kOverflow,
  kRounding,
  kInput,
};
inline constexpr int kAttributeCount = static_cast<int>(Attribute::kInput) + 1;

class AttributeSet {
 public:
  constexpr AttributeSet() = default;
  constexpr AttributeSet(std::initializer_list<Attribute> attributes) {
    for (Attribute a : attributes) bits_ |= uint64_t{1} << static_cast<int>(a);
  }
  constexpr bool Has(Attribute a) const { return (bits_ >> static_cast<int>(a) & 1) != 0; }

 private:
  uint64_t bits_ = 0;
};

// The member of Attributes in which an attribute stands.
using AttributeField =
    std::variant<std::monostate, std::vector<double> Attributes::*,
                 std::vector<int64_t> Attributes::*, std::string Attributes::*,
                 Comparison Attributes::*, CapOrder Attributes::*, int64_t Attributes::*,
                 int32_t Attributes::*, bool Attributes::*, Bounds Attributes::*,
                 Combine Attributes::*, std::optional<Format> Attributes::*,
                 std::optional<Overflow> Attributes::*, std::optional<CastRounding> Attributes::*,
                 TestKind Attributes::*>;

struct AttributeInfo {
  std::string_view name;  // of the field of simgrad.v1.Op; empty: in no message
  AttributeField field;   // std::monostate: in no message
  // Returns the attribute as the text of `op` has it, with a space in front. `used` names a value.
  using ValueNames = std::function<std::string(ValueId)>;
  std::string (*text)(const Program& program, const Op& op, const ValueNames& used);
};

const AttributeInfo& InfoOf(Attribute attribute);

// "clip", "add"; kNone: "". Of an unknown name: nothing.
std::string_view BoundsName(Bounds bounds);
std::string_view CombineName(Combine combine);
std::optional<Bounds> BoundsFromName(std::string_view name);
std::optional<Combine> CombineFromName(std::string_view name);

// In their order.
template <class F>
void EachAttribute(const AttributeSet& set, const F& f) {
  for (int i = 0; i < kAttributeCount; ++i) {
    if (set.Has(static_cast<Attribute>(i))) f(static_cast<Attribute>(i));
  }
}

}  // namespace simgrad::sim
