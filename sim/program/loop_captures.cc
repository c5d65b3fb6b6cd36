#include "sim/program/loop_captures.h"

#include <unordered_set>

namespace simgrad::sim {
namespace {

// A value that only this loop defines: its iteration count, or its index.
size_t KeyOf(const Op& loop) {
  return Index(loop.code == OpCode::kWhile ? loop.results.back() : loop.regions[0].args[0]);
}

class Search {
 public:
  Search(const std::vector<bool>& counts, PassBudget& budget,
         std::unordered_map<size_t, std::vector<ValueId>>& captures)
      : counts_(counts), budget_(budget), captures_(captures) {}

  void Visit(const Region& region) {
    DefineAll(region.args);
    for (const Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.operands.size() + op.results.size()));
      for (ValueId id : op.operands) Use(id);
      if (op.code == OpCode::kWhile || op.code == OpCode::kFor) {
        open_.push_back({&captures_[KeyOf(op)], {}, op.attributes.elements > 0});
        for (const Region& nested : op.regions) Visit(nested);
        open_.pop_back();
      }
      DefineAll(op.results);
    }
    budget_.Visit(static_cast<int64_t>(region.yields.size()));
    for (ValueId id : region.yields) Use(id);
  }

 private:
  struct Loop {
    std::vector<ValueId>* captures;
    std::unordered_set<size_t> known;
    bool mapped;
  };

  void DefineAll(const std::vector<ValueId>& ids) {
    for (ValueId id : ids) home_[Index(id)] = open_.size();
  }

  // A value is a capture of every loop between its definition and its use.
  void Use(ValueId id) {
    const auto home = home_.find(Index(id));
    const size_t outermost = home == home_.end() ? 0 : home->second;
    if (outermost == open_.size() || !counts_[Index(id)]) return;
    for (size_t depth = open_.size(); depth-- > outermost;) {
      Loop& loop = open_[depth];
      if (!loop.known.insert(Index(id)).second) return;
      if (!loop.mapped) loop.captures->push_back(id);
    }
  }

  const std::vector<bool>& counts_;
  PassBudget& budget_;
  std::unordered_map<size_t, std::vector<ValueId>>& captures_;
  std::unordered_map<size_t, size_t> home_;  // value -> loops around its definition; inputs: 0
  std::vector<Loop> open_;
};

}  // namespace

LoopCaptures::LoopCaptures(const std::vector<Region*>& regions, const std::vector<bool>& counts,
                           PassBudget& budget) {
  for (const Region* region : regions) {
    if (region != nullptr) Search(counts, budget, captures_).Visit(*region);
  }
}

const std::vector<ValueId>& LoopCaptures::Of(const Op& loop) const {
  return captures_.at(KeyOf(loop));
}

}  // namespace simgrad::sim
