// Operations that are computed together with the one that alone reads them, in one pass.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/identity.h"
#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {
namespace {

using enum OpCode;

int FormatIndex(Format format) { return static_cast<int>(format); }
int CarrierIndex(Carrier carrier) { return static_cast<int>(carrier); }

}  // namespace

// Whether the value is the literal +0 in every element.
bool Compiler::IsZeroLiteral(ValueId id) const {
  std::optional<bool>& known = zero_literal_[Index(id)];
  if (!known) known = LooksZero(id);
  return *known;
}

bool Compiler::LooksZero(ValueId id) const {
  const Op* op = producer_[Index(id)];
  while (op != nullptr && op->code == kBroadcast) op = producer_[Index(op->operands[0])];
  if (op == nullptr || op->code != kLiteral || !IsReal(op->results[0])) return false;
  return std::all_of(op->attributes.literal.begin(), op->attributes.literal.end(),
                     [](double x) { return x == 0.0 && !std::signbit(x); });
}

// Returns the only reader of `id`, if it is a later operation of this region; otherwise null.
const Op* Compiler::OnlyReader(ValueId id) const {
  if (uses_.count[Index(id)] != 1 || look_[Index(id)] || Stored(id)) return nullptr;
  const auto readers = ReadersAfter(id);
  return readers.empty() ? nullptr : &scope_->region->ops[readers[0].second];
}

// Returns the later operations of this region that read `id`, in the order of the text.
std::span<const std::pair<ValueId, size_t>> Compiler::ReadersAfter(ValueId id) const {
  const auto& all = scope_->readers;
  const auto first = std::lower_bound(all.begin(), all.end(), std::pair(id, scope_->at + 1));
  const auto last = std::lower_bound(first, all.end(), std::pair(id, SIZE_MAX));
  return {first, last};
}

// As OnlyReader, but an operation that only renames a value does not count as its reader.
const Op* Compiler::OnlyRealReader(ValueId id) const {
  const Op* reader = OnlyReader(id);
  while (reader != nullptr && IsIdentity(*program_, *reader)) {
    reader = OnlyReader(reader->results[0]);
  }
  return reader;
}

// Defers an operation: its reader computes it.
void Compiler::ReadLater(const Op& op, const Op& reader) {
  KeepOperands(op, reader);
  scope_->deferred[static_cast<int32_t>(op.results[0])] = &op;
  ++scope_->deferred_under[op.attributes.where];
}

void Compiler::ReadNow(std::unordered_map<int32_t, const Op*>::iterator deferred) {
  --scope_->deferred_under[deferred->second->attributes.where];
  scope_->deferred.erase(deferred);
}

// Keeps the places of the operands of an operation until `reader` has run.
void Compiler::KeepOperands(const Op& op, const Op& reader) {
  const size_t at = static_cast<size_t>(&reader - scope_->region->ops.data());
  for (ValueId id : op.operands) {
    const int32_t root = uses_.root[Index(id)];
    const auto last = scope_->last_at.find(root);
    if (last == scope_->last_at.end() || last->second < scope_->at || last->second >= at) continue;
    std::erase(scope_->last_used[last->second], root);
    scope_->last_used[at].push_back(root);
    last->second = at;
  }
}

// If the last instruction recomputes `x < bound` or `x > bound` and has one reader, removes it and
// returns its operands, so that the reader can fuse the comparison. A recorded x keeps its place
// until the region ends.
std::optional<Compiler::BoundTest> Compiler::TakeComparison(ValueId mask, Carrier carrier) {
  const Op* tape = producer_[Index(mask)];
  std::vector<Instruction>& code = scope_->plan->code;
  if (tape == nullptr || tape->code != kTape || code.empty()) return std::nullopt;
  if (code.back().to != At(mask)) return std::nullopt;
  // A deferred operation has no non-finite check of its own, so it does not count as a reader of
  // its `where` mask.
  const auto under = scope_->deferred_under.find(mask);
  const int32_t deferred = under == scope_->deferred_under.end() ? 0 : under->second;
  if (uses_.readers[Index(mask)] - deferred != 1) return std::nullopt;
  for (const Comparison comparison : {Comparison::kLt, Comparison::kGt}) {
    const Kernel kernel = kernels_.compare[static_cast<int>(comparison)][CarrierIndex(carrier)]
                                          [static_cast<int>(Operands2::kVU)];
    if (code.back().run != kernel) continue;
    const BoundTest test = {code.back().a, code.back().b, comparison == Comparison::kGt};
    code.pop_back();
    return test;
  }
  return std::nullopt;
}

// -x under max(-x, 0), added to a gradient, or merged with another cotangent: one pass.
bool Compiler::DeferNegation(const Op& op) {
  if (!IsReal(op.results[0]) || SlotAt(At(op.operands[0])).uniform) return false;
  if (hoists_ && SlotAt(At(op.operands[0])).invariant) return false;
  const Op* reader = OnlyRealReader(op.results[0]);
  if (reader != nullptr && (reader->code == kAccumulate || reader->code == kMerge)) {
    const bool takes = reader->code == kMerge ? reader->operands[1] == op.results[0]
                                              : TakesDeferred(*reader, op.results[0]);
    if (takes) ReadLater(op, *reader);
    return takes;
  }
  reader = LastReluReader(op.results[0]);
  if (reader == nullptr) return false;
  ReadLater(op, *reader);
  return true;
}

