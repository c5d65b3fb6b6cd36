#include "sim/plan/operation_lowering.h"

#include <utility>

#include "sim/program/axes.h"

namespace simgrad::sim::plan {

OperationLowering::OperationLowering(RegionMaker& maker, const Op& op)
    : Lowering(maker.program_, op), maker_(maker) {}

Lowering::Memory OperationLowering::Add(View view) {
  Memory memory = {static_cast<int32_t>(views_.size()), view.carrier, view.shape};
  views_.push_back(std::move(view));
  return memory;
}

// ---- views ----

void OperationLowering::Rearrange(const std::vector<Along>& axes) {
  maker_.values_.Bind(op().results[0], Rearranged(maker_.values_.ViewOf(op().operands[0]), axes,
                                                  ResultValue().type.shape));
  is_bound_ = true;
}

void OperationLowering::Reshape() {
  const View& operand = maker_.values_.ViewOf(op().operands[0]);
  maker_.values_.Bind(op().results[0], maker_.out_.Reshaped(operand, ResultValue().type.shape));
  is_bound_ = true;
}

void OperationLowering::Finish() {
  if (is_bound_) return;
  View view = views_[static_cast<size_t>(result_)];
  if (ElementCount(view.shape) == 1 && view.all == kNoRegister) {
    view = View::Splat(view.carrier, view.shape, maker_.out_.One(view));
  }
  maker_.values_.Bind(op().results[0], std::move(view));
}

// ---- memory ----

Lowering::Memory OperationLowering::Operand(size_t operand) {
  return Add(maker_.values_.ViewOf(op().operands[operand]));
}

Lowering::Memory OperationLowering::Result() {
  const Value& value = ResultValue();
  Memory result = Add(maker_.out_.Local(CarrierOf(value), value.type.shape, value.name));
  result_ = result.id;
  return result;
}

void OperationLowering::GiveMemory(const Memory& memory) { result_ = memory.id; }

Lowering::Memory OperationLowering::Local(Carrier carrier, Shape shape, const std::string& name) {
  return Add(maker_.out_.Local(carrier, std::move(shape), name));
}

Lowering::Memory OperationLowering::Table(const std::vector<int64_t>& numbers) {
  std::vector<int64_t>& integers = maker_.out_.plan().integers;
  View table = maker_.out_.Whole({.kind = BufferKind::kTable,
                                  .carrier = Carrier::kI64,
                                  .number = static_cast<int32_t>(integers.size())},
                                 {static_cast<int64_t>(numbers.size())});
  integers.insert(integers.end(), numbers.begin(), numbers.end());
  return Add(std::move(table));
}

Lowering::Memory OperationLowering::Window(const Memory& memory, const Shape& shape,
                                           const std::vector<Along>& axes) {
  View view = ViewOf(memory);
  view.shape = shape;
  for (size_t k = 0; k < axes.size() && view.all == kNoRegister; ++k) {
    view.start.base += axes[k].start * view.strides[k];
    view.strides[k] *= axes[k].step;
  }
  return Add(std::move(view));
}

Lowering::Memory OperationLowering::Split(const Memory& memory, const Shape& shape) {
  return Add(maker_.out_.Reshaped(ViewOf(memory), shape));
}

void OperationLowering::Copy(const Memory& to, const Memory& from) {
  maker_.out_.Copy(ViewOf(to), ViewOf(from));
}

void OperationLowering::Fill(const Memory& to, Number number) {
  maker_.out_.Copy(ViewOf(to), View::Splat(to.carrier, to.shape, number));
}

Index OperationLowering::IndexOf(const View& view, const Places& at) {
  Index index = view.start;
  for (size_t axis = 0; axis < at.size(); ++axis) {
    const Place& place = at[axis];
    const int64_t stride = view.strides[axis];
    if (stride == 0) continue;
    index.base += place.base * stride;
    for (const auto& [counter, step] : place.counters)
      index.terms.emplace_back(counter, step * stride);
    if (place.data == kNone) continue;
    Number moved = place.data;
    if (stride != 1)
      moved = Call("mul_i64", Carrier::kI64, {moved, Integer(Carrier::kI64, stride)});
    if (index.moved != kNoRegister) moved = Call("add_i64", Carrier::kI64, {index.moved, moved});
    index.moved = moved;
  }
  return index;
}

Lowering::Number OperationLowering::Load(const Memory& from, const Places& at) {
  const View& view = ViewOf(from);
  if (view.all != kNoRegister) return view.all;
  return maker_.out_.Load(view, IndexOf(view, at));
}

void OperationLowering::Store(const Memory& to, const Places& at, Number number) {
  const View& view = ViewOf(to);
  maker_.out_.Store(view, IndexOf(view, at), number);
}

// ---- numbers and loops ----

Lowering::Number OperationLowering::Call(const std::string& function, Carrier carrier,
                                         std::vector<Number> operands) {
  return maker_.out_.Call(function, carrier, std::move(operands));
}

Lowering::Number OperationLowering::Integer(Carrier carrier, int64_t number) {
  return maker_.out_.Constant(carrier, number);
}

Lowering::Number OperationLowering::Real(double number, const Value& like) {
  return maker_.out_.NumberLike(number, like);
}

Lowering::Number OperationLowering::Iteration() {
  return maker_.out_.around().iteration != kNoRegister ? maker_.out_.around().iteration
                                                       : Integer(Carrier::kI64, 0);
}

Lowering::Number OperationLowering::MappedElement() {
  return maker_.out_.around().element != kNoRegister ? maker_.out_.around().element
                                                     : Integer(Carrier::kI64, 0);
}

void OperationLowering::Each(int64_t extent, bool parallel,
                             const std::function<void(Number)>& body) {
  maker_.out_.Each(extent, parallel, body);
}

void OperationLowering::EachTo(Number extent, const std::function<void(Number)>& body) {
  maker_.out_.EachOf(extent, body);
}

Lowering::Number OperationLowering::Sum(const Memory& line, Format of) {
  return maker_.Sum(op(), ViewOf(line), of);
}

bool OperationLowering::Recall(const std::string& name, Memory* memory) {
  const auto kept = maker_.values_.kept().find({op().operands[0], name});
  if (kept == maker_.values_.kept().end()) return false;
  *memory = Add(kept->second);
  return true;
}

void OperationLowering::Keep(const std::string& name, const Memory& memory) {
  maker_.values_.kept()[{op().operands[0], name}] = ViewOf(memory);
}

}  // namespace simgrad::sim::plan
