#include "sim/program/activity.h"

#include <algorithm>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/loop_flow.h"

namespace simgrad::sim {
namespace {

// Reachability over the edges of one graph of all values.
class Activity {
 public:
  Activity(const Program& program, PassBudget& budget)
      : program_(program), budget_(budget), active_(program.values.size(), false) {}

  void Mark(ValueId id) {
    if (!program_.IsReal(id) || active_[Index(id)]) return;
    active_[Index(id)] = true;
    todo_.push_back(id);
  }

  // Adds the edges of a region.
  void Read(const Region& region) {
    const auto flow = [this](ValueId from, ValueId to) { Flow(from, to); };
    const auto read = [this](const Region& inner) { Read(inner); };
    for (const Op& op : region.ops) {
      budget_.Visit();
      if (op.code == OpCode::kWhile) {
        FlowOfWhile(op, flow, read);
      } else if (op.code == OpCode::kFor) {
        FlowOfFor(op, flow, read);
      } else if (InfoOf(op.code).derivative != Derivative::kNone) {
        ReadOp(op);
      }
    }
  }

  std::vector<bool> Spread() {
    std::vector<size_t> begin(active_.size() + 1, 0);
    for (const auto& [from, to] : edges_) ++begin[Index(from) + 1];
    for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    std::vector<ValueId> to_of(edges_.size());
    std::vector<size_t> next(begin.begin(), begin.end() - 1);
    for (const auto& [from, to] : edges_) {
      budget_.Visit();
      to_of[next[Index(from)]++] = to;
    }
    while (!todo_.empty()) {
      const size_t from = Index(todo_.back());
      todo_.pop_back();
      for (size_t i = begin[from]; i < begin[from + 1]; ++i) {
        budget_.Visit();
        Mark(to_of[i]);
      }
    }
    return std::move(active_);
  }

 private:
  // Every operand reaches every result. Of several results the first real one stands between.
  void ReadOp(const Op& op) {
    const auto first = std::find_if(op.results.begin(), op.results.end(),
                                    [&](ValueId id) { return program_.IsReal(id); });
    if (first == op.results.end()) return;
    for (ValueId operand : op.operands) Flow(operand, *first);
    for (auto other = first + 1; other != op.results.end(); ++other) Flow(*first, *other);
  }

  void Flow(ValueId from, ValueId to) {
    budget_.Visit();
    edges_.push_back({from, to});
  }

  const Program& program_;
  PassBudget& budget_;
  std::vector<bool> active_;
  std::vector<ValueId> todo_;  // active, not yet spread
  std::vector<std::pair<ValueId, ValueId>> edges_;
};

}  // namespace

std::vector<bool> ActiveValues(const Program& program, const Region* terminal,
                               const AdjointSpec& spec, PassBudget& budget) {
  Activity activity(program, budget);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const Input& input = program.inputs[i];
    const bool wanted = i < spec.wanted.size() && spec.wanted[i];
    if (input.kind == InputKind::kState || wanted) activity.Mark(input.value);
  }
  activity.Read(program.initial);
  activity.Read(program.step);
  if (terminal != nullptr) {
    for (ValueId id : terminal->args) activity.Mark(id);
    activity.Read(*terminal);
  }
  return activity.Spread();
}

}  // namespace simgrad::sim
