// Writes one random world (random_program.h): operations in operation_writer.cc, loops in
// loop_writer.cc, calls in call_writer.cc, inputs, regions and costs in random_program.cc.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "tests/sim/equality/random_program.h"
#include "tests/sim/equality/value_pool.h"

namespace simgrad::sim::equality {

class WorldWriter {
 public:
  WorldWriter(Random& random, const WorldOptions& options);
  absl::StatusOr<RandomWorld> Write();

 private:
  // random_program.cc
  void WriteInputs();
  void WriteInitial();
  void WriteStep();
  Var WriteSections(ValuePool& pool);
  void WriteExports(ValuePool& pool);
  void WriteObjective(int number);
  Var WriteCost(ValuePool pool);
  ValuePool InputPool();

  // operation_writer.cc: each adds to the pool; false where the pool has no operands for it.
  void Grow(ValuePool& pool, int count, int depth);
  bool WriteOp(OpCode code, ValuePool& pool, int depth);
  bool WriteIntegers(OpCode code, ValuePool& pool);
  void WriteReals(OpCode code, ValuePool& pool);
  bool WriteCompare(OpCode code, ValuePool& pool);
  bool WriteLogic(OpCode code, ValuePool& pool);
  bool WriteBits(OpCode code, ValuePool& pool);
  bool WriteSelect(ValuePool& pool);
  bool WriteShape(OpCode code, ValuePool& pool);
  bool WriteWindow(OpCode code, ValuePool& pool, ElementType element, Var x);
  bool WriteTake(ValuePool& pool, ElementType element, Var x);
  // array_writer.cc
  bool WriteIndexing(OpCode code, ValuePool& pool);
  bool WriteLinear(OpCode code, ValuePool& pool);
  void WriteSystem(OpCode code, ValuePool& pool, int64_t n, int64_t m);
  Var Indices(ValuePool& pool, const Shape& shape, int64_t length);
  Var Matrix(ValuePool& pool, const Shape& shape);
  Var Regular(ValuePool& pool, const Shape& shape);
  Shape LeadingAxes();
  bool WriteArgsort(ValuePool& pool);
  bool WriteConcat(ValuePool& pool, ElementType element);
  bool WriteReduction(OpCode code, ValuePool& pool);
  bool WritePrecision(OpCode code, ValuePool& pool);
  bool WriteFakeQuantize(ValuePool& pool);
  bool WriteChoice(ValuePool& pool);
  bool WriteEvent(ValuePool& pool);
  bool WriteAccept(ValuePool& pool);
  void WriteLiteral(ValuePool& pool);

  // Operands.
  Var Take(ValuePool& pool, const Vars& from);
  Var Real(ValuePool& pool);
  Var RealOf(ValuePool& pool, const Shape& shape);
  Var Like(ValuePool& pool, const Type& type);
  // Of an unsigned type modulo its width, so close to its largest number.
  Var Whole(const Type& type, int64_t low, int64_t high);
  ElementType AnyInteger(const ValuePool& pool);
  double RandomFill(ElementType element);
  Var Threshold(ValuePool& pool);
  Var Positive(Var x);
  Var Bounded(Var x);
  Var Within(Domain domain, Var x);
  // A real of `shape` made of values that nothing has used yet.
  Var Digest(ValuePool& pool, const Shape& shape);
  Var DigestAll(ValuePool& pool, const Shape& shape);
  Var Condense(ValuePool& pool, Var x, const Shape& shape);
  void Keep(ValuePool& pool, Vars& list, Var x);
  // One operation in thousands would be enough to make all of a large world NaN.
  bool Tamed() { return options_.smooth || (!wild_ && (IsLarge() || random_.Chance(0.8))); }
  OpCode RandomOp();
  Role RandomRole();
  ElementType TypeOf(Var x) { return builder_.program()[x.id].type.element; }
  std::string NewSite(const std::string& kind);
  bool IsLarge() const { return options_.size > 0; }
  int64_t MaxElements() const { return IsLarge() ? 1000 : 24; }

  // loop_writer.cc
  enum class Pattern { kShrink, kGrow, kCount, kProject };
  struct LoopPlan {
    WhileOptions options;
    Pattern pattern = Pattern::kShrink;
    bool has_entry = false;
    bool is_predicate = false;
    int depth = 0;
  };
  bool WriteWhile(ValuePool& pool, int depth);
  bool WriteFor(ValuePool& pool, int depth);
  LoopPlan PlanLoop(int64_t elements, int depth);
  Vars OtherCarried(ValuePool& pool, const LoopPlan& plan);
  Var WithLeading(ValuePool& pool, Var x, int64_t n);
  LoopTest WriteTest(const LoopPlan& plan, const ValuePool& visible, const Vars& carried,
                     const Vars& mapped);
  // A formula over this test and other booleans.
  LoopPredicate WritePredicate(const LoopPlan& plan, const ValuePool& visible, const Vars& carried,
                               const Vars& mapped);
  Var Condition(ValuePool& pool, Var driver);
  bool WriteCond(ValuePool& pool, int depth);
  // call_writer.cc
  bool WriteCall(ValuePool& pool, int depth);
  bool WriteSmoothCall(ValuePool& pool);
  bool WriteDraw(OpCode code, ValuePool& pool);
  bool WriteHalt(ValuePool& pool, int depth);
  Vars WriteBody(const LoopPlan& plan, const ValuePool& visible, const Vars& carried,
                 const Vars& exports, const Vars& mapped);
  Var Residual(Var driver);
  ValuePool RegionPool(const ValuePool& visible, const std::vector<Vars>& lists);

  Random& random_;
  WorldOptions options_;
  Builder builder_;
  RandomWorld world_;
  bool wild_ = false;  // numbers may leave every range
  bool sites_allowed_ = true;
  Vars next_;                     // of the states, in their order
  std::set<ValueId> everywhere_;  // literals, configs, step: visible in loops per element
  std::vector<std::string> sites_;
  Shape main_shape_;
  ValuePool inputs_;
  Vars states_;
  int configs_ = 0;
  int loops_ = 0;
  int conds_ = 0;
  int calls_ = 0;
  int halts_ = 0;
  int in_vjp_ = 0;  // vjp regions around
};

}  // namespace simgrad::sim::equality
