#include "sim/program/path_decisions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/op/op_info.h"
#include "sim/op/types.h"
#include "sim/program/choices.h"
#include "sim/program/decision_margin.h"
#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

bool IsLoop(const Op& op) { return op.code == kWhile && !IsBranch(op); }

void MarkUsed(const Region& region, std::unordered_set<size_t>& used) {
  for (const Op& op : region.ops) {
    for (ValueId id : op.operands) used.insert(Index(id));
    for (const Region& nested : op.regions) MarkUsed(nested, used);
  }
  for (ValueId id : region.yields) used.insert(Index(id));
}

// The pivots of a factor that the exports hang on are behind them too.
void AddPivots(const Region& test, std::unordered_set<size_t>& behind) {
  std::set<PivotsKey> factored;
  std::unordered_set<size_t> orders;
  for (const Op& op : test.ops) {
    const bool exported = op.code == kLu && behind.count(Index(op.results[0])) != 0;
    if (exported && HasPivots(op)) factored.insert(PivotsOf(op));
  }
  if (factored.empty()) return;
  for (const Op& op : test.ops) {
    const bool names = op.code == kLuPermutation && HasPivots(op);
    const bool decides = (names && factored.count(PivotsOf(op)) != 0) ||
                         (op.code == kChoice && orders.count(Index(op.operands[0])) != 0);
    if (!decides) continue;
    orders.insert(Index(op.results[0]));
    behind.insert(Index(op.results[0]));
  }
}

void NamePivotsIn(Program& program, Region& region, PassBudget& budget) {
  std::set<PivotsKey> named;
  for (const Op& op : region.ops) {
    budget.Visit();
    if (op.code == kLuPermutation && HasPivots(op)) named.insert(PivotsOf(op));
  }
  std::vector<Op> ops = std::exchange(region.ops, {});
  for (Op& op : ops) {
    if (op.code != kOwnVjp) {
      for (Region& nested : op.regions) NamePivotsIn(program, nested, budget);
    }
    const bool is_unnamed = op.code == kLu && HasPivots(op) && named.insert(PivotsOf(op)).second;
    region.ops.push_back(std::move(op));
    if (!is_unnamed) continue;
    const Op& factor = region.ops.back();
    const int64_t rows = program[factor.operands[0]].type.shape[0];
    Op order{.code = kLuPermutation, .role = factor.role, .operands = factor.operands};
    order.site = factor.site;
    order.label = factor.label;
    order.results = {program.AddValue({ElementType::kI32, {rows}})};
    budget.WroteValue(program[order.results[0]]);
    budget.WroteOp(order);
    region.ops.push_back(std::move(order));
  }
}

bool Converts(const Region& region, PassBudget& budget) {
  return std::any_of(region.ops.begin(), region.ops.end(), [&](const Op& op) {
    budget.Visit();
    return op.code == kConvert ||
           std::any_of(op.regions.begin(), op.regions.end(),
                       [&](const Region& nested) { return Converts(nested, budget); });
  });
}

}  // namespace

std::vector<bool> DecidingConversions(const Program& program, const Region& region,
                                      PassBudget& budget) {
  std::vector<bool> converts(program.values.size(), false);
  if (!Converts(region, budget)) return converts;
  const auto find = [&](const Program& whole) {
    std::vector<bool> predicates = BehindPredicates(whole, &budget);
    predicates.resize(whole.values.size());
    const std::vector<bool> choices = BehindChoices(whole, &budget);
    const std::vector<bool> places = BehindPlaces(whole, &budget);
    for (size_t i = 0; i < converts.size(); ++i) {
      converts[i] = predicates[i] || choices[i] || places[i];
    }
  };
  if (&region == &program.step) {
    find(program);
  } else {
    Program alone = program;
    alone.step = region;
    find(alone);
  }
  return converts;
}

bool DecidesByReals(const Program& program, const Op& op, const std::vector<bool>& converts) {
  if (op.code == kIsFinite) return true;
  if (ComparesTwo(op)) return program.IsReal(op.operands[0]);
  if (HasPivots(op)) return program[op.operands[0]].type.shape[0] > 1;
  if (op.code == kCholesky || !ChoosesByReals(program, op)) return false;
  return op.code != kConvert || converts[Index(op.results[0])];
}

bool HasPivots(const Op& op) {
  const bool pivots = op.code == kLu || op.code == kLuPermutation || op.code == kLuPivots;
  return pivots && op.operands.size() == 1;
}

PivotsKey PivotsOf(const Op& op) { return {op.operands[0], op.role, op.site}; }

void NamePivots(Program& program, PassBudget& budget) {
  NamePivotsIn(program, program.initial, budget);
  NamePivotsIn(program, program.step, budget);
}

PathDecisions::PathDecisions(const Program& program, PassBudget& budget)
    : program_(program),
      budget_(budget),
      converts_(DecidingConversions(program, program.step, budget)) {
  const std::vector<bool> in_initial = DecidingConversions(program, program.initial, budget);
  for (size_t i = 0; i < converts_.size(); ++i) converts_[i] = converts_[i] || in_initial[i];
  Read(program.initial);
  Read(program.step);
}

