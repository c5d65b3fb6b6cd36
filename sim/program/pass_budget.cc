#include "sim/program/pass_budget.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/program/field_error.h"
#include "sim/program/held_bytes.h"

namespace simgrad::sim {

void PassBudget::Poll() {
  longest_stretch_ = std::max(longest_stretch_, std::exchange(since_poll_, 0));
  ++polls_;
  if (stop_ && stop_()) throw Ended{absl::CancelledError("the work was asked to stop")};
}

void PassBudget::WroteOp(const Op& op) {
  ++operations_;
  const int64_t lists = static_cast<int64_t>(op.operands.size() + op.results.size());
  operands_ += lists;
  Visit(1 + lists);
  bytes_ += OwnBytes(op);
  CheckWritten();
}

void PassBudget::WroteValue(const Value& value) {
  ++values_;
  Visit();
  bytes_ += OwnBytes(value);
  CheckWritten();
}

void PassBudget::WroteIds(int64_t count) {
  operands_ += count;
  Visit(count);
  bytes_ += count * static_cast<int64_t>(sizeof(ValueId));
  CheckWritten();
}

void PassBudget::WroteRegion(const Region& region) {
  WroteIds(static_cast<int64_t>(region.args.size() + region.yields.size()));
  for (const Op& op : region.ops) {
    WroteOp(op);
    for (const Region& nested : op.regions) WroteRegion(nested);
  }
}

void PassBudget::WroteText(int64_t bytes) {
  Visit((bytes - text_bytes_) / 64 + 1);
  text_bytes_ = bytes;
  if (text_bytes_ > limits_.max_text_bytes) Refuse("bytes of text", limits_.max_text_bytes);
}

void PassBudget::Permuted(int64_t count) {
  permuted_ += count;
  if (permuted_ <= limits_.max_permuted) return;
  throw Ended{LimitError(
      "policy", absl::StrCat("shuffled sums of different lengths and sites need permutations of "
                             "more than ",
                             limits_.max_permuted,
                             " numbers; shuffle fewer of them, or sums of the same length"))};
}

void PassBudget::CheckWritten() {
  if (operations_ > limits_.max_operations) Refuse("operations", limits_.max_operations);
  if (operands_ > limits_.max_operands) Refuse("operands", limits_.max_operands);
  if (bytes_ > limits_.max_bytes) Refuse("bytes", limits_.max_bytes);
}

void PassBudget::Refuse(const std::string& what, int64_t limit) const {
  throw Ended{LimitError(
      "program", absl::StrCat("the lowered program, with its adjoint where one is asked for, has "
                              "more than ",
                              limit, " ", what,
                              "; fewer operations, or fewer loops inside the tests of loops"))};
}

void PassBudget::RefuseSearch() const {
  throw Ended{LimitError(
      "program",
      absl::StrCat("what the adjoint of nested loops holds takes more than ", limits_.max_visits,
                   " visits to decide; nest fewer loops, above all in tests of loops"))};
}

}  // namespace simgrad::sim
