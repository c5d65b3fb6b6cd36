// Recording: what decisions gave leaves the loops around them, and the step.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/program/field_error.h"
#include "sim/program/loop.h"
#include "sim/program/path_decisions.h"
#include "sim/program/path_lines.h"
#include "sim/program/path_pack.h"
#include "sim/program/paths.h"
#include "sim/program/verify.h"

namespace simgrad::sim {
namespace {

constexpr size_t kMostAxes = 8;  // of an array of a program

const Type kCounter = {ElementType::kI32, {}};

// The content of one column, as the region around the decision knows it.
struct Kept {
  size_t column;
  ValueId value;
};

void InsertAt(std::vector<ValueId>& ids, size_t place, ValueId id) {
  ids.insert(ids.begin() + static_cast<int64_t>(place), id);
}

class Recorder {
 public:
  Recorder(Program& program, PassBudget& budget)
      : program_(program), budget_(budget), decisions_(program, budget) {}

  PathLayout Run() {
    std::vector<Kept> kept = OfRegion(program_.step, nullptr);
    std::sort(kept.begin(), kept.end(),
              [](const Kept& a, const Kept& b) { return a.column < b.column; });
    PathLayout layout;
    layout.use = PathUse::kRecorded;
    layout.columns = std::move(columns_);
    RefuseLarge(layout);
    PlaceColumns(layout);
    std::vector<ValueId> values;
    for (const Kept& one : kept) values.push_back(one.value);
    PathLines lines(program_, budget_, program_.step.ops);
    if (layout.bytes > 0) AddPathTaken(program_, PackPath(lines, layout, values), budget_);
    return layout;
  }

 private:
  using Wanted = const std::unordered_set<size_t>*;

  // An array of a program, which a column is before it is packed, has so many elements at most.
  static void RefuseLarge(const PathLayout& layout) {
    const int64_t most = ProgramLimits().max_elements;
    for (const PathColumn& column : layout.columns) {
      const int64_t count = ElementCount(column.shape);
      if (column.shape.size() > kMostAxes) {
        throw PassBudget::Ended{LimitError(
            "path", absl::StrCat("'", column.site,
                                 "' stands in so many loops that its "
                                 "decisions have ",
                                 column.shape.size(), " axes; the limit is ", kMostAxes))};
      }
      if (count <= most) continue;
      throw PassBudget::Ended{LimitError(
          "path",
          absl::StrCat("'", column.site, "' may decide ", count, " times in one step (",
                       column.width == 0 ? count / 8 : count * column.width,
                       " bytes); the limit is ", most, "; lower the caps of the loops around it"))};
    }
  }

  // `wanted`: in the test of a loop, what does not only stop it.
  std::vector<Kept> OfRegion(Region& region, Wanted wanted) {
    std::vector<Kept> kept;
    std::vector<Op> ops = std::exchange(region.ops, {});
    for (Op& op : ops) {
      budget_.Visit();
      const bool only_stops = wanted != nullptr && PathDecisions::OnlyStops(op, *wanted);
      if (!only_stops && op.code == OpCode::kWhile) {
        OfWhile(op, region.ops, kept);
      } else if (!only_stops && op.code == OpCode::kFor) {
        OfFor(op, kept);
      } else if (!only_stops && decisions_.Decides(op)) {
        kept.push_back({columns_.size(), op.results[0]});
        columns_.push_back(decisions_.ColumnOf(op));
      }
      region.ops.push_back(std::move(op));
    }
    return kept;
  }

  // Stacked, one per turn.
  void OfFor(Op& op, std::vector<Kept>& kept) {
    const int64_t turns = op.attributes.max_iter;
    if (turns == 0) return;
    const size_t loop = columns_.size();
    PathLines lines(program_, budget_, op.regions[0].ops);
    for (const Kept& inside : OfRegion(op.regions[0], nullptr)) {
      op.regions[0].yields.push_back(inside.value);
      op.results.push_back(lines.NewValue(Outside(inside, turns, loop)));
      kept.push_back({inside.column, op.results.back()});
    }
  }

