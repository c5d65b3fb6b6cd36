#include "sim/program/implicit_solve.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/program/field_error.h"

namespace simgrad::sim {
namespace {

using enum OpCode;
using Values = std::vector<ValueId>;

const Type kScalar = {ElementType::kReal, {}};

class Solver {
 public:
  Solver(AdjointWriter& writer, const LoopChoice& choice, const std::string& site, const Values& g,
         const Transposed& transposed)
      : w_(writer),
        choice_(choice),
        site_(site),
        g_(g),
        transposed_(transposed),
        context_(writer.context()) {
    for (ValueId id : g) count_ += ElementCount(ShapeOf(id));
  }

  Values Run() {
    if (choice_.solver == LoopChoice::Solver::kLu && count_ > kMostLu) {
      throw PassBudget::Ended{
          LimitError("loops", absl::StrCat("loop '", site_, "' carries ", count_,
                                           " numbers; the limit of solver lu is ", kMostLu))};
    }
    const bool by_lu = choice_.solver == LoopChoice::Solver::kLu ||
                       (choice_.solver == LoopChoice::Solver::kDefault && count_ <= kUsualLu);
    if (count_ == 0) return g_;
    return by_lu ? Factored() : Iterated();
  }

 private:
  Shape ShapeOf(ValueId id) const { return w_.program()[id].type.shape; }
  Type TypeOf(ValueId id) const { return w_.program()[id].type; }

  ValueId Emit(Op op, const Type& type) {
    w_.SetContext(context_);
    return w_.Emit(std::move(op), type);
  }
  ValueId Do(OpCode code, Values operands, const Type& type) {
    return Emit({.code = code, .operands = std::move(operands)}, type);
  }
  ValueId Number(double number, const Type& type) {
    w_.SetContext(context_);
    return w_.Number(number, type);
  }
  ValueId Array(std::vector<double> numbers, const Type& type) {
    Op op{.code = kLiteral};
    op.attributes.literal = std::move(numbers);
    return Emit(std::move(op), type);
  }
  ValueId Reshaped(ValueId id, Shape shape) {
    if (ShapeOf(id) == shape) return id;
    Op op{.code = kReshape, .operands = {id}};
    op.attributes.shape = shape;
    return Emit(std::move(op), {ElementType::kReal, std::move(shape)});
  }
  Values NewArgs(Region& region, const Values& like) {
    Values args;
    for (ValueId id : like) args.push_back(w_.AddValue(TypeOf(id)));
    region.args.insert(region.args.end(), args.begin(), args.end());
    return args;
  }

  // All numbers in one row.
  ValueId Joined(const Values& parts) {
    Values flat;
    for (ValueId id : parts) flat.push_back(Reshaped(id, {ElementCount(ShapeOf(id))}));
    if (flat.size() == 1) return flat[0];
    Op op{.code = kConcat, .operands = flat};
    op.attributes.axes = {0};
    return Emit(std::move(op), {ElementType::kReal, {count_}});
  }

  Values Parted(ValueId row) {
    if (g_.size() == 1) return {Reshaped(row, ShapeOf(g_[0]))};
    const ValueId flat = Reshaped(row, {count_});
    Values parts;
    int64_t start = 0;
    for (ValueId id : g_) {
      const Shape shape = ShapeOf(id);
      const int64_t length = ElementCount(shape);
      Op op{.code = kSlice, .operands = {flat}};
      op.attributes.start = {start};
      op.attributes.shape = {length};
      parts.push_back(Reshaped(Emit(std::move(op), {ElementType::kReal, {length}}), shape));
      start += length;
    }
    return parts;
  }

  // Row i is J' of the i-th unit vector, so it is row i of J.
  ValueId Jacobian() {
    Op loop{.code = kFor, .role = context_.role, .label = context_.label};
    loop.attributes.max_iter = count_;
    loop.attributes.scanned = static_cast<int32_t>(g_.size());
    int64_t first = 0;
    for (ValueId id : g_) {
      Shape shape = ShapeOf(id);
      const int64_t length = ElementCount(shape);
      shape.insert(shape.begin(), count_);
      std::vector<double> units(static_cast<size_t>(count_ * length), 0.0);
      for (int64_t k = 0; k < length; ++k) {
        units[static_cast<size_t>((first + k) * length + k)] = 1.0;
      }
      loop.operands.push_back(Array(std::move(units), {ElementType::kReal, shape}));
      first += length;
    }
    Region body;
    w_.Open(body);
    body.args.push_back(w_.AddValue({ElementType::kI32, {}}, "index"));
    const Values unit = NewArgs(body, g_);
    body.yields = {Joined(transposed_(unit))};
    w_.Close(body);
    loop.regions.push_back(std::move(body));
    loop.results = {w_.AddValue({ElementType::kReal, {count_, count_}})};
    const ValueId jacobian = loop.results[0];
    w_.Push(std::move(loop));
    return jacobian;
  }

