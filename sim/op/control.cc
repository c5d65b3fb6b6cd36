// Where control flow is decided: events and loops. The reference executor runs them among the
// regions; loop.h says what loops mean.
#include "absl/strings/str_cat.h"
#include "sim/op/types.h"

namespace simgrad::sim::op {
namespace {

Types EventTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  if (TypeOf(program, op, 1) != type || type.element == ElementType::kBool) {
    return FieldError("operands[1]",
                      absl::StrCat("event compares two equal real or integer types, has ",
                                   TypeText(type), " and ", TypeText(TypeOf(program, op, 1))));
  }
  const Type result{ElementType::kBool, type.shape};
  if (op.operands.size() == 3 && TypeOf(program, op, 2) != result) {
    return FieldError("operands[2]", absl::StrCat("the guard must be ", TypeText(result), ", is ",
                                                  TypeText(TypeOf(program, op, 2))));
  }
  return std::vector<Type>{result};
}

}  // namespace

const OpInfo kEvent = Complete({
    .name = "event",
    .doc = "The bool (a `comparison` b) and guard, of reals or integers: the named site "
           "`decision_site`, one decision per element. Where the guard is false nothing is "
           "decided.",
    .op_class = OpClass::kControl,
    .operands = "a, b, guard?",
    .attributes = {Attribute::kSite, Attribute::kComparison},
    .result = Result::kBool,
    .types = EventTypes,
});

const OpInfo kWhile = Complete({
    .name = "while",
    .doc = "A loop that stops when its test holds, or at its cap; below.",
    .op_class = OpClass::kControl,
    .operands = "carried, mapped, ...",
    .attributes = {Attribute::kSite, Attribute::kComparison, Attribute::kMaxIter,
                   Attribute::kCapFirst, Attribute::kHasEntry, Attribute::kElements,
                   Attribute::kCarried},
});

const OpInfo kFor = Complete({
    .name = "for",
    .doc = "A loop of `max_iter` iterations over `carried` values. Region: args index (i32), "
           "carried; yields carried. Results: carried.",
    .op_class = OpClass::kControl,
    .operands = "carried, ...",
    .attributes = {Attribute::kCount, Attribute::kForCarried},
});

}  // namespace simgrad::sim::op
