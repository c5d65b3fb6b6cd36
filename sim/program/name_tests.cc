#include "sim/program/name_tests.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/op/op_info.h"
#include "sim/program/choices.h"
#include "sim/program/decision_margin.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// A guard compares with a number of at most this magnitude, or with an infinity.
constexpr double kSmallest = 1e-5;
bool IsGuardsNumber(double x) { return std::abs(x) <= kSmallest || std::isinf(x); }
bool IsWhole(double x) { return std::trunc(x) == x; }

// Behind more moves, what made a value whole is not looked for.
constexpr int64_t kMostMoves = 16;

// Gives elements of its first operand, and no others.
bool Moves(const Op& op) {
  if (op.code == kGather) return op.attributes.bounds == Bounds::kClip;
  if (op.code == kTake) {  // -1 takes none
    const auto& taken = op.attributes.start;
    return std::all_of(taken.begin(), taken.end(), [](int64_t place) { return place >= 0; });
  }
  return op.code == kBroadcast || op.code == kReshape || op.code == kSlice || op.code == kTranspose;
}

class Namer {
 public:
  Namer(Program program, const std::unordered_set<std::string>& overridden, PassBudget& budget)
      : program_(std::move(program)),
        overridden_(overridden),
        budget_(budget),
        behind_predicates_(BehindPredicates(program_, &budget)),
        behind_choices_(BehindChoices(program_, &budget)),
        behind_places_(BehindPlaces(program_, &budget)),
        of_guards_(program_.values.size(), false),
        elsewhere_(program_.values.size(), false),
        in_select_(program_.values.size(), false) {}

  Program Run() {
    Read(program_.step);
    for (const Export& exported : program_.exports) elsewhere_[Index(exported.value)] = true;
    Name(program_.step);
    return std::move(program_);
  }

 private:
  // The rounding that made a value whole, and the last of the `moves` that took it there.
  struct Whole {
    OpCode code;
    ValueId operand;
    ValueId moved = ValueId::kNone;
    int64_t moves = 0;
  };
  struct Move {
    Op op;
    ValueId before;  // the move whose result it takes, through bounds and shifts; or none
  };

