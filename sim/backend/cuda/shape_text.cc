// Operations that move elements, and reductions: which elements of the operand an element of the
// result is made of.
#include <algorithm>

#include "precision/exact_sum.h"
#include "sim/backend/cuda/region_writer.h"
#include "sim/op/op_info.h"
#include "sim/program/axes.h"

namespace simgrad::sim::cuda {
namespace {

constexpr int64_t kMostThreads = 1024;  // of a block
// A sum in order over more numbers takes longer than all else of a step, most often.
constexpr int64_t kSlowInOrder = 256;
constexpr int64_t kExactSumBytes = 560;
static_assert(sizeof(precision::ExactSum) <= kExactSumBytes && kExactSumBytes % 16 == 0);

// The index on an axis of element `flat` of a shape.
std::string OnAxis(const std::string& flat, const Shape& shape, size_t axis) {
  if (ElementCount(shape) == 0) return "0";
  const int64_t stride = StridesOf(shape)[axis];
  std::string text = flat;
  if (stride != 1) text = Cat(text, " / ", stride);
  if (axis != 0) text = Cat(stride != 1 ? Cat("(", text, ")") : text, " % ", shape[axis]);
  return text == flat ? flat : Cat("(", text, ")");
}

std::string Sum(const std::vector<std::string>& terms) {
  std::string text;
  for (const std::string& term : terms) text += text.empty() ? term : Cat(" + ", term);
  return text.empty() ? "0" : text;
}

std::string Times(const std::string& index, int64_t stride) {
  return stride == 1 ? index : Cat(index, " * ", stride);
}

}  // namespace

void RegionWriter::Alias(const Op& op) {
  SetPlace(op.results[0], PlaceOf(op.operands[0]));
  StoreTaped(op.results[0]);
}

void RegionWriter::Broadcast(const Op& op) {
  const Place from = PlaceOf(op.operands[0]);
  const Shape& shape = source_.At(op.operands[0]).type.shape;
  const Shape& to = source_.At(op.results[0]).type.shape;
  if (from.kind == PlaceKind::kOne) {
    SetPlace(op.results[0], {PlaceKind::kOne, from.text, source_.Count(op.results[0])});
    return StoreTaped(op.results[0]);
  }
  CrossRead({from});
  const std::vector<int64_t> strides = StridesOf(shape);
  Define(op.results[0], CommentOf(op), [&](const std::string& e) {
    std::vector<std::string> terms;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] == 1) continue;
      const size_t of = static_cast<size_t>(op.attributes.dims[axis]);
      terms.push_back(Times(OnAxis(e, to, of), strides[axis]));
    }
    return from[Sum(terms)];
  });
}

void RegionWriter::Slice(const Op& op) {
  const Place from = PlaceOf(op.operands[0]);
  const Shape& shape = source_.At(op.operands[0]).type.shape;
  const Shape& to = source_.At(op.results[0]).type.shape;
  CrossRead({from});
  const std::vector<int64_t> strides = StridesOf(shape);
  Define(op.results[0], CommentOf(op), [&](const std::string& e) {
    std::vector<std::string> terms;
    int64_t first = 0;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      first += op.attributes.start[axis] * strides[axis];
      if (to[axis] != 1) terms.push_back(Times(OnAxis(e, to, axis), strides[axis]));
    }
    if (first != 0 || terms.empty()) terms.push_back(Cat(first));
    return from[Sum(terms)];
  });
}

void RegionWriter::Pad(const Op& op) {
  const Place from = PlaceOf(op.operands[0]);
  const Shape& shape = source_.At(op.operands[0]).type.shape;
  const Shape& to = source_.At(op.results[0]).type.shape;
  CrossRead({from});
  const std::vector<int64_t> strides = StridesOf(shape);
  const std::string type = source_.CType(op.results[0]);
  if (source_.Count(op.operands[0]) == 0) {
    Define(op.results[0], CommentOf(op), [&](const std::string&) { return Cat(type, "{0}"); });
    return;
  }
  Define(op.results[0], CommentOf(op), [&](const std::string& e) {
    std::vector<std::string> terms;
    std::string inside;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const int64_t start = op.attributes.start[axis];
      const std::string at = OnAxis(e, to, axis);
      terms.push_back(start == 0 ? Times(at, strides[axis])
                                 : Times(Cat("(", at, " - ", start, ")"), strides[axis]));
      if (shape[axis] == to[axis]) continue;
      if (!inside.empty()) inside += " && ";
      inside += Cat(at, " >= ", start, " && ", at, " < ", start + shape[axis]);
    }
    const std::string value = from[Sum(terms)];
    return inside.empty() ? value : Cat(inside, " ? ", value, " : ", type, "{0}");
  });
}

