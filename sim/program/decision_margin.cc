#include "sim/program/decision_margin.h"

#include <algorithm>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

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
        // The pair that is compared says how far a choice is from another.
        if (op.code == OpCode::kChoice) continue;
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

void Number(const Region& region, const Program& program, const std::vector<bool>& behind,
            size_t sites, DecidingTests& tests, PassBudget* budget) {
  for (const Op& op : region.ops) {
    if (budget != nullptr) budget->Visit();
    for (const Region& nested : op.regions) Number(nested, program, behind, sites, tests, budget);
    if (!op.regions.empty() || op.results.empty() || op.results[0] == ValueId::kNone) continue;
    if (!behind[Index(op.results[0])] || !MayDecide(program, op)) continue;
    uint32_t& number = tests.of_value[Index(op.results[0])];
    if (IsTest(op)) {
      number = tests.Of(op.attributes.site);
    } else {
      tests.unlisted.push_back(NameOfUnlisted(op));
      number = static_cast<uint32_t>(sites + tests.unlisted.size());
    }
  }
}

}  // namespace

DecidingTests DecidingTestsOf(const Program& program, const std::vector<Site>& sites,
                              PassBudget* budget) {
  DecidingTests tests;
  for (size_t k = 0; k < sites.size(); ++k) {
    tests.of_site.emplace(sites[k].name, static_cast<uint32_t>(k) + 1);
  }
  const std::vector<bool> behind = BehindPredicates(program, budget);
  if (behind.empty()) return tests;
  tests.of_value.assign(program.values.size(), 0);
  Number(program.step, program, behind, sites.size(), tests, budget);
  return tests;
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
