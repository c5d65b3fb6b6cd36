// Brings what operations of `step` or `initial` give out of the loops and branches around them.
//
// A column is what one operation gave. Outside a loop it has an axis for the loop: of its elements,
// if it runs per element, and of its iterations. That axis is longer than the cap by one for what
// the test gives, where the test may run once more than the body. A loop carries or stacks the
// array. What was not reached keeps the column's blank.
// Errors: Run throws PassBudget::Ended, IsLimit with the field, if a column would have more
//   elements or axes than an array may have, or all columns more elements than a program may
//   (ProgramLimits).
// Cost: linear in the program. In the step, a `while` copies its columns in each iteration.
// Threads: one object, one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/path_layout.h"
#include "sim/program/path_lines.h"
#include "sim/program/program.h"

namespace simgrad::sim {

class StepRecorder {
 public:
  // The program and the budget outlive the object; `field` is what errors name.
  StepRecorder(Program& program, PassBudget& budget, std::string field)
      : program_(program), budget_(budget), field_(std::move(field)) {}
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;
  virtual ~StepRecorder() = default;

  // The values of all columns, as the end of the region knows them; kNone: a column of an earlier call.
  std::vector<ValueId> Run(Region& region);
  std::vector<PathColumn>& columns() { return columns_; }

 protected:
  // The content of one column, as the region around the operation knows it.
  struct Kept {
    size_t column;
    ValueId value;
  };
  using Wanted = std::optional<std::unordered_set<size_t>>;

  // Keeps what an operation that is no loop gives; `lines` stand before it.
  virtual void OfOperation(const Op& op, PathLines& lines, std::vector<Kept>& kept) = 0;
  // Keeps something of a loop's results, in the first column of the loop.
  virtual void OfLoop(const Op&, std::vector<Kept>&) {}
  // Whether OfTest keeps something of the test of a loop.
  virtual bool KeepsTest(const Op&) const { return false; }
  // `turn` is the number of the iteration, an i32; `lines` stand at the end of the test's.
  virtual void OfTest(const Op&, ValueId /*turn*/, PathLines&, std::vector<Kept>&) {}
  // The values of a loop's test of which something may be kept; none: of all.
  virtual Wanted WantedOf(const Op&) const { return std::nullopt; }
  // A value of a column's that nothing gave.
  virtual ValueId Blank(PathLines& lines, Type type) = 0;

  // Adds a column and what is in it.
  void Keep(PathColumn column, ValueId value, std::vector<Kept>& kept);

  Program& program_;
  PassBudget& budget_;

 private:
  // A value that a loop carries; of a loop per element each has its own. Types are taken by value:
  // those of the program move when it gets a value.
  struct Carried {
    size_t place;
    ValueId test, body, result;
  };

  void RefuseLarge() const;
  std::vector<Kept> OfRegion(Region& region, const Wanted& wanted);
  void OfFor(Op& op, std::vector<Kept>& kept);
  void OfWhile(Op& op, std::vector<Op>& before, std::vector<Kept>& kept);
  void OfBranch(Op& op, std::vector<Op>& before, std::vector<Kept>& kept);
  Type Outside(const Kept& inside, int64_t length, int32_t loop);
  void AddAxis(size_t column, int64_t length, int32_t loop);
  Carried Carry(Op& op, PathLines& before, Type type, ValueId first);
  Carried CarryColumn(Op& op, std::vector<Op>& before, Type type);
  void Next(Op& op, const Carried& carried, ValueId value);
  ValueId Export(Op& op, const Carried& carried, ValueId value);

  std::string field_;
  std::vector<PathColumn> columns_;
};

}  // namespace simgrad::sim
