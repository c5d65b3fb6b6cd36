#include "sim/program/decision_margin.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

// The choices whose elements hang on all their pairs, in text order.
class JointChoices {
 public:
  // To be called with each operation.
  void See(const Program& program, const Op& op) {
    if (op.code != OpCode::kArgsort && op.code != OpCode::kLuPermutation) return;
    std::vector<ValueId>& keys = keys_[op.results[0]];
    for (ValueId id : op.operands) {
      if (!program.IsReal(id)) keys.push_back(id);
    }
  }
  // Null: `choice` is none.
  const std::vector<ValueId>* Find(const Op& choice) const {
    const auto found = keys_.find(choice.operands[0]);
    return found == keys_.end() ? nullptr : &found->second;
  }
  std::vector<ValueId> KeysOf(const Op& choice) const {
    const std::vector<ValueId>* const keys = Find(choice);
    return keys == nullptr ? std::vector<ValueId>() : *keys;
  }

 private:
  std::unordered_map<ValueId, std::vector<ValueId>> keys_;  // by what was chosen
};

class Search {
 public:
  Search(const Program& program, PassBudget* budget)
      : program_(program), budget_(budget), read_(program.values.size()) {}

  std::vector<bool> OfPredicates() {
    Read(program_.step);
    return predicates_.empty() ? std::vector<bool>() : Behind(predicates_);
  }

  std::vector<bool> OfPlaces() {
    Read(program_.step);
    return Behind(places_);
  }

  std::vector<bool> OfChoices() {
    Read(program_.step);
    choices_.insert(choices_.end(), program_.step.yields.begin(), program_.step.yields.end());
    return Behind(choices_);
  }

 private:
  std::vector<bool> Behind(const std::vector<ValueId>& roots) {
    std::vector<bool> found(read_.size(), false);
    std::vector<ValueId> todo;
    const auto mark = [&](ValueId id) {
      if (id == ValueId::kNone || found[Index(id)]) return;
      if (Index(id) < program_.values.size() && program_.IsReal(id)) return;
      found[Index(id)] = true;
      todo.push_back(id);
    };
    for (ValueId id : roots) mark(id);
    while (!todo.empty()) {
      const ValueId id = todo.back();
      todo.pop_back();
      Visit(1 + read_[Index(id)].size());
      for (ValueId from : read_[Index(id)]) mark(from);
    }
    found.resize(program_.values.size());
    return found;
  }

  // Every result is made of every operand: of several results, through a node that is no value.
  void ReadOp(const Op& op) {
    if (op.results.size() == 1) {
      for (ValueId operand : op.operands) Flow(operand, op.results[0]);
      return;
    }
    const ValueId all = static_cast<ValueId>(read_.size());
    read_.push_back(op.operands);
    for (ValueId result : op.results) Flow(all, result);
  }

  // `to` is made of `from`.
  void Flow(ValueId from, ValueId to) {
    if (from == ValueId::kNone || to == ValueId::kNone || program_.IsReal(to)) return;
    read_[Index(to)].push_back(from);
  }

  void Visit(size_t count) {
    if (budget_ != nullptr) budget_->Visit(static_cast<int64_t>(count));
  }

  void Read(const Region& region) {
    for (const Op& op : region.ops) {
      Visit(1 + op.results.size() + op.operands.size());
      if (op.code == OpCode::kWhile) {
        ReadWhile(op);
      } else if (op.code == OpCode::kFor) {
        ReadFor(op);
      } else {
        if (op.code == OpCode::kSelect) choices_.push_back(op.operands[0]);
        if (InfoOf(op.code).op_class == OpClass::kIndexing) {
          places_.insert(places_.end(), op.operands.begin() + 1, op.operands.end());
        }
        if (op.code == OpCode::kChoice) {
          // The pair that is compared says how far a choice is from another. Integer keys have
          // radii of their own.
          for (ValueId key : joint_.KeysOf(op)) Flow(key, op.results[0]);
          continue;
        }
        joint_.See(program_, op);
        ReadOp(op);
      }
      for (const Region& nested : op.regions) Read(nested);
    }
  }

