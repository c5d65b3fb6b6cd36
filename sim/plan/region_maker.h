// Writes the operations of regions as statements of a plan.
//
// Values: a value of one element is a register; a value of several is a view of a buffer. Broadcasts,
//   slices and reshapes are views of their operand where they can be, so they cost nothing.
// Errors: none; a program that was lowered can be planned. Cost: linear in the program. Threads: pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/plan/plan.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::plan {

// A value: a register that holds for every element, or elements of a buffer.
struct View {
  Carrier carrier = Carrier::kF32;
  Shape shape;
  Register all = kNoRegister;  // set: every element
  BufferId buffer = kNoBuffer;
  Index start;                   // of element 0
  std::vector<int64_t> strides;  // by axis; 0: repeated
  bool set() const { return all != kNoRegister || buffer != kNoBuffer; }
};

// What is recorded while a region runs.
struct Records {
  bool decides = false;  // tests, runs and events
  bool looks = false;    // non-finite results
  bool ranges = false;   // underflows and overflows of narrowing casts
};

class RegionMaker {
 public:
  RegionMaker(const NumericalProgram& numerical, const std::vector<bool>& looks, Plan& plan,
              Function& function, Records records);

  // The operations of a region whose arguments have views.
  void Run(const Region& region);

  void Bind(ValueId id, View view) { views_[Index_(id)] = std::move(view); }
  const View& ViewOf(ValueId id);
  View FieldView(int32_t field, const Shape& shape, const std::string& name);
  // to = from, element by element; several at once, although one may be another's source.
  void Copy(const View& to, const View& from);
  void CopyAtOnce(const std::vector<View>& to, const std::vector<View>& from);
  void Look(const View& view, ValueId where);
  void Stored(const View& state, Format format);  // the ranges of what was stored
  void Commit(const std::function<void()>& body);
  Register One(const View& view);  // of a value of one element
  void StoreOne(const View& to, Register value);
  Register Call(std::string function, Carrier carrier, std::vector<Register> operands,
                std::string comment = "");
  View Local(Carrier carrier, Shape shape, std::string name);

 private:
  static size_t Index_(ValueId id) { return static_cast<size_t>(id); }
  // The current element of view k, and where it lies.
  using Read = std::function<Register(size_t k)>;
  using Place = std::function<Index(size_t k)>;

  // ---- statements (region_maker.cc) ----
  Statement& Emit(Statement statement);
  Register Constant(Carrier carrier, int64_t number);
  Register Integer(Carrier carrier, int64_t number);
  Register Load(const View& view, const Index& index);
  void Store(const View& view, const Index& index, Register value);
  // Runs `body` for every element of `shape`; the views have this shape. Neighbouring axes are one
  // loop where all views allow it.
  void EachElement(const Shape& shape, const std::vector<View>& views,
                   const std::function<void(const Read&, const Place&)>& body);
  void Each(int64_t extent, bool parallel, const std::function<void(Register)>& body);
  void EachOf(Register extent, const std::function<void(Register)>& body);
  void Repeat(const std::function<void()>& body);
  void Leave(Register condition);
  // Defines the result of an operation, element by element.
  using Element = std::function<Register(const Read& read)>;
  void Define(const Op& op, const std::vector<View>& operands, const Element& element);
  void Define(const Op& op, const Element& element);  // its own operands
  View InputView(size_t input);
  View ContiguousOf(const View& view);

  // ---- operations (make_operations.cc, make_shapes.cc) ----
  void Operation(const Op& op);
  void MoveElements(const Op& op);
  void ChangeFormat(const Op& op);
  void AdjointOperation(const Op& op);
  void Elementwise(const Op& op);
  void Literal(const Op& op);
  void Cast(const Op& op);
  void Convert(const Op& op);
  void Merge(const Op& op);
  void Broadcast(const Op& op);
  void Reshape(const Op& op);
  void Slice(const Op& op);
  void Pad(const Op& op);
  void Concat(const Op& op);
  void Reduction(const Op& op);
  // Of the numbers of one line: `line` has one axis.
  Register Sum(const Op& op, const View& line);
  Register Pairwise(const std::string& add, View line);
  Register Exact(const Op& op, const View& line);
  Register Extreme(const Op& op, const View& line);
  Register Any(const View& line);
  void Cumsum(const Op& op);

  // ---- sites and loops (make_loops.cc) ----
  void Event(const Op& op);
  // The operands of the additions behind two compared values; Extra joins their magnitudes.
  struct Summands {
    const Op* sum = nullptr;
    size_t first = 0;  // of its operands in a list of views
  };
  Summands SummandsOf(ValueId compared, std::vector<View>& views);
  Register Extra(const Summands& lhs, const Summands& rhs, const Read& read);
  Register Larger(Register a, Register b);
  void Test(const Op& op, ValueId lhs, ValueId rhs, Register ends, Register where);
  void While(const Op& op);
  void MappedWhile(const Op& op);
  void WhileRun(const Op& op, const std::vector<View>& carried, const std::vector<View>& mapped,
                const std::vector<View>& exports, const View& iterations);
  void For(const Op& op);
  View ElementOf(const View& view, Register element) const;

  const NumericalProgram& numerical_;
  const Program& program_;
  const std::vector<bool>& looks_;
  Plan& plan_;
  Function& function_;
  Records records_;
  std::vector<View> views_;
  std::vector<BufferId> inputs_;
  std::vector<Statement>* block_;
  std::vector<const Region*> regions_;  // being written, outermost first
  Register iteration_ = kNoRegister;    // of the loops around, flattened; none: 0
  Register element_ = kNoRegister;
};

}  // namespace simgrad::sim::plan
