// Forcing: what decisions gave is replaced by what the path says, and disagreements become events.
#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/program/decision_margin.h"
#include "sim/program/loop.h"
#include "sim/program/path_decisions.h"
#include "sim/program/path_lines.h"
#include "sim/program/path_pack.h"
#include "sim/program/path_start.h"
#include "sim/program/paths.h"

namespace simgrad::sim {
namespace {

const Type kCounter = {ElementType::kI32, {}};
const Type kTruth = {ElementType::kBool, {}};

void InsertAt(std::vector<ValueId>& ids, size_t place, ValueId id) {
  ids.insert(ids.begin() + static_cast<int64_t>(place), id);
}

OpCode CodeOf(Comparison comparison) {
  return static_cast<OpCode>(static_cast<int>(OpCode::kLt) + static_cast<int>(comparison));
}

// Visits decisions in the order in which the recorder made its columns.
class Forcer {
 public:
  Forcer(Program& program, const PathLayout& layout, PassBudget& budget)
      : program_(program), budget_(budget), layout_(layout), decisions_(program, budget) {}

  void Run() {
    std::vector<ValueId> own;  // what `initial` would have decided, as the step knows it
    if (ColumnsOf(program_.initial, nullptr) > 0) {
      tells_ = false;
      Force(program_.initial, InputKind::kParam, kPathGivenFirst);
      tells_ = true;
      own = RecordForcedStart(program_, decided_, budget_);
    }
    Force(program_.step, InputKind::kData, kPathGiven);
    std::vector<Op>& ops = program_.step.ops;
    PathLines lines(program_, budget_, ops);
    for (size_t k = 0; k < own.size(); ++k) {
      Differ(lines, ops, k, own[k], given_[k], ValueId::kNone);
    }
  }

 private:
  using Wanted = const std::unordered_set<size_t>*;

  // By a row of the path, which a new input gives.
  void Force(Region& region, InputKind kind, const char* name) {
    std::vector<Op> unpacked;
    PathLines lines(program_, budget_, unpacked);
    const ValueId row = lines.NewValue({ElementType::kU8, {layout_.bytes}});
    program_[row].name = name;
    program_.inputs.push_back({.kind = kind, .name = name, .value = row});
    given_ = UnpackPath(lines, layout_, row);
    OfRegion(region, nullptr);
    region.ops.insert(region.ops.begin(), std::make_move_iterator(unpacked.begin()),
                      std::make_move_iterator(unpacked.end()));
  }

  void OfRegion(Region& region, Wanted wanted) {
    std::vector<Op> ops = std::exchange(region.ops, {});
    const std::map<PivotsKey, ValueId> pivots = GivenPivots(ops, wanted);
    for (Op& op : ops) {
      budget_.Visit();
      GivePivots(op, pivots);
      const bool only_stops = wanted != nullptr && PathDecisions::OnlyStops(op, *wanted);
      if (!only_stops && op.code == OpCode::kWhile) {
        OfWhile(op, region.ops);
      } else if (!only_stops && op.code == OpCode::kFor) {
        OfFor(op);
      } else if (!only_stops && decisions_.Decides(op)) {
        OfDecision(std::move(op), region.ops);
        continue;
      }
      region.ops.push_back(std::move(op));
    }
  }

  // The order of rows for each matrix that the operations factor.
  std::map<PivotsKey, ValueId> GivenPivots(const std::vector<Op>& ops, Wanted wanted) const {
    std::map<PivotsKey, ValueId> pivots;
    if (std::none_of(ops.begin(), ops.end(), HasPivots)) return pivots;
    size_t column = next_;
    for (const Op& op : ops) {
      const size_t columns = ColumnsOf(op, wanted);
      const PivotsKey* const key = decisions_.PivotsBy(op);
      if (columns > 0 && key != nullptr) pivots.emplace(*key, given_[column]);
      column += columns;
    }
    return pivots;
  }

  static void GivePivots(Op& op, const std::map<PivotsKey, ValueId>& pivots) {
    if (!HasPivots(op)) return;
    const auto rows = pivots.find(PivotsOf(op));
    if (rows != pivots.end()) op.operands.push_back(rows->second);
  }

