// Rewrites composite operations into others; an entry's expansion is written with ExpansionWriter.
#pragma once

#include <utility>
#include <vector>

#include "sim/op/op_info.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Everything it writes gets the role, site and label of the composite.
class ExpansionWriter {
 public:
  // Counts the values that it writes, not the operations.
  ExpansionWriter(Program& program, const Op& op, std::vector<Op>& out, PassBudget& budget)
      : program_(program), op_(op), out_(out), budget_(budget) {}

  const Op& op() const { return op_; }
  PassBudget& budget() { return budget_; }
  ValueId X(size_t operand) const { return op_.operands[operand]; }
  // By value: adding operations moves the table of values.
  Type TypeOf(ValueId id) const { return program_[id].type; }
  // An operation whose result has the given type; the type of the composite's result by default.
  ValueId Do(OpCode code, std::vector<ValueId> operands);
  ValueId Do(OpCode code, std::vector<ValueId> operands, Type type);
  ValueId Const(double value);
  ValueId Number(double value, Type type);  // a literal, every element of which is `value`
  ValueId NewValue(Type type);
  // An operation with the composite's context, to be completed and pushed.
  Op Begin(OpCode code, std::vector<ValueId> operands) const;
  Op& Last() { return out_.back(); }
  void Push(Op op) { out_.push_back(std::move(op)); }
  // Writes the last operation, whose result is the composite's.
  void Give(OpCode code, std::vector<ValueId> operands);

 private:
  Program& program_;
  const Op& op_;
  std::vector<Op>& out_;
  PassBudget& budget_;
};

// Returns the program without composites. Cost: linear in what it writes, and nothing if there are
// none.
Program ExpandComposites(Program program, PassBudget& budget);

}  // namespace simgrad::sim
