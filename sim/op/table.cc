#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "sim/op/evaluate.h"
#include "sim/program/field_error.h"

namespace simgrad::sim {
namespace {

constexpr const OpInfo* kTable[] = {
#define SIMGRAD_OPERATION(Name) &op::k##Name,
#include "sim/op/operations.inc"
#undef SIMGRAD_OPERATION
};

}  // namespace

const OpInfo& InfoOf(OpCode code) { return *kTable[static_cast<size_t>(code)]; }

std::optional<OpCode> OpFromName(std::string_view name) {
  static const auto* const kCodes = [] {
    auto* codes = new std::unordered_map<std::string_view, OpCode>;
    EachOp([&](OpCode code, const OpInfo& info) { codes->emplace(info.name, code); });
    return codes;
  }();
  const auto found = kCodes->find(name);
  if (found == kCodes->end()) return std::nullopt;
  return found->second;
}

void HasNoRule(OpCode code, std::string_view executor) {
  std::fprintf(stderr, "%.*s has no rule for '%s'\n", static_cast<int>(executor.size()),
               executor.data(), std::string(InfoOf(code).name).c_str());
  std::abort();
}

Types ResultTypes(const Program& program, const Op& op) {
  const OpInfo& info = InfoOf(op.code);
  const int given = static_cast<int>(op.operands.size());
  if (given < info.operands.least || (info.operands.most >= 0 && given > info.operands.most)) {
    const std::string expected =
        info.operands.IsFixed()  ? absl::StrCat(info.operands.least)
        : info.operands.most < 0 ? absl::StrCat("at least ", info.operands.least)
                                 : absl::StrCat(info.operands.least, " or ", info.operands.most);
    return FieldError("operands", absl::StrCat(std::string(info.name), " takes ", expected,
                                               " operands, has ", given));
  }
  if (info.types == nullptr) return absl::InternalError(std::string(info.name) + " has regions");
  return info.types(program, op);
}

Array Evaluate(const Evaluation& e) {
  const OpInfo& info = InfoOf(e.op.code);
  if (info.evaluate != nullptr) return info.evaluate(e);
  if (info.on_reals == nullptr) HasNoRule(e.op.code, "reference");
  return EvaluateElementwise(e, info);
}

}  // namespace simgrad::sim
