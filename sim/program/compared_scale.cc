#include "sim/program/compared_scale.h"

#include <map>
#include <utility>

namespace simgrad::sim {
namespace {

// Gives elements of its operand, in other places.
bool Moves(const Op& op) {
  const OpInfo& info = InfoOf(op.code);
  return info.scale == ScaleRule::kSame && info.op_class == OpClass::kShape;
}

bool TakesTwo(ScaleRule rule) { return rule == ScaleRule::kProduct || rule == ScaleRule::kChoice; }
bool TakesOne(ScaleRule rule) {
  return rule == ScaleRule::kQuotient || rule == ScaleRule::kRoot || rule == ScaleRule::kSame;
}

class Search {
 public:
  explicit Search(const std::function<const Op*(ValueId)>& producer) : producer_(producer) {}

  size_t Visit(ValueId value, std::vector<const Op*> moves) {
    auto key = std::make_pair(value, moves);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    ++visited_;
    ScaleNode node;
    node.value = value;
    node.moves = std::move(moves);
    const Op* const op = visited_ <= kMostScaleNodes ? producer_(value) : nullptr;
    const ScaleRule rule = op == nullptr ? ScaleRule::kOwn : InfoOf(op->code).scale;
    if (rule != ScaleRule::kOwn) {
      node.rule = rule;
      node.op = op;
      std::vector<const Op*> behind = node.moves;
      if (Moves(*op)) behind.push_back(op);
      const size_t first = rule == ScaleRule::kChoice ? 1 : 0;
      if (TakesOne(rule) || TakesTwo(rule)) node.first = Visit(op->operands[first], behind);
      if (TakesTwo(rule)) node.second = Visit(op->operands[first + 1], behind);
    }
    nodes_.push_back(std::move(node));
    known_.emplace(std::move(key), nodes_.size() - 1);
    return nodes_.size() - 1;
  }

  std::vector<ScaleNode> Take() { return std::move(nodes_); }

 private:
  const std::function<const Op*(ValueId)>& producer_;
  std::vector<ScaleNode> nodes_;
  std::map<std::pair<ValueId, std::vector<const Op*>>, size_t> known_;
  size_t visited_ = 0;
};

}  // namespace

std::vector<ScaleNode> ScaleOf(const Program& program, ValueId compared,
                               const std::function<const Op*(ValueId)>& producer) {
  if (!program.IsReal(compared)) return {};
  Search search(producer);
  search.Visit(compared, {});
  std::vector<ScaleNode> nodes = search.Take();
  const bool is_leaf = nodes.size() == 1 && nodes[0].op == nullptr;
  return is_leaf ? std::vector<ScaleNode>() : nodes;
}

}  // namespace simgrad::sim
