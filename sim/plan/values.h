// The values of a program while a function of its plan is written: their views, and what made them.
//
// A value of one element is a register, one of several is a view of a buffer. An input, and a literal
// that an adjoint reads, gets its view where it is first asked for.
// Errors: none. Cost: linear in what is written. Threads: pure.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/plan/statement_writer.h"
#include "sim/plan/tape_plan.h"
#include "sim/program/program.h"

namespace simgrad::sim::plan {

// "lt_f32": the function that compares so, by its left operand.
std::string ComparisonFunction(Comparison comparison, const Value& lhs);

class Values {
 public:
  Values(const Program& program, StatementWriter& out)
      : program_(program),
        out_(out),
        views_(program.values.size()),
        makers_(program.values.size()) {}

  void Bind(ValueId id, View view) { views_[sim::Index(id)] = std::move(view); }
  const View& ViewOf(ValueId id);
  std::vector<View> ViewsOf(std::span<const ValueId> ids);
  void Literal(const Op& op);
  void ReadLiteralsOf(const TapePlan* tape) { tape_ = tape; }

  // Defines the result of an operation, element by element; without `operands` of its own ones.
  using Element = std::function<Register(const Read& read)>;
  void Define(const Op& op, const std::vector<View>& operands, const Element& element);
  void Define(const Op& op, const Element& element) { Define(op, ViewsOf(op.operands), element); }
  // A mask for every element of `shape`: its own, or one for all where the counts differ, which
  // holds where any of the mask does.
  View MaskFor(const Shape& shape, ValueId mask);
  // For `shape`: whether the mask holds anywhere.
  View AnyOf(const Shape& shape, const View& mask);

  // ---- the regions that are being written, one in the other ----
  void Enter(const Region& region) { regions_.push_back({&region, {}}); }
  void Leave() { regions_.pop_back(); }
  const Region& region() const { return *regions_.back().region; }
  void Made(const Op& op);
  // The operation of the region being written; null: the value is not made there, or not yet.
  const Op* MakerOf(ValueId id) const;
  // Views that one operation of the region has computed for others, by operand and name.
  std::map<std::pair<ValueId, std::string>, View>& kept() { return regions_.back().kept; }

 private:
  struct Entered {
    const Region* region = nullptr;
    std::map<std::pair<ValueId, std::string>, View> kept;
  };
  struct Maker {
    const Region* region = nullptr;
    const Op* op = nullptr;
  };

  const Program& program_;
  StatementWriter& out_;
  std::vector<View> views_;
  std::vector<Maker> makers_;
  std::vector<Entered> regions_;  // outermost first
  const TapePlan* tape_ = nullptr;
};

}  // namespace simgrad::sim::plan
