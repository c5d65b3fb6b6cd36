// Writes events and choices, and the records of tests and runs of loops.
//
// Errors: none. Cost: linear in what is written. Threads: pure.
#pragma once

#include <map>
#include <string_view>

#include "sim/plan/radius_writer.h"
#include "sim/plan/records.h"
#include "sim/plan/scale_writer.h"
#include "sim/plan/values.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::plan {

class SiteWriter {
 public:
  SiteWriter(const NumericalProgram& numerical, const Records& records, Values& values,
             ScaleWriter& scales, StatementWriter& out);

  void Decide(const Op& event_or_choice);
  // Behind a comparison of scalars of the test region that is being written.
  void Test(const Op& op, ValueId lhs, ValueId rhs, Register ends, Register where);
  // The evaluation of a predicate; `why` becomes why the loop would stop here.
  void Predicate(const Op& op, const Deciding& of, Register held, const View& why);
  // A run of a loop has ended.
  void Ran(const Op& op, Register iterations, Register reason, Register last, Format tested_in);

 private:
  int32_t NumberOf(const Op& op) const { return numbers_.find(op.attributes.site)->second; }
  Register Outcome(const Op& choice, Register chosen);

  const Program& program_;
  const Records& records_;
  Values& values_;
  ScaleWriter& scales_;
  StatementWriter& out_;
  std::map<std::string_view, int32_t> numbers_;
};

}  // namespace simgrad::sim::plan
