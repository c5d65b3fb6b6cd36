#include "server/conversion/enum_names.h"

#include <array>
#include <cstddef>

namespace simgrad::server::conversion {
namespace {

// Both lists are in the same order; the messages' begin with UNSPECIFIED where `Offset` is 1.
template <class Sim, class Proto, int kCount, int kOffset>
std::optional<Sim> Numbered(Proto value) {
  const int index = static_cast<int>(value) - kOffset;
  if (index < 0 || index >= kCount) return std::nullopt;
  return static_cast<Sim>(index);
}

constexpr std::array<const char*, 6> kComparisons = {"lt", "le", "gt", "ge", "eq", "ne"};

static_assert(static_cast<int>(sim::DType::kU8) + 1 == v1::DTYPE_U8);
static_assert(static_cast<int>(sim::InputKind::kStep) + 1 == v1::INPUT_KIND_STEP);
static_assert(static_cast<int>(sim::ElementType::kU8) == v1::ELEMENT_TYPE_U8);
static_assert(static_cast<size_t>(sim::Comparison::kNe) + 1 == kComparisons.size());

}  // namespace

v1::DType ToProto(sim::DType dtype) { return static_cast<v1::DType>(static_cast<int>(dtype) + 1); }
std::optional<sim::DType> FromProto(v1::DType dtype) {
  return Numbered<sim::DType, v1::DType, 11, 1>(dtype);
}

v1::InputKind ToProto(sim::InputKind kind) {
  return static_cast<v1::InputKind>(static_cast<int>(kind) + 1);
}
std::optional<sim::InputKind> FromProto(v1::InputKind kind) {
  return Numbered<sim::InputKind, v1::InputKind, 6, 1>(kind);
}

v1::ElementType ToProto(sim::ElementType element) {
  return static_cast<v1::ElementType>(static_cast<int>(element));
}
std::optional<sim::ElementType> FromProto(v1::ElementType element) {
  return Numbered<sim::ElementType, v1::ElementType, 6, 0>(element);
}

std::string ComparisonName(sim::Comparison comparison) {
  return kComparisons[static_cast<size_t>(comparison)];
}

std::optional<sim::Comparison> ComparisonFromName(const std::string& name) {
  for (size_t i = 0; i < kComparisons.size(); ++i) {
    if (name == kComparisons[i]) return static_cast<sim::Comparison>(i);
  }
  return std::nullopt;
}

}  // namespace simgrad::server::conversion
