#include "server/conversion/op_attributes.h"

#include <bit>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/validation/request_error.h"

namespace simgrad::server::conversion {
namespace {

using enum sim::OpCode;

enum Attribute : uint32_t {
  kLiteralNumbers = 1u << 0,
  kAxes = 1u << 1,
  kStart = 1u << 2,
  kShape = 1u << 3,
  kDims = 1u << 4,
  kDecisionSite = 1u << 5,
  kComparison = 1u << 6,
  kMaxIter = 1u << 7,
  kCapFirst = 1u << 8,
  kHasEntry = 1u << 9,
  kElements = 1u << 10,
  kCarried = 1u << 11,
  kFormat = 1u << 12,
  kOverflow = 1u << 13,
  kReverse = 1u << 14,
};
// Of the bits above, in their order.
constexpr const char* kNames[] = {"literal",   "axes",          "start",      "shape",
                                  "dims",      "decision_site", "comparison", "max_iter",
                                  "cap_first", "has_entry",     "elements",   "carried",
                                  "format",    "overflow",      "reverse"};

// As sim/program/opcode.h describes them.
uint32_t AttributesOf(sim::OpCode code) {
  switch (code) {
    case kLiteral:
      return kLiteralNumbers;
    case kBroadcast:
      return kShape | kDims;
    case kReshape:
      return kShape;
    case kSlice:
    case kPad:
      return kStart | kShape;
    case kConcat:
    case kSum:
    case kReduceMax:
    case kReduceMin:
    case kArgmax:
    case kArgmin:
    case kAny:
      return kAxes;
    case kCumsum:
      return kAxes | kReverse;
    case kCast:
      return kFormat | kOverflow;
    case kEvent:
      return kDecisionSite | kComparison;
    case kWhile:
      return kDecisionSite | kComparison | kMaxIter | kCapFirst | kHasEntry | kElements | kCarried;
    case kFor:
      return kMaxIter | kCarried;
    default:
      return 0;
  }
}

uint32_t SentIn(const v1::Op& op) {
  const bool sent[] = {
      op.literal_size() > 0,    op.axes_size() > 0,     op.start_size() > 0,
      op.shape_size() > 0,      op.dims_size() > 0,     !op.decision_site().empty(),
      !op.comparison().empty(), op.max_iter() != 0,     op.cap_first(),
      op.has_entry(),           op.elements() != 0,     op.carried() != 0,
      !op.format().empty(),     !op.overflow().empty(), op.reverse()};
  static_assert(std::size(sent) == std::size(kNames));
  uint32_t bits = 0;
  for (size_t i = 0; i < std::size(sent); ++i) bits |= sent[i] ? 1u << i : 0u;
  return bits;
}

}  // namespace

absl::Status CheckAttributes(const v1::Op& op, sim::OpCode code, const std::string& path) {
  const uint32_t known = AttributesOf(code);
  const uint32_t sent = SentIn(op);
  if (const uint32_t unused = sent & ~known; unused != 0) {
    const char* name = kNames[std::countr_zero(unused)];
    return validation::InvalidField(
        absl::StrCat(path, ".", name),
        absl::StrCat("'", op.code(), "' has no ", name, "; leave it out"));
  }
  if ((known & kComparison) != 0 && (sent & kComparison) == 0) {
    return validation::InvalidField(
        path + ".comparison",
        absl::StrCat("'", op.code(), "' compares; one of lt, le, gt, ge, eq, ne"));
  }
  return absl::OkStatus();
}

}  // namespace simgrad::server::conversion