void RegionWriter::Concat(const Op& op) {
  const size_t axis = static_cast<size_t>(op.attributes.axes[0]);
  const Shape& to = source_.At(op.results[0]).type.shape;
  std::vector<Place> from;
  for (ValueId operand : op.operands) from.push_back(PlaceOf(operand));
  CrossRead(from);
  Define(op.results[0], CommentOf(op), [&](const std::string& e) {
    const std::string at = OnAxis(e, to, axis);
    std::string text;
    int64_t before = 0;
    std::string last;
    for (size_t which = 0; which < from.size(); ++which) {
      const Shape& shape = source_.At(op.operands[which]).type.shape;
      if (ElementCount(shape) == 0) continue;
      const std::vector<int64_t> strides = StridesOf(shape);
      std::vector<std::string> terms;
      for (size_t a = 0; a < shape.size(); ++a) {
        const std::string index = OnAxis(e, to, a);
        const bool moved = a == axis && before != 0;
        terms.push_back(Times(moved ? Cat("(", index, " - ", before, ")") : index, strides[a]));
      }
      before += shape[axis];
      if (!last.empty()) text += last;
      last = Cat(at, " < ", before, " ? ", from[which][Sum(terms)], " : ");
    }
    // The last operand needs no test.
    const size_t value = last.find(" ? ") + 3;
    return Cat(text, last.substr(value, last.size() - value - 3));
  });
}

namespace {

// Where a reduction reads: element `i` of those that result element `k` is made of.
struct Reduced {
  int64_t count = 1;
  Shape kept, gone;
  std::vector<int64_t> kept_strides, gone_strides;
  Reduced(const Op& op, const Shape& shape) {
    const std::vector<int64_t> strides = StridesOf(shape);
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const bool reduced = IsReduced(op, axis);
      (reduced ? gone : kept).push_back(shape[axis]);
      (reduced ? gone_strides : kept_strides).push_back(strides[axis]);
      if (reduced) count *= shape[axis];
    }
  }
  std::string IndexText(const std::string& k, const std::string& i) const {
    std::vector<std::string> terms;
    for (size_t axis = 0; axis < kept.size(); ++axis) {
      if (kept[axis] != 1) terms.push_back(Times(OnAxis(k, kept, axis), kept_strides[axis]));
    }
    for (size_t axis = 0; axis < gone.size(); ++axis) {
      if (gone[axis] != 1) terms.push_back(Times(OnAxis(i, gone, axis), gone_strides[axis]));
    }
    return Sum(terms);
  }
};

std::string OrderText(Order order) {
  constexpr std::string_view kNames[] = {"kSequential", "kReversed", "kPairwise", "kCompensated",
                                         "kExact"};
  return Cat("Order::", kNames[static_cast<size_t>(order)]);
}

// The function of device/reduction.h, with its template arguments.
std::string ReductionText(const Op& op, const std::string& type, Format from, Format to,
                          int64_t count) {
  const bool largest = op.code == OpCode::kReduceMax || op.code == OpCode::kArgmax;
  const std::string_view which = largest ? "true" : "false";
  if (op.code == OpCode::kSum) {
    return Cat("Sum<", OrderText(op.attributes.order), ", ", FormatText(op.attributes.accumulator),
               ", ", FormatText(from), ", ", FormatText(to), ", ", count, ">");
  }
  if (op.code == OpCode::kAny) return Cat("Any<", count, ">");
  if (op.code == OpCode::kArgmax || op.code == OpCode::kArgmin) {
    return Cat("ExtremeIndex<", count, ", ", which, ">");
  }
  if (op.code != OpCode::kReduceMax && op.code != OpCode::kReduceMin) HasNoRule(op.code, "cuda");
  return Cat("ExtremeOfReals<", type, ", ", count, ", ", which, ">");
}

}  // namespace

void RegionWriter::Reduction(const Op& op) {
  if (op.code == OpCode::kCumsum) return Cumsum(op);
  const ValueId id = op.results[0];
  const Place from = PlaceOf(op.operands[0]);
  const Reduced reduced(op, source_.At(op.operands[0]).type.shape);
  const bool to_one = from.kind == PlaceKind::kSpread && source_.Count(id) == 1;
  // Whether any holds, each thread asks of its own elements.
  if (!to_one || op.code != OpCode::kAny) CrossRead({from});
  const std::string function = ReductionText(
      op, source_.CType(id), source_.FormatOf(op.operands[0]), source_.FormatOf(id), reduced.count);
  const auto call = [&](const std::string& k) {
    const std::string value = from[reduced.IndexText(k, "i")];
    return Cat(function, "([&](int i) { return ", value, "; })");
  };
  if (to_one) return ReduceToOne(op, call("0"), from[reduced.IndexText("0", "i")]);
  Define(id, CommentOf(op), call);
}

