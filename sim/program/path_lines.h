// Operations that RecordPath, ForcePath and RecordMargins write, at the end of a list. Those on
// reals are for a program whose formats are assigned: they compute in f64, and are not watched.
//
// Threads: pure. Cost: a few operations each.
#pragma once

#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/path_layout.h"
#include "sim/program/program.h"

namespace simgrad::sim {

class PathLines {
 public:
  PathLines(Program& program, PassBudget& budget, std::vector<Op>& out)
      : program_(program), budget_(budget), out_(out) {}

  ValueId NewValue(Type type);
  ValueId Do(OpCode code, std::vector<ValueId> operands, Type type, Attributes attributes = {});
  ValueId Number(int64_t number, Type type);
  ValueId Real(double number, Type type);
  // a - b in f64; integers become reals after the subtraction (precision::IntegerMargin).
  ValueId Difference(ValueId a, ValueId b);
  ValueId Reshaped(ValueId id, const Shape& shape);
  ValueId Converted(ValueId id, ElementType element);
  // `length` elements of a row, from `first` on.
  ValueId Part(ValueId row, int64_t first, int64_t length);
  ValueId Joined(const std::vector<ValueId>& parts, int64_t axis = 0);
  // The element `index`, an i32 scalar, along the leading axis; and the array with another there.
  ValueId At(ValueId array, ValueId index);
  ValueId With(ValueId array, ValueId element, ValueId index);

  // Rows of bytes: bits of bools, and numbers of `width` bytes.
  ValueId Bits(ValueId bools);
  ValueId Bools(ValueId bytes, int64_t count);
  ValueId Bytes(ValueId numbers, int32_t width);
  ValueId Numbers(ValueId bytes, Type type, int32_t width);

  Type TypeOf(ValueId id) const { return program_[id].type; }

 private:
  ValueId AsF64(ValueId id);
  ValueId Halves(OpCode code, ValueId a, ValueId b, int64_t by);
  ValueId Starts(ValueId index, size_t rank);

  Program& program_;
  PassBudget& budget_;
  std::vector<Op>& out_;
};

}  // namespace simgrad::sim
