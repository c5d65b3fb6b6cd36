// Emission of the operations that move elements, and of reductions.
#include <algorithm>

#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/exact_reduction.h"
#include "sim/backend/cpu/identity.h"
#include "sim/op/op_info.h"
#include "sim/program/axes.h"

namespace simgrad::sim::cpu {
namespace {

using enum OpCode;

// Calls f(index) for every element of a shape, row-major.
template <class F>
void ForEachIndex(const Shape& shape, const F& f) {
  const int64_t count = ElementCount(shape);
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t k = 0; k < count; ++k) {
    f(index);
    for (size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

// Of one element that a plan names, in element-operations.
constexpr int64_t kElementWork = 16;

}  // namespace

void Compiler::EmitRows(ValueId result, std::vector<int32_t> from, std::vector<int32_t> operand,
                        const std::vector<int32_t>& slots) {
  bool uniform = true;
  bool invariant = hoists_;
  std::vector<int32_t> uniforms;
  for (int32_t slot : slots) {
    uniform = uniform && SlotAt(slot).uniform;
    invariant = invariant && SlotAt(slot).invariant;
    uniforms.push_back(SlotAt(slot).uniform ? 1 : 0);
  }
  const int32_t to = Result(result, uniform, invariant);
  RowPlan& plan = plan_->rows.emplace_back();
  plan.rows = static_cast<int64_t>(from.size());
  plan.lane_bytes = SlotAt(to).lane_bytes();
  plan.from = Keep(std::move(from)).data();
  plan.operand = Keep(std::move(operand)).data();
  plan.slots = Keep(slots).data();
  plan.slot_uniform = Keep(std::move(uniforms)).data();
  Instruction instruction = Make(kernels_.copy_rows, to, slots[0]);
  instruction.plan = &plan;
  instruction.rows = true;
  Emit(instruction, to);
}

void Compiler::CompileRows(const Op& op) {
  const ValueId result = op.results[0];
  const Shape& shape = ValueAt(result).type.shape;
  const int64_t rows = ElementCount(shape);
  meter_.Add(kElementWork * rows);
  std::vector<int32_t> from;
  std::vector<int32_t> operand;
  if (op.code == kConcat) {
    const size_t axis = static_cast<size_t>(op.attributes.axes[0]);
    std::vector<int64_t> begin = {0};
    std::vector<std::vector<int64_t>> strides;
    std::vector<int32_t> slots;
    for (ValueId id : op.operands) {
      const Shape& part = ValueAt(id).type.shape;
      begin.push_back(begin.back() + part[axis]);
      strides.push_back(StridesOf(part));
      slots.push_back(At(id));
    }
    ForEachIndex(shape, [&](const std::vector<int64_t>& index) {
      const auto after = std::upper_bound(begin.begin(), begin.end(), index[axis]);
      const size_t part = static_cast<size_t>(after - begin.begin()) - 1;
      int64_t row = 0;
      for (size_t a = 0; a < index.size(); ++a) {
        row += (index[a] - (a == axis ? begin[part] : 0)) * strides[part][a];
      }
      from.push_back(static_cast<int32_t>(row));
      operand.push_back(static_cast<int32_t>(part));
    });
    return EmitRows(result, std::move(from), std::move(operand), slots);
  }
  const Shape& source = ValueAt(op.operands[0]).type.shape;
  const std::vector<int64_t> strides = StridesOf(source);
  ForEachIndex(shape, [&](const std::vector<int64_t>& index) {
    int64_t row = 0;
    for (size_t axis = 0; axis < source.size() && row >= 0; ++axis) {
      int64_t at = 0;
      if (op.code == kBroadcast) {
        at = index[static_cast<size_t>(op.attributes.dims[axis])];
        if (source[axis] == 1) at = 0;
      } else if (op.code == kSlice) {
        at = op.attributes.start[axis] + index[axis];
      } else if (op.code == kPad) {
        at = index[axis] - op.attributes.start[axis];
        if (at < 0 || at >= source[axis]) row = -1;
      }
      if (row >= 0) row += at * strides[axis];
    }
    from.push_back(static_cast<int32_t>(row));
  });
  operand.assign(static_cast<size_t>(rows), 0);
  EmitRows(result, std::move(from), std::move(operand), {At(op.operands[0])});
}

const ReducePlan* Compiler::MakeReduction(const Op& op) {
  const Shape& shape = ValueAt(op.operands[0]).type.shape;
  const bool cumulative = op.code == kCumsum;
  meter_.Add(kElementWork * ElementCount(shape));
  // Lists of the elements that share their place on the axes that are kept.
  std::vector<int64_t> kept_strides(shape.size(), 0);
  int64_t results = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (IsReduced(op, axis)) continue;
    kept_strides[axis] = results;
    results *= shape[axis];
  }
  std::vector<std::vector<int32_t>> lists(static_cast<size_t>(results));
  int32_t element = 0;
  ForEachIndex(shape, [&](const std::vector<int64_t>& index) {
    int64_t list = 0;
    for (size_t axis = 0; axis < shape.size(); ++axis) list += index[axis] * kept_strides[axis];
    lists[static_cast<size_t>(list)].push_back(element++);
  });
  ReducePlan& plan = plan_->reductions.emplace_back();
  plan.results = results;
  plan.cumulative = cumulative;
  plan.inputs = lists.empty() ? 0 : static_cast<int64_t>(lists[0].size());
  std::vector<int32_t> index;
  for (std::vector<int32_t>& list : lists) {
    if (cumulative && op.attributes.reverse) std::reverse(list.begin(), list.end());
    index.insert(index.end(), list.begin(), list.end());
  }
  plan.index = Keep(std::move(index)).data();
  return &plan;
}

void Compiler::CompileReduction(const Op& op) {
  const ReducePlan* reduce = MakeReduction(op);
  const size_t wide = CarrierOfValue(ValueAt(op.operands[0])) == Carrier::kF64 ? 1 : 0;
  if (op.code == kSum || op.code == kCumsum) return CompileSum(op, reduce);
  const Kernel kernel = op.code == kReduceMax   ? kernels_.reduce_max[wide]
                        : op.code == kReduceMin ? kernels_.reduce_min[wide]
                        : op.code == kArgmax    ? kernels_.argmax[wide]
                        : op.code == kArgmin    ? kernels_.argmin[wide]
                        : op.code == kAny       ? kernels_.any
                                                : nullptr;
  if (kernel == nullptr) HasNoRule(op.code, "cpu");
  const int32_t a = At(op.operands[0]);
  const Slot from = SlotAt(a);
  const int32_t to = Result(op.results[0], from.uniform, hoists_ && from.invariant);
  Instruction instruction = Make(kernel, to, a);
  instruction.plan = reduce;
  Emit(instruction, to);
}

void Compiler::CompileSum(const Op& op, const ReducePlan* reduce) {
  const int32_t a = At(op.operands[0]);
  const Slot from = SlotAt(a);
  const Format accumulator = op.attributes.accumulator;
  const bool exact = op.code == kSum && op.attributes.order == Order::kExact;
  const bool invariant = hoists_ && from.invariant;
  const int32_t to = Result(op.results[0], from.uniform, invariant);
  if (exact || precision::Narrows(from.format, accumulator)) {
    plan_->exact_reductions.push_back({*reduce, op.code == kCumsum, op.attributes.order,
                                       accumulator, from.format, SlotAt(to).format});
    Instruction instruction = Make(RunExactReduction, to, a);
    instruction.plan = &plan_->exact_reductions.back();
    return Emit(instruction, to);
  }
  const size_t f = static_cast<size_t>(accumulator);
  const int source = from.carrier == Carrier::kF64 ? 1 : 0;
  const Kernel kernel = op.code == kCumsum
                            ? kernels_.cumsum[f][source]
                            : kernels_.sum[static_cast<int>(op.attributes.order)][f][source];
  if (accumulator == SlotAt(to).format) {
    Instruction instruction = Make(kernel, to, a);
    instruction.plan = reduce;
    return Emit(instruction, to);
  }
  const Carrier carrier = accumulator == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
  const int32_t total = Scratch(carrier, accumulator, SlotAt(to).count, from.uniform, invariant);
  Instruction instruction = Make(kernel, total, a);
  instruction.plan = reduce;
  Emit(instruction, total);
  EmitCast(total, to, Overflow::kIeee);
}

}  // namespace simgrad::sim::cpu
