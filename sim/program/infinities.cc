#include "sim/program/infinities.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/loop_flow.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// Reachability from infinite literals. A value has two nodes: it may be +Inf, it may be -Inf. A node
// is reached from any of its edges, that of a minimum or maximum from all of them.
class Reached {
 public:
  Reached(const Program& program, PassBudget& budget)
      : program_(program),
        budget_(budget),
        nodes_(2 * program.values.size()),
        needs_(nodes_, 1),
        reached_(nodes_, false) {}

  void Read(const Region& region) {
    const auto flow = [this](ValueId from, ValueId to) { Flow(from, to); };
    const auto read = [this](const Region& inner) { Read(inner); };
    for (const Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.operands.size() + op.results.size()));
      if (op.code == kLiteral) {
        ReadLiteral(op);
      } else if (op.code == kTape) {
        Flow(op.attributes.primal, op.results[0]);
      } else if (op.code == kWhile) {
        FlowOfWhile(op, flow, read);
      } else if (op.code == kFor) {
        FlowOfFor(op, flow, read);
      } else if (!op.regions.empty()) {
        ReadReverse(op);
      } else if (op.code == kMin || op.code == kMax) {
        ReadExtremum(op);
      } else {
        for (ValueId operand : op.operands) {
          for (ValueId result : op.results) FlowAny(operand, result);
        }
      }
    }
  }

  std::vector<bool> Spread() {
    std::vector<size_t> begin(nodes_ + 1, 0);
    for (const auto& [from, to] : edges_) ++begin[from + 1];
    for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    std::vector<size_t> to_of(edges_.size());
    std::vector<size_t> next(begin.begin(), begin.end() - 1);
    for (const auto& [from, to] : edges_) {
      budget_.Visit();
      to_of[next[from]++] = to;
    }
    while (!todo_.empty()) {
      const size_t from = todo_.back();
      todo_.pop_back();
      for (size_t i = begin[from]; i < begin[from + 1]; ++i) {
        budget_.Visit();
        Reach(to_of[i]);
      }
    }
    std::vector<bool> may(program_.values.size(), false);
    for (size_t i = 0; i < may.size(); ++i) may[i] = reached_[2 * i] || reached_[2 * i + 1];
    return may;
  }

 private:
  enum Sign : uint8_t { kPlus, kMinus };
  static size_t Node(ValueId id, Sign sign) { return 2 * Index(id) + sign; }
  bool IsReal(ValueId id) const { return id != ValueId::kNone && program_.IsReal(id); }

  void Reach(size_t node) {
    if (reached_[node] || --needs_[node] > 0) return;
    reached_[node] = true;
    todo_.push_back(node);
  }
  void Edge(size_t from, size_t to) {
    budget_.Visit();
    edges_.push_back({from, to});
  }
  // The same infinity.
  void Flow(ValueId from, ValueId to) {
    if (!IsReal(from) || !IsReal(to)) return;
    for (Sign sign : {kPlus, kMinus}) Edge(Node(from, sign), Node(to, sign));
  }
  // Either infinity from either.
  void FlowAny(ValueId from, ValueId to) {
    if (!IsReal(from) || !IsReal(to)) return;
    for (Sign sign : {kPlus, kMinus}) {
      Edge(Node(from, sign), Node(to, kPlus));
      Edge(Node(from, sign), Node(to, kMinus));
    }
  }

  void ReadLiteral(const Op& op) {
    if (!IsReal(op.results[0])) return;
    for (double x : op.attributes.literal) {
      if (std::isinf(x)) Reach(Node(op.results[0], x > 0 ? kPlus : kMinus));
    }
  }

  void ReadExtremum(const Op& op) {
    const ValueId result = op.results[0];
    if (!IsReal(result)) return;
    const Sign both = op.code == kMin ? kPlus : kMinus;
    needs_[Node(result, both)] = static_cast<int32_t>(op.operands.size());
    for (ValueId operand : op.operands) Flow(operand, result);
  }

  // The reverse of a loop: whatever comes in may come to whatever goes out.
  void ReadReverse(const Op& op) {
    const size_t hub = nodes_++;
    needs_.push_back(1);
    reached_.push_back(false);
    const auto in = [&](ValueId id) {
      if (!IsReal(id)) return;
      for (Sign sign : {kPlus, kMinus}) Edge(Node(id, sign), hub);
    };
    const auto out = [&](ValueId id) {
      if (!IsReal(id)) return;
      for (Sign sign : {kPlus, kMinus}) Edge(hub, Node(id, sign));
    };
    for (ValueId id : op.operands) in(id);
    for (const Region& region : op.regions) {
      for (ValueId id : region.args) out(id);
      Read(region);
      for (ValueId id : region.yields) in(id);
    }
    for (ValueId id : op.results) out(id);
  }

  const Program& program_;
  PassBudget& budget_;
  size_t nodes_;
  std::vector<int32_t> needs_;  // so many edges must be reached until the node is
  std::vector<bool> reached_;
  std::vector<size_t> todo_;  // reached, not yet spread
  std::vector<std::pair<size_t, size_t>> edges_;
};

bool HasInfiniteLiteral(const Region& region, PassBudget& budget) {
  return std::any_of(region.ops.begin(), region.ops.end(), [&](const Op& op) {
    const auto& numbers = op.attributes.literal;
    budget.Visit(1 + static_cast<int64_t>(numbers.size()) / 8);
    return std::any_of(numbers.begin(), numbers.end(), [](double x) { return std::isinf(x); }) ||
           std::any_of(op.regions.begin(), op.regions.end(),
                       [&](const Region& inner) { return HasInfiniteLiteral(inner, budget); });
  });
}

}  // namespace

NumericalProgram MarkInfinities(NumericalProgram numerical, PassBudget& budget) {
  const std::vector<const Region*> regions = RegionsOf(std::as_const(numerical));
  const bool has_one = std::any_of(regions.begin(), regions.end(), [&](const Region* region) {
    return HasInfiniteLiteral(*region, budget);
  });
  numerical.infinite.clear();
  if (!has_one) return numerical;
  Reached reached(numerical.program, budget);
  for (const Region* region : regions) reached.Read(*region);
  numerical.infinite = reached.Spread();
  return numerical;
}

}  // namespace simgrad::sim
