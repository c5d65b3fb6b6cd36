// Runs a region of one instance: every operation in text order, loops included.
#pragma once

#include <span>
#include <vector>

#include "sim/backend/reference/decisions.h"
#include "sim/backend/reference/layout.h"
#include "sim/backend/reference/watch.h"
#include "sim/diagnostics/arithmetic.h"
#include "sim/op/evaluate.h"
#include "sim/work_meter.h"

namespace simgrad::sim::reference {

// The sinks that a run reports to, besides its values. Null: not counted.
struct RunSinks {
  WorkMeter* meter = nullptr;  // never null where something runs
  NonFiniteWatch* watch = nullptr;
  DecisionRecorder* decisions = nullptr;
  RangeCounts* ranges = nullptr;
  std::vector<AdditionCounts>* additions = nullptr;  // by site
  ArithmeticTable* arithmetic = nullptr;
  int64_t* tape_values = nullptr;  // how many these are, frames too
  int64_t* tape_bytes = nullptr;   // bytes of all values computed
  bool keep = false;               // keep the frames of every iteration, for the adjoint
};

class RegionRunner {
 public:
  RegionRunner(const NumericalProgram& program, const Layouts& layouts, RunSinks sinks)
      : program_(program), layouts_(layouts), sinks_(sinks) {}
  virtual ~RegionRunner() = default;

  // Executes the operations of `region`, whose arguments `frame` holds.
  void Run(const Region& region, Frame& frame);

 protected:
  // One operation; the adjoint's are added by a subclass.
  virtual void Execute(const Op& op, Frame& frame);
  // Reports a result and keeps it.
  void Store(const Op& op, Arrays operands, Frame& frame, Array result);
  void NoteAdditions(const Op& op, Arrays operands, const Array& sum) const;
  // ---- what rounding did (region_arithmetic.cc) ----
  ArithmeticCounts& ArithmeticOf(const Op& op, const Frame& frame) const;
  Array EvaluateCounted(Evaluation e, const Frame& frame) const;
  bool Overflows(const Op& op, Arrays operands, const Array& result, size_t element,
                 bool finite) const;
  void CountResults(const Op& op, Arrays operands, const Frame& frame, const Array& result) const;
  const Array* WhereOf(const Op& op, const Frame& frame) const;
  const Program& program() const { return program_.program; }

  const NumericalProgram& program_;
  const Layouts& layouts_;
  RunSinks sinks_;

 private:
  void ExecuteEvent(const Op& op, Frame& frame);
  void ExecuteChoice(const Op& op, Frame& frame);
  void ExecuteWhile(const Op& op, Frame& frame);
  void ExecuteFor(const Op& op, Frame& frame);
  // One run of a while; returns carried, exports.
  std::vector<Array> RunWhile(const Op& op, const Frame& base, std::vector<Array> carried,
                              const std::vector<Array>& mapped, LoopRun& run);
  TestedPair RunTest(const Op& op, const Frame& base, const std::vector<Array>& carried,
                     const std::vector<Array>& mapped, LoopRun& run);
  std::vector<Array> RunBody(const Op& op, const Frame& base, const std::vector<Array>& carried,
                             const std::vector<Array>& mapped, LoopRun& run);
  // ---- radii of what predicates hang on (region_radii.cc) ----
  bool HasRadius(ValueId id) const {
    return sinks_.decisions != nullptr && layouts_.IsBehindPredicate(id);
  }
  void SetRadius(const Op& op, Frame& frame) const;
  Radius ElementRadius(const Op& op, const Frame& frame, size_t element) const;
  Radius ComparedRadius(ValueId lhs, ValueId rhs, const Frame& frame, size_t element,
                        uint32_t test) const;
  // The least of all elements.
  Radius LeastRadius(ValueId id, const Frame& frame) const;
  // The radius of element e of n over the leading axis.
  Radius ElementsRadius(ValueId id, int64_t n, size_t e, const Frame& frame) const;
  void SetLoopRadii(const Op& op, const LoopTape& tape, Frame& frame) const;
  std::vector<Radius> LeastRadii(std::span<const ValueId> ids, const Frame& frame) const;
  void BindRadii(std::span<const ValueId> args, const std::vector<Radius>& radii,
                 Frame& frame) const;
  TestedPair Predicate(const Op& op, const Frame& frame, LoopRun& run) const;
  // Evaluates lhs comparison rhs at one element, with its margin.
  TestedPair Compare(Comparison comparison, ValueId lhs, ValueId rhs, const Frame& frame,
                     size_t element) const;
};

// The two numbers that an add, a sub or an fma adds at one element.
struct Addends {
  double x;
  double y;
};
Addends AddendsAt(const Op& op, Arrays operands, Format format, size_t element);

// A frame for iteration `iteration` of a loop of the given radix, element `element` of n.
std::unique_ptr<Frame> LoopFrame(const RegionLayout& layout, const Frame& around, int64_t radix,
                                 int64_t iteration, std::string_view site);

// The largest magnitude among the operands of the sum that made a compared value in this frame; 0
// where there is none (sim/program/compared_sum.h).
double ExtraMagnitude(const Program& program, const Frame& frame, ValueId id, size_t element);

}  // namespace simgrad::sim::reference