  // Finds the literals that guards compare with, and how each value is used.
  void Read(const Region& region) {
    for (const Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.operands.size()));
      const auto& numbers = op.attributes.literal;
      const bool is_guards =
          op.code == kLiteral && std::all_of(numbers.begin(), numbers.end(), IsGuardsNumber);
      const bool moves = op.code == kBroadcast && of_guards_[Index(op.operands[0])];
      if (is_guards || moves) of_guards_[Index(op.results[0])] = true;
      ReadWhole(op);
      for (size_t k = 0; k < op.operands.size(); ++k) {
        const bool selects = op.code == kSelect && k == 0;
        const bool weighs = op.code == kConvert && program_.IsReal(op.results[0]);
        (selects || weighs ? in_select_ : elsewhere_)[Index(op.operands[k])] = true;
      }
      for (const Region& nested : op.regions) Read(nested);
    }
    for (ValueId id : region.yields) elsewhere_[Index(id)] = true;
  }

  // A bound, or a shift, by whole numbers leaves whole what floor, ceil, trunc or round gave; so does a move.
  void ReadWhole(const Op& op) {
    if (op.code == kFloor || op.code == kCeil || op.code == kTrunc || op.code == kRound) {
      whole_.emplace(op.results[0], Whole{op.code, op.operands[0]});
    } else if (op.code == kLiteral && program_.IsReal(op.results[0])) {
      const auto& numbers = op.attributes.literal;
      if (std::all_of(numbers.begin(), numbers.end(), IsWhole)) of_whole_.insert(op.results[0]);
    } else if (Moves(op)) {
      ReadMove(op);
    } else if (op.code == kMin || op.code == kMax || op.code == kAdd || op.code == kSub) {
      for (size_t k = 0; k < 2; ++k) {
        const auto rounded = whole_.find(op.operands[k]);
        if (rounded == whole_.end() || !of_whole_.contains(op.operands[1 - k])) continue;
        whole_.emplace(op.results[0], Whole(rounded->second));
        return;
      }
    }
  }

  void ReadMove(const Op& op) {
    if (of_whole_.contains(op.operands[0])) of_whole_.insert(op.results[0]);
    const auto found = whole_.find(op.operands[0]);
    if (found == whole_.end() || found->second.moves == kMostMoves) return;
    const Whole before = found->second;
    moves_.emplace(op.results[0], Move{op, before.moved});
    whole_.emplace(op.results[0],
                   Whole{before.code, before.operand, op.results[0], before.moves + 1});
  }

  // Nothing where it is not known to be whole.
  std::optional<Rounding> RoundingOf(ValueId value) {
    const auto found = whole_.find(value);
    if (found == whole_.end()) return std::nullopt;
    Rounding rounding = {found->second.code, found->second.operand};
    ValueId moved = found->second.moved;
    while (moved != ValueId::kNone) {
      budget_.Visit();
      const Move& move = moves_.at(moved);
      rounding.moves.push_back(move.op);
      moved = move.before;
    }
    std::reverse(rounding.moves.begin(), rounding.moves.end());
    return rounding;
  }

  bool Compares(const Op& op) const { return ComparesTwo(op) && program_.IsReal(op.operands[0]); }

  // A declared kind comes before what data flow says.
  TestKind KindOf(const Op& op) const {
    if (op.attributes.kind != TestKind::kFromFlow) return op.attributes.kind;
    const size_t result = Index(op.results[0]);
    if (ReachesPredicate(result)) return TestKind::kTermination;
    const bool guards = of_guards_[Index(op.operands[0])] || of_guards_[Index(op.operands[1])];
    if (Compares(op) && guards && in_select_[result] && !elsewhere_[result])
      return TestKind::kGuard;
    if (IsTest(op) || behind_choices_[result]) return TestKind::kEvent;
    return TestKind::kWeight;
  }

  bool ReachesPredicate(size_t value) const {
    return !behind_predicates_.empty() && behind_predicates_[value];
  }

  // Whether an operation chooses by reals and its choice counts.
  bool Chooses(const Op& op) const {
    const bool counts =
        program_.level == TestLevel::kDecisions || program_.level == TestLevel::kAll;
    if (!counts || !ChoosesByReals(program_, op)) return false;
    const size_t result = Index(op.results[0]);
    return op.code != kConvert || ReachesPredicate(result) || behind_choices_[result] ||
           behind_places_[result];
  }

  void Choose(Op op, std::vector<Op>& out) {
    const std::string site = Occurrence(op.site.empty() ? OwnNameOfChoice(op) : op.site);
    const TestKind kind =
        ReachesPredicate(Index(op.results[0])) ? TestKind::kTermination : TestKind::kEvent;
    const size_t first = out.size();
    std::optional<Rounding> whole;
    if (op.code == kConvert) whole = RoundingOf(op.operands[0]);
    WriteChoice(program_, std::move(op), std::move(whole), site, kind, out, budget_);
    for (size_t k = first; k < out.size(); ++k) budget_.WroteOp(out[k]);
  }

  std::string Occurrence(const std::string& name) {
    const int64_t before = occurrences_[name]++;
    return before == 0 ? name : absl::StrCat(name, "#", before);
  }

  void Name(Region& region) {
    std::vector<Op> named;
    named.reserve(region.ops.size());
    for (Op& op : region.ops) {
      budget_.Visit();
      if (op.code == kOwnVjp) {  // a vjp has no sites
        named.push_back(std::move(op));
        continue;
      }
      if (Chooses(op)) {
        Choose(std::move(op), named);
        continue;
      }
      if (op.code == kWhile && !op.attributes.site.empty()) {
        op.attributes.site = Occurrence(op.attributes.site);
      } else if (IsTest(op)) {
        op.attributes.kind = KindOf(op);
        op.attributes.site = Occurrence(op.attributes.site);
      } else if (Compares(op)) {
        NameComparison(op);
      } else if (ComparesTwo(op)) {  // integers, which rounding does not move
        op.attributes.site.clear();
        op.attributes.kind = TestKind::kFromFlow;
      }
      for (Region& nested : op.regions) Name(nested);
      named.push_back(std::move(op));
    }
    region.ops = std::move(named);
  }

  void NameComparison(Op& op) {
    const TestKind kind = KindOf(op);
    const bool counts = program_.level == TestLevel::kAll ||
                        (program_.level == TestLevel::kDecisions && kind != TestKind::kGuard);
    const std::string given = std::exchange(op.attributes.site, "");
    op.attributes.kind = TestKind::kFromFlow;
    if (!counts) {
      // A policy that sets the test's site sets the comparison at every level.
      const bool is_set = overridden_.count(given) > 0 || overridden_.count(op.site) > 0;
      if (!given.empty() && is_set) op.site = given;
      return;
    }
    const std::string own(InfoOf(op.code).name);
    op.attributes.site = Occurrence(!given.empty() ? given : !op.site.empty() ? op.site : own);
    op.attributes.kind = kind;
    op.attributes.comparison =
        static_cast<Comparison>(static_cast<int>(op.code) - static_cast<int>(kLt));
    op.code = kEvent;
  }

  Program program_;
  const std::unordered_set<std::string>& overridden_;
  PassBudget& budget_;
  std::vector<bool> behind_predicates_;
  std::vector<bool> behind_choices_;
  std::vector<bool> behind_places_;
  std::vector<bool> of_guards_;               // literals that guards compare with
  std::vector<bool> elsewhere_, in_select_;   // what uses a value
  std::unordered_map<ValueId, Whole> whole_;  // what made values whole, by these
  std::unordered_map<ValueId, Move> moves_;   // of whole values, by their results
  std::unordered_set<ValueId> of_whole_;      // literals of whole numbers
  std::unordered_map<std::string, int64_t> occurrences_;
};

}  // namespace

Program NameTests(Program program, const std::unordered_set<std::string>& overridden,
                  PassBudget& budget) {
  if (program.level == TestLevel::kDeclared) return program;
  return Namer(std::move(program), overridden, budget).Run();
}

}  // namespace simgrad::sim
