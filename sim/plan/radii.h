// The radii of the booleans and integers that predicates of loops hang on, value by value.
//
// Maths: sim/program/decision_margin.h as statements. Of other values nothing is written.
// Errors: none. Cost: linear in the program. Threads: pure.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "sim/plan/radius_writer.h"
#include "sim/plan/scale_writer.h"
#include "sim/plan/values.h"
#include "sim/program/decision_margin.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::plan {

// The radii of one run of a while; locals.
struct LoopRadii {
  std::vector<Radius> carried, exports;
  std::vector<Radius> entering;  // carried, then mapped
  Radius tests;                  // the least of its tests; set where a result asks for it
};

class Radii {
 public:
  // Without `decides` no value has one.
  Radii(const NumericalProgram& numerical, bool decides, Values& values, ScaleWriter& scales,
        StatementWriter& out);

  void Set(const Op& op);        // of the result of an operation that is no loop
  Deciding LeastOf(ValueId id);  // of all elements

  // ---- of what a loop carries while it runs: locals, unset where none is asked for ----
  std::vector<Radius> Carry(std::span<const ValueId> ids);
  // Radii of what a `for` stacks: each is the least of all turns.
  std::vector<Radius> Stack(const Op& for_op);
  void Gather(const Radius& to, ValueId of_turn);
  void Move(const std::vector<Radius>& to, std::span<const ValueId> from);
  void Bind(std::span<const ValueId> ids, const std::vector<Radius>& radii);

  // ---- a while; `run` is the element of a loop per element ----
  LoopRadii OfRun(const Op& while_op, Register run);
  void Tell(const Op& op, const LoopRadii& radii, const View& iterations);  // of a test
  void BindBody(const Op& op, const LoopRadii& radii);
  // The radii over all runs of a loop per element; empty if none is asked for.
  std::vector<Radius> Joined(const Op& op);
  void Give(const Op& op, const LoopRadii& radii, const std::vector<Radius>& joined);

 private:
  bool Has(ValueId id) const {
    return id != ValueId::kNone && !behind_.empty() && behind_[sim::Index(id)];
  }
  void SetByElement(const Op& op);
  Deciding OfElement(const Op& op, const Read& read, const std::function<Deciding(size_t)>& radius,
                     const std::function<Register()>& extra);
  Deciding OfConversion(const Op& op, Register x);
  Deciding OfIsFinite(const Op& op, Register x);
  Deciding OfAnyOrAll(OpCode code, ValueId truths);
  Deciding OfTest(const Op& op, const View& iterations);

  const Program& program_;
  Values& values_;
  ScaleWriter& scales_;
  StatementWriter& out_;
  RadiusWriter writer_;
  std::vector<bool> behind_;   // by value: whether a predicate hangs on it; empty: on none
  std::vector<Radius> radii_;  // by value
  DecidingTests tests_;
};

}  // namespace simgrad::sim::plan