  // Everything behind the operation reads what the path says.
  void OfDecision(Op op, std::vector<Op>& out) {
    const size_t column = next_++;
    PathLines lines(program_, budget_, out);
    const ValueId used = op.results[0];
    const ValueId own = lines.NewValue(lines.TypeOf(used));
    op.results[0] = own;
    const Op test = op;
    out.push_back(std::move(op));
    Op same{.code = OpCode::kReshape, .role = Role::kState, .operands = {given_[column]}};
    same.results = {used};
    same.attributes.shape = lines.TypeOf(used).shape;
    budget_.WroteOp(same);
    out.push_back(std::move(same));
    if (!tells_) {
      decided_.insert(Index(own));
      return;
    }
    const ValueId differs = Differ(lines, out, column, own, used, ValueId::kNone);
    const bool compares = IsTest(test) || ComparesTwo(test);
    const size_t first = test.code == OpCode::kChoice ? 1 : 0;
    if (!compares || !program_.IsReal(test.operands[first])) return;
    Margin(out, column, test, test.operands[first], test.operands[first + 1], differs);
  }

  // Counts where two decisions differ; gives where.
  ValueId Differ(PathLines& lines, std::vector<Op>& out, size_t column, ValueId own, ValueId given,
                 ValueId guard) {
    const Type type = lines.TypeOf(own);
    const Type truth{ElementType::kBool, type.shape};
    ValueId differs = lines.Do(OpCode::kNe, {own, given}, truth);
    if (guard != ValueId::kNone) differs = lines.Do(OpCode::kAnd, {differs, guard}, truth);
    const Type counter{ElementType::kI32, type.shape};
    const ValueId one = lines.Converted(differs, ElementType::kI32);
    Event(out, absl::StrCat(kForcedSite, layout_.columns[column].site), Role::kEvent, "", one,
          lines.Number(0, counter), ValueId::kNone);
    return differs;
  }

  void Margin(std::vector<Op>& out, size_t column, const Op& test, ValueId a, ValueId b,
              ValueId differs) {
    Event(out, absl::StrCat(kMarginSite, layout_.columns[column].site), test.role, test.label, a, b,
          differs);
  }

  // a != b
  void Event(std::vector<Op>& out, std::string site, Role role, const std::string& label, ValueId a,
             ValueId b, ValueId guard) {
    PathLines lines(program_, budget_, out);
    Attributes attributes;
    attributes.site = std::move(site);
    attributes.comparison = Comparison::kNe;
    std::vector<ValueId> operands = {a, b};
    if (guard != ValueId::kNone) operands.push_back(guard);
    const Type truth{ElementType::kBool, lines.TypeOf(a).shape};
    lines.Do(OpCode::kEvent, std::move(operands), truth, std::move(attributes));
    out.back().role = role;
    out.back().label = label;
  }

  // Scanned, one per turn.
  void OfFor(Op& op) {
    if (op.attributes.max_iter == 0) return;
    const size_t first = next_;
    Region& body = op.regions[0];
    const size_t last = first + ColumnsOf(body, nullptr);
    const std::vector<ValueId> outside = Given(first, last);
    PathLines lines(program_, budget_, body.ops);
    for (size_t k = first; k < last; ++k) {
      op.operands.push_back(given_[k]);
      body.args.push_back(lines.NewValue(Inside(given_[k])));
      given_[k] = body.args.back();
      ++op.attributes.scanned;
    }
    OfRegion(body, nullptr);
    Give(first, outside);
  }

  // The columns [first, last), of which a loop sees other values inside than outside.
  std::vector<ValueId> Given(size_t first, size_t last) const {
    return {given_.begin() + static_cast<int64_t>(first),
            given_.begin() + static_cast<int64_t>(last)};
  }
  void Give(size_t first, const std::vector<ValueId>& columns) {
    std::copy(columns.begin(), columns.end(), given_.begin() + static_cast<int64_t>(first));
  }

