#include "sim/program/step_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/program/field_error.h"
#include "sim/program/loop.h"
#include "sim/program/path_decisions.h"
#include "sim/program/verify.h"

namespace simgrad::sim {
namespace {

constexpr size_t kMostAxes = 8;  // of an array of a program

const Type kCounter = {ElementType::kI32, {}};

void InsertAt(std::vector<ValueId>& ids, size_t place, ValueId id) {
  ids.insert(ids.begin() + static_cast<int64_t>(place), id);
}

// With a leading axis, if the loop runs per element.
Type OfElements(const Op& loop, Type type) {
  const int64_t elements = loop.attributes.elements;
  if (elements > 0) type.shape.insert(type.shape.begin(), elements);
  return type;
}

}  // namespace

std::vector<ValueId> StepRecorder::Run(Region& region) {
  std::vector<Kept> kept = OfRegion(region, std::nullopt);
  RefuseLarge();
  std::vector<ValueId> values(columns_.size(), ValueId::kNone);
  for (const Kept& one : kept) values[one.column] = one.value;
  return values;
}

void StepRecorder::Keep(PathColumn column, ValueId value, std::vector<Kept>& kept) {
  kept.push_back({columns_.size(), value});
  columns_.push_back(std::move(column));
}

void StepRecorder::RefuseLarge() const {
  const ProgramLimits limits;
  int64_t in_all = 0;
  for (const PathColumn& column : columns_) {
    const int64_t count = ElementCount(column.shape);
    if (column.shape.size() > kMostAxes) {
      throw PassBudget::Ended{
          LimitError(field_, absl::StrCat("'", column.site,
                                          "' stands in so many loops that its "
                                          "decisions have ",
                                          column.shape.size(), " axes; the limit is ", kMostAxes))};
    }
    if (count > limits.max_elements) {
      throw PassBudget::Ended{LimitError(
          field_, absl::StrCat("'", column.site, "' may decide ", count, " times in one step (",
                               column.width == 0 ? count / 8 : count * column.width,
                               " bytes); the limit is ", limits.max_elements,
                               "; lower the caps of the loops around it"))};
    }
    in_all += count;
  }
  if (in_all <= limits.max_total_elements) return;
  throw PassBudget::Ended{
      LimitError(field_, absl::StrCat("a step may decide ", in_all, " times in all; the limit is ",
                                      limits.max_total_elements, "; lower the caps of loops"))};
}

std::vector<StepRecorder::Kept> StepRecorder::OfRegion(Region& region, const Wanted& wanted) {
  std::vector<Kept> kept;
  std::vector<Op> ops = std::exchange(region.ops, {});
  for (Op& op : ops) {
    budget_.Visit();
    if (!wanted || !PathDecisions::OnlyStops(op, *wanted)) {
      if (op.code == OpCode::kWhile) {
        OfWhile(op, region.ops, kept);
      } else if (op.code == OpCode::kFor) {
        OfFor(op, kept);
      } else {
        PathLines lines(program_, budget_, region.ops);
        OfOperation(op, lines, kept);
      }
    }
    region.ops.push_back(std::move(op));
  }
  return kept;
}

// Stacked, one per turn.
void StepRecorder::OfFor(Op& op, std::vector<Kept>& kept) {
  const int64_t turns = op.attributes.max_iter;
  if (turns == 0) return;
  const auto loop = static_cast<int32_t>(columns_.size());
  const int32_t turn_of = op.attributes.reverse ? -2 - loop : loop;
  PathLines lines(program_, budget_, op.regions[0].ops);
  for (const Kept& inside : OfRegion(op.regions[0], std::nullopt)) {
    op.regions[0].yields.push_back(inside.value);
    op.results.push_back(lines.NewValue(Outside(inside, turns, turn_of)));
    kept.push_back({inside.column, op.results.back()});
  }
}

void StepRecorder::OfWhile(Op& op, std::vector<Op>& before, std::vector<Kept>& kept) {
  if (IsBranch(op)) return OfBranch(op, before, kept);
  const auto loop = static_cast<int32_t>(columns_.size());
  OfLoop(op, kept);
  std::vector<Kept> tested = OfRegion(op.regions[0], WantedOf(op));
  const std::vector<Kept> body = OfRegion(op.regions[1], std::nullopt);
  const bool keeps_test = KeepsTest(op);
  if (tested.empty() && body.empty() && !keeps_test) return;
  PathLines entry(program_, budget_, before);
  const Carried turn = Carry(op, entry, kCounter, entry.Number(0, OfElements(op, kCounter)));
  {
    PathLines lines(program_, budget_, op.regions[1].ops);
    Next(op, turn, lines.Do(OpCode::kAdd, {turn.body, lines.Number(1, kCounter)}, kCounter));
  }
  if (keeps_test) {
    PathLines lines(program_, budget_, op.regions[0].ops);
    OfTest(op, turn.test, lines, tested);
  }
  const int64_t cap = op.attributes.max_iter;
  const bool once_more = op.attributes.cap_order == CapOrder::kTestFirst;
  for (const Kept& inside : tested) {
    const Carried carried =
        CarryColumn(op, before, Outside(inside, once_more ? cap + 1 : cap, loop));
    PathLines lines(program_, budget_, op.regions[0].ops);
    const ValueId with = lines.With(carried.test, inside.value, turn.test);
    kept.push_back({inside.column, Export(op, carried, with)});
    AddAxis(inside.column, op.attributes.elements, -1);
  }
  for (const Kept& inside : body) {
    const Carried carried = CarryColumn(op, before, Outside(inside, cap, loop));
    PathLines lines(program_, budget_, op.regions[1].ops);
    Next(op, carried, lines.With(carried.body, inside.value, turn.body));
    kept.push_back({inside.column, carried.result});
    AddAxis(inside.column, op.attributes.elements, -1);
  }
}

// One turn at most: no axis.
void StepRecorder::OfBranch(Op& op, std::vector<Op>& before, std::vector<Kept>& kept) {
  for (const Kept& inside : OfRegion(op.regions[1], std::nullopt)) {
    const Carried carried = CarryColumn(op, before, program_[inside.value].type);
    Next(op, carried, inside.value);
    kept.push_back({inside.column, carried.result});
  }
}

// Type of the array that holds `length` of a column, in the region that sees one element.
Type StepRecorder::Outside(const Kept& inside, int64_t length, int32_t loop) {
  AddAxis(inside.column, length, loop);
  Type type = program_[inside.value].type;
  type.shape.insert(type.shape.begin(), length);
  return type;
}

// A loop that does not run per element adds no axis of elements.
void StepRecorder::AddAxis(size_t column, int64_t length, int32_t loop) {
  if (length == 0) return;
  columns_[column].shape.insert(columns_[column].shape.begin(), length);
  columns_[column].loops.insert(columns_[column].loops.begin(), loop);
}

StepRecorder::Carried StepRecorder::Carry(Op& op, PathLines& before, Type type, ValueId first) {
  const size_t place = static_cast<size_t>(op.attributes.carried++);
  Carried carried{place, before.NewValue(type), before.NewValue(type),
                  before.NewValue(OfElements(op, type))};
  InsertAt(op.operands, place, first);
  InsertAt(op.regions[0].args, place, carried.test);
  InsertAt(op.regions[1].args, place, carried.body);
  InsertAt(op.results, place, carried.result);
  InsertAt(op.regions[1].yields, place, ValueId::kNone);
  return carried;
}

StepRecorder::Carried StepRecorder::CarryColumn(Op& op, std::vector<Op>& before, Type type) {
  PathLines lines(program_, budget_, before);
  return Carry(op, lines, type, Blank(lines, OfElements(op, type)));
}

void StepRecorder::Next(Op& op, const Carried& carried, ValueId value) {
  op.regions[1].yields[carried.place] = value;
}

// The test gives the next value of what is carried. Returns the result of the loop.
ValueId StepRecorder::Export(Op& op, const Carried& carried, ValueId value) {
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

}  // namespace simgrad::sim