  void OfWhile(Op& op, std::vector<Op>& before, std::vector<Kept>& kept) {
    if (IsBranch(op)) return OfBranch(op, before, kept);
    const size_t loop = columns_.size();
    kept.push_back({loop, op.results.back()});
    columns_.push_back(decisions_.ColumnOf(op));
    const std::unordered_set<size_t> wanted = PathDecisions::BehindExports(op);
    const std::vector<Kept> tested = OfRegion(op.regions[0], &wanted);
    const std::vector<Kept> body = OfRegion(op.regions[1], nullptr);
    if (tested.empty() && body.empty()) return;
    const Carried turn = Carry(op, before, kCounter);
    {
      PathLines lines(program_, budget_, op.regions[1].ops);
      Next(op, turn, lines.Do(OpCode::kAdd, {turn.body, lines.Number(1, kCounter)}, kCounter));
    }
    const int64_t cap = op.attributes.max_iter;
    const bool once_more = op.attributes.cap_order == CapOrder::kTestFirst;
    for (const Kept& inside : tested) {
      const Type array = Outside(inside, once_more ? cap + 1 : cap, loop);
      const Carried carried = Carry(op, before, array);
      PathLines lines(program_, budget_, op.regions[0].ops);
      const ValueId with = lines.With(carried.test, inside.value, turn.test);
      kept.push_back({inside.column, Export(op, carried, with)});
      AddAxis(inside.column, op.attributes.elements, -1);
    }
    for (const Kept& inside : body) {
      const Carried carried = Carry(op, before, Outside(inside, cap, loop));
      PathLines lines(program_, budget_, op.regions[1].ops);
      Next(op, carried, lines.With(carried.body, inside.value, turn.body));
      kept.push_back({inside.column, carried.result});
      AddAxis(inside.column, op.attributes.elements, -1);
    }
  }

  // One turn at most: no axis.
  void OfBranch(Op& op, std::vector<Op>& before, std::vector<Kept>& kept) {
    for (const Kept& inside : OfRegion(op.regions[1], nullptr)) {
      const Carried carried = Carry(op, before, program_[inside.value].type);
      Next(op, carried, inside.value);
      kept.push_back({inside.column, carried.result});
    }
  }

  // Type of the array that holds `length` of a decision, in the region that sees one element.
  Type Outside(const Kept& inside, int64_t length, size_t loop) {
    AddAxis(inside.column, length, static_cast<int32_t>(loop));
    Type type = program_[inside.value].type;
    type.shape.insert(type.shape.begin(), length);
    return type;
  }
  // A loop that does not run per element adds no axis of elements.
  void AddAxis(size_t column, int64_t length, int32_t loop) {
    if (length == 0) return;
    columns_[column].shape.insert(columns_[column].shape.begin(), length);
    columns_[column].loops.insert(columns_[column].loops.begin(), loop);
  }

  // A value that the loop carries, 0 at first; of a loop per element each has its own.
  struct Carried {
    size_t place;
    ValueId test, body, result;
  };
  Carried Carry(Op& op, std::vector<Op>& before, Type type) {
    PathLines lines(program_, budget_, before);
    Type whole = type;
    const int64_t elements = op.attributes.elements;
    if (elements > 0) whole.shape.insert(whole.shape.begin(), elements);
    const size_t place = static_cast<size_t>(op.attributes.carried++);
    Carried carried{place, lines.NewValue(type), lines.NewValue(type), lines.NewValue(whole)};
    InsertAt(op.operands, place, lines.Number(0, whole));
    InsertAt(op.regions[0].args, place, carried.test);
    InsertAt(op.regions[1].args, place, carried.body);
    InsertAt(op.results, place, carried.result);
    InsertAt(op.regions[1].yields, place, ValueId::kNone);
    return carried;
  }
  void Next(Op& op, const Carried& carried, ValueId value) {
    op.regions[1].yields[carried.place] = value;
  }
  // The test gives the next value of what is carried; gives the result of the loop.
  ValueId Export(Op& op, const Carried& carried, ValueId value) {
    const Type type = program_[value].type;
    PathLines lines(program_, budget_, op.regions[0].ops);
    const size_t place = op.results.size() - 1;  // behind the other exports
    const ValueId in_body = lines.NewValue(type);
    const ValueId result = lines.NewValue(program_[carried.result].type);
    op.regions[0].yields.push_back(value);
    InsertAt(op.regions[1].args, place, in_body);
    InsertAt(op.results, place, result);
    Next(op, carried, in_body);
    return result;
  }

  Program& program_;
  PassBudget& budget_;
  PathDecisions decisions_;
  std::vector<PathColumn> columns_;
};

}  // namespace

NumericalProgram RecordPath(NumericalProgram numerical, PassBudget& budget) {
  RefuseDecisionsOutside(numerical.program, budget);
  numerical.path = Recorder(numerical.program, budget).Run();
  return numerical;
}

}  // namespace simgrad::sim