  void OfWhile(Op& op, std::vector<Op>& before) {
    if (IsBranch(op)) return OfRegion(op.regions[1], nullptr);
    const size_t count = next_++;
    const std::unordered_set<size_t> wanted = PathDecisions::BehindExports(op);
    const size_t first = next_;
    const size_t middle = first + ColumnsOf(op.regions[0], &wanted);
    const size_t last = middle + ColumnsOf(op.regions[1], nullptr);
    const size_t exports = FirstExport(op);
    const Turn turn = AddTurn(op, before);
    // The parts of the path that the regions see: in a loop per element, the part of that element.
    const std::vector<ValueId> outside = Given(count, last);
    std::vector<ValueId> in_test = outside;
    std::vector<ValueId> in_body = outside;
    if (op.attributes.elements > 0) {
      for (size_t k = count; k < last; ++k) {
        op.operands.push_back(given_[k]);
        PathLines lines(program_, budget_, before);
        for (size_t region : {0, 1}) {
          op.regions[region].args.push_back(lines.NewValue(Inside(given_[k])));
        }
        in_test[k - count] = op.regions[0].args.back();
        in_body[k - count] = op.regions[1].args.back();
      }
    }
    Give(count, in_test);
    const ValueId turns = given_[count];
    OfTurn(op.regions[0], first, middle, turn.test, &wanted);
    Stop(op, count, exports, turn.test, turns);
    Give(count, in_body);
    OfTurn(op.regions[1], middle, last, turn.body, nullptr);
    Give(count, outside);
    PathLines lines(program_, budget_, op.regions[1].ops);
    const ValueId one = lines.Number(1, kCounter);
    op.regions[1].yields[turn.place] = lines.Do(OpCode::kAdd, {turn.body, one}, kCounter);
  }

  // A region of a loop, whose columns have an element per turn.
  void OfTurn(Region& region, size_t first, size_t last, ValueId turn, Wanted wanted) {
    std::vector<Op> reads;
    PathLines lines(program_, budget_, reads);
    for (size_t k = first; k < last; ++k) given_[k] = lines.At(given_[k], turn);
    OfRegion(region, wanted);
    region.ops.insert(region.ops.begin(), std::make_move_iterator(reads.begin()),
                      std::make_move_iterator(reads.end()));
  }

  // The loop stops at the turn that the path says; what would have stopped it is compared with that.
  void Stop(Op& op, size_t count, size_t exports, ValueId turn, ValueId turns) {
    Region& test = op.regions[0];
    const bool was_predicate = op.attributes.predicate;
    const std::vector<ValueId> tested(test.yields.begin(),
                                      test.yields.begin() + static_cast<int64_t>(exports));
    PathLines lines(program_, budget_, test.ops);
    ValueId own = tested[0];
    ValueId bound = was_predicate ? ValueId::kNone : tested[1];
    Op compared;
    if (!was_predicate) {
      own = Compare(op, lines, test.ops, CodeOf(op.attributes.comparison), tested[0], tested[1]);
      compared = test.ops.back();
      if (op.attributes.has_entry) {
        const ValueId enters = Compare(op, lines, test.ops, OpCode::kGe, tested[0], tested[2]);
        const ValueId out = lines.Do(OpCode::kNot, {enters}, kTruth);
        const ValueId is_first = lines.Do(OpCode::kEq, {turn, lines.Number(0, kCounter)}, kTruth);
        // A first turn that the loop's own test allows is up to the entry.
        const ValueId goes = lines.Do(OpCode::kNot, {own}, kTruth);
        const ValueId at_entry = lines.Do(OpCode::kAnd, {is_first, goes}, kTruth);
        bound = InRoleOf(op, lines, test.ops, OpCode::kSelect, {at_entry, tested[2], tested[1]},
                         lines.TypeOf(tested[1]));
        own = lines.Do(OpCode::kOr, {own, lines.Do(OpCode::kAnd, {is_first, out}, kTruth)}, kTruth);
      }
    }
    const ValueId stop = lines.Do(OpCode::kGe, {turn, turns}, kTruth);
    // At the cap the loop ends, whatever its test says.
    const ValueId cap = lines.Number(op.attributes.max_iter, kCounter);
    const ValueId below = lines.Do(OpCode::kLt, {turn, cap}, kTruth);
    const ValueId differs = Differ(lines, test.ops, count, own, stop, below);
    if (was_predicate) {
      TellMarginOf(OnlyTest(test.ops, tested[0]), test.ops, count, differs);
    } else {
      Margin(test.ops, count, compared, tested[0], bound, differs);
    }
    test.yields.erase(test.yields.begin(), test.yields.begin() + static_cast<int64_t>(exports));
    InsertAt(test.yields, 0, stop);
    op.attributes.predicate = true;
    op.attributes.has_entry = false;
    op.attributes.comparison = Comparison::kLt;
  }