void PathDecisions::Read(const Region& region) {
  for (const Op& op : region.ops) {
    budget_.Visit();
    if (op.code == kOwnVjp) continue;
    if (IsTest(op) || IsLoop(op)) sites_.insert(op.attributes.site);
    if (op.code == kChoice) chosen_.insert(Index(op.operands[0]));
    if (op.code == kLuPermutation && HasPivots(op)) {
      pivots_.emplace(Index(op.results[0]), PivotsOf(op));
    } else if (const PivotsKey* const pivots = PivotsBy(op)) {
      pivots_.emplace(Index(op.results[0]), PivotsKey(*pivots));
    }
    ReadMost(op);
    for (const Region& nested : op.regions) Read(nested);
  }
}

bool PathDecisions::Decides(const Op& op) const {
  if (IsTest(op) || op.code == kIsFinite) return true;
  if (ComparesTwo(op)) return program_.IsReal(op.operands[0]);
  const Chooses chooses = InfoOf(op.code).chooses;
  if (op.code == kCholesky || !ChoosesByReals(program_, op)) return false;
  const size_t result = Index(op.results[0]);
  // At these levels all uses of a choice read the result of an operation `choice` of its own.
  const bool counts = program_.level == TestLevel::kDecisions || program_.level == TestLevel::kAll;
  if (counts && chosen_.count(result) != 0) return false;
  return chooses != Chooses::kInteger || converts_[result];
}

std::string PathDecisions::Unique(const std::string& name) {
  if (given_.insert(name).second) return name;
  int64_t& next = next_[name];  // numbers below were given, and stay so
  std::string unique;
  do {
    budget_.Visit();
    unique = absl::StrCat(name, "#", ++next);
  } while (!given_.insert(unique).second);
  return unique;
}

// The name of a column without a site; it differs from the names of all sites of the program.
std::string PathDecisions::NameOfUnlisted(const Op& op, std::string_view where) {
  const std::string own =
      absl::StrCat(std::string(where), op.site.empty() ? OwnNameOfChoice(op) : op.site);
  std::string& name = clear_[own];
  if (!name.empty()) return name;
  name = own;
  for (int64_t k = 1; sites_.count(name) != 0; ++k) {
    budget_.Visit();
    name = absl::StrCat(own, "#", k);
  }
  return name;
}

const PivotsKey* PathDecisions::PivotsBy(const Op& op) const {
  if (op.code != kLuPermutation && op.code != kChoice) return nullptr;
  const bool passes_on = op.code == kChoice;
  const auto known = pivots_.find(Index(passes_on ? op.operands[0] : op.results[0]));
  return known == pivots_.end() ? nullptr : &known->second;
}

void PathDecisions::ReadMost(const Op& op) {
  const bool of_pivots = op.code == kLuPermutation;
  if (!of_pivots && InfoOf(op.code).chooses != Chooses::kPlaces) return;
  const size_t axis = of_pivots ? 0 : static_cast<size_t>(op.attributes.axes[0]);
  most_[Index(op.results[0])] = program_[op.operands[0]].type.shape[axis] - 1;
}

// The largest number that a choice can give; -1: any.
int64_t PathDecisions::MostOf(const Op& op) const {
  const auto known = most_.find(Index(op.code == kChoice ? op.operands[0] : op.results[0]));
  return known == most_.end() ? -1 : known->second;
}

PathColumn PathDecisions::ColumnOf(const Op& op, std::string_view where) {
  PathColumn column;
  const ValueId decided = IsLoop(op) ? op.results.back() : op.results[0];
  Type type = program_[decided].type;
  column.element = type.element;
  column.shape = type.shape;
  column.loops.assign(type.shape.size(), -1);
  column.site = Unique(op.attributes.site.empty() ? NameOfUnlisted(op, where) : op.attributes.site);
  if (type.element == ElementType::kBool) return column;
  column.kind = IsLoop(op) ? PathKind::kCount : PathKind::kChoice;
  const int64_t most = IsLoop(op) ? op.attributes.max_iter : MostOf(op);
  column.width = BitsOf(type.element) / 8;
  if (most >= 0 && most <= 0xFF) column.width = 1;
  if (most > 0xFF && most <= 0xFFFF) column.width = 2;
  return column;
}

std::unordered_set<size_t> PathDecisions::BehindExports(const Op& loop) {
  const Region& test = loop.regions[0];
  std::unordered_set<size_t> behind;
  for (size_t k = FirstExport(loop); k < test.yields.size(); ++k) {
    behind.insert(Index(test.yields[k]));
  }
  for (auto op = test.ops.rbegin(); op != test.ops.rend(); ++op) {
    if (OnlyStops(*op, behind)) continue;
    for (ValueId id : op->operands) behind.insert(Index(id));
    for (const Region& nested : op->regions) MarkUsed(nested, behind);
  }
  AddPivots(test, behind);
  return behind;
}

bool PathDecisions::OnlyStops(const Op& op, const std::unordered_set<size_t>& behind_exports) {
  for (ValueId id : op.results) {
    if (id != ValueId::kNone && behind_exports.count(Index(id)) != 0) return false;
  }
  return true;
}

}  // namespace simgrad::sim