// All threads of the block need the one result. Where the order allows it they share the work: a
// pairwise sum level by level, and what has no order. Every other sum is one thread's, in its
// order.
void RegionWriter::ReduceToOne(const Op& op, const std::string& call, const std::string& value) {
  const ValueId id = op.results[0];
  const Attributes& a = op.attributes;
  const int64_t count = source_.Count(op.operands[0]);
  const std::string at = Cat("[&](int i) { return ", value, "; }");
  const std::string scratch = Cat("scratch", source_.NextId());
  const auto take = [&](const std::string& type, int64_t bytes) {
    Line(Cat("auto* const ", scratch, " = reinterpret_cast<", type, "*>(work + ",
             source_.TakeWorkspace(bytes), ");"));
  };
  const auto define = [&](const std::string& text) {
    Define(id, CommentOf(op), [&](const std::string&) { return text; });
  };
  crossed_ = true;  // what all read is written again by the next execution
  const bool sums = op.code == OpCode::kSum;
  const bool in_order = sums && a.order != Order::kPairwise && a.order != Order::kExact;
  if (in_order || count == 0) {
    const std::string type = source_.CType(id);
    if (count > kSlowInOrder) Line(Cat("// One thread adds ", count, " numbers in their order."));
    take(type, 8);
    Line(Cat("if (speaks) *", scratch, " = ", call, ";"));
    Barrier();
    crossed_ = true;
    return define(Cat("*", scratch));
  }
  dirty_ = false;  // all below have barriers of their own
  const std::string from = source_.CType(op.operands[0]);
  if (op.code == OpCode::kAny) {
    crossed_ = false;
    return define(Cat("__syncthreads_or(OwnAny<", count, ">(", at, ")) != 0"));
  }
  if (sums && a.order == Order::kExact) {
    take("unsigned char", kExactSumBytes + 8);
    return define(Cat("BlockExactSum<", FormatText(source_.FormatOf(id)), ", ", count, ">(", at,
                      ", reinterpret_cast<precision::ExactSum*>(", scratch,
                      "), reinterpret_cast<double*>(", scratch, " + ", kExactSumBytes, "))"));
  }
  if (sums) {
    const std::string formats =
        Cat(FormatText(a.accumulator), ", ", FormatText(source_.FormatOf(op.operands[0])));
    take(Cat("Adder<", formats, ">::T"), 8 * 2 * ((count + 1) / 2));
    return define(Cat("BlockPairwiseSum<", formats, ", ", FormatText(source_.FormatOf(id)), ", ",
                      count, ">(", at, ", ", scratch, ")"));
  }
  const bool largest = op.code == OpCode::kReduceMax || op.code == OpCode::kArgmax;
  const std::string_view which = largest ? ", true>" : ", false>";
  const int64_t slots = std::min(count, kMostThreads);
  if (op.code == OpCode::kArgmax || op.code == OpCode::kArgmin) {
    take(Cat("Placed<", from, ">"), 16 * slots);
    return define(Cat("BlockExtremeIndex<", from, ", ", count, which, "(", at, ", ", scratch, ")"));
  }
  take(from, 8 * slots);
  define(Cat("BlockExtreme<", from, ", ", count, which, "(", at, ", ", scratch, ")"));
}

void RegionWriter::Cumsum(const Op& op) {
  const ValueId id = op.results[0];
  const Place from = PlaceOf(op.operands[0]);
  const Reduced reduced(op, source_.At(op.operands[0]).type.shape);
  const int64_t lines = reduced.count == 0 ? 0 : source_.Count(id) / reduced.count;
  const std::string_view reverse = op.attributes.reverse ? "true" : "false";
  CrossRead({from});
  const Place to = NewVariable(source_.Name(id), CarrierOf(source_.At(id)), source_.Count(id));
  SetPlace(id, to);
  Rewrite(to);
  const std::string function = Cat("Cumsum<", FormatText(op.attributes.accumulator), ", ",
                                   FormatText(source_.FormatOf(op.operands[0])), ", ",
                                   FormatText(source_.FormatOf(id)), ", ");
  const std::string element = reduced.IndexText("k", "i");
  const bool spread = to.kind == PlaceKind::kSpread;
  Line(Cat("for (int k = ", spread ? "threadIdx.x" : "0", "; k < ", lines,
           spread ? "; k += blockDim.x) {" : "; ++k) {", CommentOf(op)));
  Line(Cat("  ", function, reduced.count, ", ", reverse, ">([&](int i) { return ", from[element],
           "; }, [&](int i, ", source_.CType(id), " sum) { ", to[element], " = sum; });"));
  Line("}");
  if (spread) {
    Barrier();  // results lie with the thread of their line, not of their element
    crossed_ = true;
  }
  StoreTaped(id);
}

}  // namespace simgrad::sim::cuda