  // The comparison of reals in a predicate that is a formula of it, integers, and what is carried. None: there are
  // several, or something else of reals; then no margin is that of the formula.
  std::optional<Op> OnlyTest(const std::vector<Op>& ops, ValueId predicate) const {
    std::unordered_set<size_t> formula = {Index(predicate)};
    std::optional<Op> only;
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      const bool is_part = std::any_of(op->results.begin(), op->results.end(),
                                       [&](ValueId id) { return formula.contains(Index(id)); });
      if (!is_part) continue;
      const bool compares = ComparesTwo(*op) || op->code == OpCode::kEvent;
      const bool reads_reals = std::any_of(op->operands.begin(), op->operands.end(),
                                           [&](ValueId id) { return program_.IsReal(id); });
      if (compares && op->operands.size() == 2 && reads_reals) {
        if (only || !program_[op->results[0]].type.shape.empty()) return std::nullopt;
        only = *op;
        continue;
      }
      if (reads_reals || !op->regions.empty()) return std::nullopt;
      for (ValueId operand : op->operands) formula.insert(Index(operand));
    }
    return only;
  }

  void TellMarginOf(const std::optional<Op>& test, std::vector<Op>& out, size_t column,
                    ValueId differs) {
    if (test) Margin(out, column, *test, test->operands[0], test->operands[1], differs);
  }

  ValueId Compare(const Op& loop, PathLines& lines, std::vector<Op>& out, OpCode code, ValueId a,
                  ValueId b) {
    return InRoleOf(loop, lines, out, code, {a, b}, kTruth);
  }

  // In the format in which the loop tests.
  ValueId InRoleOf(const Op& loop, PathLines& lines, std::vector<Op>& out, OpCode code,
                   std::vector<ValueId> operands, Type type) {
    const ValueId result = lines.Do(code, std::move(operands), std::move(type));
    out.back().role = Role::kTermination;
    out.back().site = std::string(BaseOfSite(loop.attributes.site));
    out.back().label = loop.label;
    return result;
  }

  // A carried value that counts the turns.
  struct Turn {
    size_t place;
    ValueId test, body;
  };
  Turn AddTurn(Op& op, std::vector<Op>& before) {
    PathLines lines(program_, budget_, before);
    Type whole = kCounter;
    if (op.attributes.elements > 0) whole.shape = {op.attributes.elements};
    const Turn turn{static_cast<size_t>(op.attributes.carried++), lines.NewValue(kCounter),
                    lines.NewValue(kCounter)};
    InsertAt(op.operands, turn.place, lines.Number(0, whole));
    InsertAt(op.regions[0].args, turn.place, turn.test);
    InsertAt(op.regions[1].args, turn.place, turn.body);
    InsertAt(op.results, turn.place, lines.NewValue(whole));
    InsertAt(op.regions[1].yields, turn.place, ValueId::kNone);
    return turn;
  }

  // How many columns the decisions of a region have.
  size_t ColumnsOf(const Region& region, Wanted wanted) const {
    size_t columns = 0;
    for (const Op& op : region.ops) columns += ColumnsOf(op, wanted);
    return columns;
  }
  size_t ColumnsOf(const Op& op, Wanted wanted) const {
    if (wanted != nullptr && PathDecisions::OnlyStops(op, *wanted)) return 0;
    if (op.code == OpCode::kFor) {
      return op.attributes.max_iter > 0 ? ColumnsOf(op.regions[0], nullptr) : 0;
    }
    if (op.code != OpCode::kWhile) return decisions_.Decides(op) ? 1 : 0;
    const size_t body = ColumnsOf(op.regions[1], nullptr);
    if (IsBranch(op)) return body;
    const std::unordered_set<size_t> behind = PathDecisions::BehindExports(op);
    return 1 + ColumnsOf(op.regions[0], &behind) + body;
  }

  // Without the leading axis.
  Type Inside(ValueId array) const {
    Type type = program_[array].type;
    type.shape.erase(type.shape.begin());
    return type;
  }

  Program& program_;
  PassBudget& budget_;
  const PathLayout& layout_;
  PathDecisions decisions_;
  size_t next_ = 0;
  bool tells_ = true;                   // of disagreements where they are; `initial` has no sites
  std::unordered_set<size_t> decided_;  // what decisions gave where it does not
  std::vector<ValueId> given_;          // by column: what the region being written sees of it
};

}  // namespace

NumericalProgram ForcePath(NumericalProgram numerical, PassBudget& budget) {
  PathLayout layout = *RecordPath(numerical, budget).path;
  layout.use = PathUse::kForced;
  if (layout.bytes > 0) {
    NamePivots(numerical.program, budget);
    Forcer(numerical.program, layout, budget).Run();
  }
  numerical.path = std::move(layout);
  return numerical;
}

}  // namespace simgrad::sim