  Values Factored() {
    const Type square = {ElementType::kReal, {count_, count_}};
    const ValueId jacobian = Jacobian();
    std::vector<double> diagonal(static_cast<size_t>(count_ * count_), 0.0);
    for (int64_t k = 0; k < count_; ++k) {
      diagonal[static_cast<size_t>(k * (count_ + 1))] = 1.0 + choice_.damping;
    }
    const ValueId a = Do(kSub, {Array(std::move(diagonal), square), jacobian}, square);
    const ValueId factors = Do(kLu, {a}, square);
    const ValueId rows = Do(kLuPermutation, {a}, {ElementType::kI32, {count_}});
    Op solve{.code = kLuSolve, .operands = {a, factors, rows, Reshaped(Joined(g_), {count_, 1})}};
    solve.attributes.transposed = true;
    return Parted(Emit(std::move(solve), {ElementType::kReal, {count_, 1}}));
  }

  // By how much the numbers of two lists differ at most.
  ValueId Change(const Values& a, const Values& b) {
    ValueId largest = ValueId::kNone;
    for (size_t k = 0; k < a.size(); ++k) {
      const Type type = TypeOf(a[k]);
      if (ElementCount(type.shape) == 0) continue;
      ValueId change = Do(kAbs, {Do(kSub, {a[k], b[k]}, type)}, type);
      if (!type.shape.empty()) {
        Op op{.code = kReduceMax, .operands = {change}};
        for (size_t axis = 0; axis < type.shape.size(); ++axis) {
          op.attributes.axes.push_back(static_cast<int64_t>(axis));
        }
        change = Emit(std::move(op), kScalar);
      }
      largest = largest == ValueId::kNone ? change : Do(kMax, {largest, change}, kScalar);
    }
    return largest;
  }

  Values Iterated() {
    Op loop{.code = kWhile, .role = context_.role, .label = context_.label};
    loop.attributes.site = site_ + ".adjoint";
    loop.attributes.comparison = Comparison::kLt;
    loop.attributes.cap_order = CapOrder::kCapFirst;
    loop.attributes.max_iter = choice_.max_iter;
    loop.attributes.carried = static_cast<int32_t>(g_.size()) + 1;
    // The first change is tol, which is not below it.
    const ValueId tol = Number(choice_.tol, kScalar);
    Values carried = g_;
    carried.push_back(tol);
    loop.operands = carried;
    Region test;
    const Values tested = NewArgs(test, carried);
    test.yields = {tested.back(), tol};
    Region body;
    w_.Open(body);
    Values now = NewArgs(body, carried);
    now.pop_back();
    const Values moved = transposed_(now);
    Values next;
    for (size_t k = 0; k < g_.size(); ++k) {
      const Type type = TypeOf(g_[k]);
      ValueId sum = Do(kAdd, {g_[k], moved[k]}, type);
      if (choice_.damping > 0) sum = Do(kDiv, {sum, Number(1.0 + choice_.damping, type)}, type);
      next.push_back(sum);
    }
    const ValueId change = Change(next, now);
    body.yields = next;
    body.yields.push_back(change);
    w_.Close(body);
    loop.regions.push_back(std::move(test));
    loop.regions.push_back(std::move(body));
    for (ValueId id : carried) loop.results.push_back(w_.AddValue(TypeOf(id)));
    const Values solved(loop.results.begin(), loop.results.end() - 1);
    loop.results.push_back(w_.AddValue({ElementType::kI32, {}}));
    w_.Push(std::move(loop));
    return solved;
  }

  AdjointWriter& w_;
  const LoopChoice& choice_;
  const std::string& site_;
  const Values& g_;
  const Transposed& transposed_;
  const AdjointWriter::Context context_;
  int64_t count_ = 0;
};

}  // namespace

std::vector<ValueId> SolveImplicit(AdjointWriter& writer, const LoopChoice& choice,
                                   const std::string& site, const std::vector<ValueId>& g,
                                   const Transposed& transposed) {
  return Solver(writer, choice, site, g, transposed).Run();
}

}  // namespace simgrad::sim
