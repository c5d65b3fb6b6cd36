// Writes the statements of one function of a plan: numbers, memory, and loops over elements.
//
// Everything that makes a plan writes through it. It knows nothing of operations and regions.
// Order: statements stand in the order of the calls; those of a loop in its body.
// Errors: none. Cost: linear in what is written. Threads: pure.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/plan/plan.h"
#include "sim/plan/view.h"

namespace simgrad::sim::plan {

// The current element of view k, and where it lies.
using Read = std::function<Register(size_t k)>;
using Places = std::function<Index(size_t k)>;

// The turns of loops in which statements are being written; none: 0.
struct LoopsAround {
  Register iteration = kNoRegister;  // flattened
  Register element = kNoRegister;    // of mapped axes, flattened
  Register run = kNoRegister;        // the element of the innermost loop per element
};

class StatementWriter {
 public:
  StatementWriter(Plan& plan, Function& function)
      : plan_(plan), function_(function), block_(&function.statements) {}

  Statement& Emit(Statement statement) { return block_->emplace_back(std::move(statement)); }
  Statement& Last() { return block_->back(); }
  // Emits a statement whose result is a new register.
  Register Computed(Carrier carrier, Statement statement);
  // The statements of `body` stand at the beginning of the function, where every statement sees them.
  void First(const std::function<void()>& body);
  Plan& plan() { return plan_; }
  LoopsAround& around() { return around_; }

  // ---- numbers ----
  Register Call(std::string function, Carrier carrier, std::vector<Register> operands,
                std::string comment = "");
  Register Constant(Carrier carrier, int64_t number);
  Register Integer(Carrier carrier, int64_t number);
  Register Number(double number, Carrier carrier = Carrier::kF64);
  Register NumberLike(double number, const Value& value, std::string comment = "");  // rounded
  const double* Known(Register r) const;  // a real of the table; null: it is none
  Carrier TypeOf(Register r) const { return function_.registers[static_cast<size_t>(r)]; }
  Register Wide(Register real);  // in f64
  // around * count + at; without an `around`: at.
  Register Flattened(Register around, Register count, Register at);
  // The number of an element of the loops around, of a value of `count` that is contiguous.
  Register ElementNumber(const Index& index, int64_t count);

  // ---- memory ----
  View Whole(Buffer buffer, Shape shape);  // of a new buffer
  View Field(int32_t field, const Shape& shape, const std::string& name);
  View Local(Carrier carrier, Shape shape, std::string name);
  View SharedLocal(std::string name);  // one i64 for all lanes
  bool IsLocal(const View& view) const;
  Register Load(const View& view, const Index& index);
  void Store(const View& view, const Index& index, Register value);
  Register One(const View& view) { return Load(view, view.start); }  // of a value of one element
  void StoreOne(const View& to, Register value) { Store(to, to.start, value); }
  // to = from, element by element; several at once, although one may be another's source.
  void Copy(const View& to, const View& from);
  void CopyAtOnce(const std::vector<View>& to, const std::vector<View>& from);
  View ContiguousOf(const View& view);
  View Reshaped(const View& view, Shape shape);  // row-major

  // ---- blocks ----
  // Runs `body` for every element of `shape`; the views have this shape. Neighbouring axes are one
  // loop where all views allow it.
  void EachElement(const Shape& shape, const std::vector<View>& views,
                   const std::function<void(const Read&, const Places&)>& body);
  void Each(int64_t extent, bool parallel, const std::function<void(Register)>& body);
  void EachOf(Register extent, const std::function<void(Register)>& body);
  // acc = function(acc, x) over a line, ascending from `first`.
  Register Fold(const View& line, const std::string& function, int64_t first);
  void Repeat(const std::function<void()>& body);
  void Leave(Register condition);
  void If(Register condition, const std::function<void()>& body);
  // Emits `body` for instances that the policy does not stop at this step, or for all that ran it.
  enum class Committed : uint8_t { kUnlessStopped, kAlways };
  void Commit(const std::function<void()>& body, Committed when = Committed::kUnlessStopped);

 private:
  std::vector<Statement> Inside(const std::function<void()>& body);

  Plan& plan_;
  Function& function_;
  LoopsAround around_;
  std::vector<Statement>* block_;               // being written
  std::unordered_map<Register, double> known_;  // numbers of the program
};

}  // namespace simgrad::sim::plan