// The last reader of a value that max(x, 0) and x > 0 alone read.
const Op* Compiler::LastReluReader(ValueId x) const {
  if (look_[Index(x)] || Stored(x)) return nullptr;
  const Op* last = nullptr;
  int32_t readers = 0;
  for (const auto& [value, at] : ReadersAfter(x)) {
    const Op& op = scope_->region->ops[at];
    const bool left = op.operands.size() == 2 && op.operands[0] == x;
    const bool right = op.operands.size() == 2 && op.operands[1] == x;
    const bool relu = (op.code == kMax && left && IsZeroLiteral(op.operands[1])) ||
                      (op.code == kMax && right && IsZeroLiteral(op.operands[0])) ||
                      (op.code == kGt && left && IsZeroLiteral(op.operands[1]));
    if (!relu || IsUnread(op)) continue;
    ++readers;
    last = &op;
  }
  return readers == uses_.count[Index(x)] ? last : nullptr;
}

bool Compiler::CompileRelu(const Op& op) {
  if (!IsReal(op.results[0])) return false;
  for (size_t side = 0; side < 2; ++side) {
    const ValueId x = op.operands[side];
    if (!IsZeroLiteral(op.operands[1 - side])) continue;
    const auto negated = scope_->deferred.find(static_cast<int32_t>(x));
    const bool negates = negated != scope_->deferred.end();
    const int32_t a = At(negates ? negated->second->operands[0] : x);
    const Slot from = SlotAt(a);
    const int wide = from.carrier == Carrier::kF64 ? 1 : 0;
    const Kernel kernel = negates ? kernels_.relu_of_negative[wide] : kernels_.relu[wide];
    const int32_t to = Result(op.results[0], from.uniform, hoists_ && from.invariant);
    Emit(Make(kernel, to, a), to);
    return true;
  }
  return false;
}

// -x > 0 as x < 0.
bool Compiler::CompileIsNegative(const Op& op) {
  const auto negated = scope_->deferred.find(static_cast<int32_t>(op.operands[0]));
  if (op.code != kGt || negated == scope_->deferred.end()) return false;
  const int32_t x = At(negated->second->operands[0]);
  const int32_t zero = At(op.operands[1]);
  const Operands2 kind = SlotAt(zero).uniform ? Operands2::kVU : Operands2::kVV;
  const int32_t to = Result(op.results[0], false, false);
  const auto& kernels = kernels_.compare[static_cast<int>(Comparison::kLt)];
  Emit(Make(kernels[CarrierIndex(SlotAt(x).carrier)][static_cast<int>(kind)], to, x, zero), to);
  return true;
}

// A product whose only reader is a sum or accumulation of this region is computed with it
// in one pass: two roundings, one store.
bool Compiler::DeferProduct(const Op& op, bool invariant) {
  const ValueId product = op.results[0];
  const int32_t a = At(op.operands[0]);
  const int32_t b = At(op.operands[1]);
  if (invariant || (SlotAt(a).uniform && SlotAt(b).uniform)) return false;
  const Op* reader = OnlyRealReader(product);
  if (reader != nullptr && reader->code == kAccumulate && TakesDeferred(*reader, product)) {
    ReadLater(op, *reader);
    return true;
  }
  reader = OnlyReader(product);
  if (reader == nullptr || (reader->code != kAdd && reader->code != kSub)) return false;
  const ValueId other = reader->operands[reader->operands[0] == product ? 1 : 0];
  if (other == product || scope_->deferred.contains(static_cast<int32_t>(other))) return false;
  ReadLater(op, *reader);
  return true;
}

bool Compiler::CompileMultiplyAdd(const Op& op) {
  for (size_t side = 0; side < 2; ++side) {
    const auto found = scope_->deferred.find(static_cast<int32_t>(op.operands[side]));
    if (found == scope_->deferred.end()) continue;
    const Op& product = *found->second;
    int32_t a = At(product.operands[0]);
    int32_t b = At(product.operands[1]);
    if (SlotAt(a).uniform) std::swap(a, b);
    const bool uniform_b = SlotAt(b).uniform;
    const int32_t c = Varying(At(op.operands[1 - side]));
    const int32_t to = Result(op.results[0], false, false);
    const int shape = op.code == kAdd ? 0 : (side == 0 ? 1 : 2);
    const int format = FormatIndex(*ValueAt(op.results[0]).format);
    Emit(Make(kernels_.multiply_add[shape][format][uniform_b ? 1 : 0], to, a, b, c), to);
    ReadNow(found);
    return true;
  }
  return false;
}

}  // namespace simgrad::sim::cpu
