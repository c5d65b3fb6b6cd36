#include "sim/program/activity.h"

#include <algorithm>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/loop.h"

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
    for (const Op& op : region.ops) {
      budget_.Visit();
      if (op.code == OpCode::kWhile) {
        ReadWhile(op);
      } else if (op.code == OpCode::kFor) {
        ReadFor(op);
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

  void ReadWhile(const Op& op) {
    const WhileCounts counts = CountsOf(op);
    const size_t c = static_cast<size_t>(counts.carried);
    const size_t e = static_cast<size_t>(counts.exports);
    const size_t tests = FirstExport(op);
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Flow(op.operands[i], test.args[i]);
      Flow(op.operands[i], body.args[i < c ? i : i + e]);
    }
    Read(test);
    for (size_t i = 0; i < e; ++i) {
      Flow(test.yields[tests + i], body.args[c + i]);
      Flow(test.yields[tests + i], op.results[c + i]);
    }
    Read(body);
    for (size_t i = 0; i < c; ++i) {
      Flow(body.yields[i], test.args[i]);
      Flow(body.yields[i], body.args[i]);
      Flow(test.args[i], op.results[i]);
    }
  }

  void ReadFor(const Op& op) {
    const Region& body = op.regions[0];
    for (size_t i = 0; i < op.operands.size(); ++i) Flow(op.operands[i], body.args[i + 1]);
    Read(body);
    const size_t carried = static_cast<size_t>(op.attributes.carried);
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (i < carried) {
        Flow(body.yields[i], body.args[i + 1]);
        Flow(body.args[i + 1], op.results[i]);
      } else {
        Flow(body.yields[i], op.results[i]);
      }
    }
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