  void ReadWhile(const Op& op) {
    const WhileCounts counts = CountsOf(op);
    const size_t c = static_cast<size_t>(counts.carried);
    const size_t e = static_cast<size_t>(counts.exports);
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    choices_.insert(choices_.end(), body.yields.begin(), body.yields.end());
    if (op.attributes.predicate) {
      (IsBranch(op) ? choices_ : predicates_).push_back(test.yields[0]);
      for (ValueId result : op.results) Flow(test.yields[0], result);
    }
    for (size_t k = 0; k < op.operands.size(); ++k) {
      Flow(op.operands[k], test.args[k]);
      Flow(op.operands[k], body.args[k < c ? k : k + e]);
    }
    for (size_t k = 0; k < c; ++k) {
      for (ValueId arg : {test.args[k], body.args[k]}) Flow(body.yields[k], arg);
      Flow(test.args[k], op.results[k]);
      Flow(body.yields[k], op.results[k]);
      Flow(op.operands[k], op.results[k]);
    }
    for (size_t k = 0; k < e; ++k) {
      const ValueId yield = test.yields[FirstExport(op) + k];
      Flow(yield, body.args[c + k]);
      Flow(yield, op.results[c + k]);
    }
  }

  void ReadFor(const Op& op) {
    const Region& body = op.regions[0];
    const size_t carried = static_cast<size_t>(op.attributes.carried);
    choices_.insert(choices_.end(), body.yields.begin(), body.yields.end());
    for (size_t k = 0; k < op.operands.size(); ++k) Flow(op.operands[k], body.args[k + 1]);
    for (size_t k = 0; k < op.results.size(); ++k) {
      Flow(body.yields[k], op.results[k]);
      if (k >= carried) continue;
      Flow(body.yields[k], body.args[k + 1]);
      Flow(op.operands[k], op.results[k]);
    }
  }

  const Program& program_;
  PassBudget* const budget_;
  // By value, then by operation of several results: what it is made of.
  std::vector<std::vector<ValueId>> read_;
  std::vector<ValueId> predicates_;
  std::vector<ValueId> places_;
  std::vector<ValueId> choices_;  // of selects and branches, and what loops carry
  JointChoices joint_;
};

// Compares reals, or is made of them.
bool MayDecide(const Program& program, const Op& op) {
  return std::any_of(op.operands.begin(), op.operands.end(),
                     [&](ValueId id) { return program.IsReal(id); });
}

// The name of a test without a site: that of the site it is computed for, else its line, else its
// operation.
std::string NameOfUnlisted(const Op& op) {
  if (!op.site.empty()) return op.site;
  return op.label.empty() ? std::string(InfoOf(op.code).name) : op.label;
}

class Numbering {
 public:
  Numbering(const Program& program, std::vector<bool> behind, const std::vector<Site>& sites,
            PassBudget* budget)
      : program_(program), behind_(std::move(behind)), budget_(budget) {
    for (const Site& site : sites) sites_.insert(site.name);
    if (!behind_.empty()) tests_.of_value.assign(program.values.size(), 0);
  }

  DecidingTests Number() && {
    Number(program_.step);
    return std::move(tests_);
  }

 private:
  void Number(const Region& region) {
    for (const Op& op : region.ops) {
      if (budget_ != nullptr) budget_->Visit();
      const std::string& site = op.attributes.site;
      if (sites_.count(site) != 0 && tests_.of_site.count(site) == 0) {
        tests_.of_site.emplace(site, Add(site));
      }
      if (!behind_.empty() && op.regions.empty()) NumberResult(op);
      for (const Region& nested : op.regions) Number(nested);
    }
  }

  void NumberResult(const Op& op) {
    if (op.results.empty() || op.results[0] == ValueId::kNone) return;
    joint_.See(program_, op);
    if (!behind_[Index(op.results[0])] || !MayDecide(program_, op)) return;
    tests_.of_value[Index(op.results[0])] =
        IsTest(op) ? tests_.Of(op.attributes.site) : Add(NameOfUnlisted(op));
    if (op.code != OpCode::kChoice) return;
    if (const std::vector<ValueId>* const keys = joint_.Find(op)) {
      tests_.joint.emplace(op.results[0], *keys);
    }
  }

  uint32_t Add(const std::string& name) {
    tests_.names.push_back(name);
    return static_cast<uint32_t>(tests_.names.size());
  }

  const Program& program_;
  const std::vector<bool> behind_;  // by value; empty: nothing is
  PassBudget* const budget_;
  std::unordered_set<std::string> sites_;
  JointChoices joint_;
  DecidingTests tests_;
};

}  // namespace

DecidingTests DecidingTestsOf(const Program& program, const std::vector<Site>& sites,
                              PassBudget* budget) {
  return Numbering(program, BehindPredicates(program, budget), sites, budget).Number();
}

std::vector<bool> BehindPredicates(const Program& program, PassBudget* budget) {
  return Search(program, budget).OfPredicates();
}

std::vector<bool> BehindChoices(const Program& program, PassBudget* budget) {
  return Search(program, budget).OfChoices();
}

std::vector<bool> BehindPlaces(const Program& program, PassBudget* budget) {
  return Search(program, budget).OfPlaces();
}

}  // namespace simgrad::sim
