#include "sim/program/choices.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/op/expansion.h"
#include "sim/op/op_info.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

struct Pair {
  ValueId above;
  ValueId below;
};

Type WithShape(const Type& type, Shape shape) { return {type.element, std::move(shape)}; }

class PairWriter {
 public:
  PairWriter(Program& program, const Op& op, std::optional<Rounding> whole, std::vector<Op>& out,
             PassBudget& budget)
      : w_(program, op, out, budget), op_(op), whole_(std::move(whole)) {}

  ValueId NewValue(Type type) { return w_.NewValue(std::move(type)); }

  // The two sides whose comparison decides `chosen`.
  Pair Of(ValueId chosen) {
    if (op_.code == kConvert) return OfConversion();
    if (op_.code == kLuPermutation) return OfPivots();
    if (op_.code == kArgsort) return OfOrder(chosen);
    if (op_.code == kArgmax || op_.code == kArgmin) return OfExtreme(chosen);
    HasNoRule(op_.code, "choices");
  }

  Pair OfTruth() { return {w_.X(0), w_.Number(0, w_.TypeOf(w_.X(0)))}; }

  Pair OfFactor() {
    Type type = w_.TypeOf(w_.X(0));
    type.shape.pop_back();
    const ValueId pivots = w_.Do(kCholeskyPivots, {w_.X(0)}, type);
    return {pivots, w_.Number(0, type)};
  }

 private:
  Pair OfExtreme(ValueId index) {
    const bool largest = op_.code == kArgmax;
    const Type type = w_.TypeOf(w_.X(0));
    const Type kept = w_.TypeOf(index);
    const int64_t axis = op_.attributes.axes[0];
    // A neighbour takes the place of the winner.
    const Type reals = WithShape(type, kept.shape);
    const Type truths{ElementType::kBool, kept.shape};
    const ValueId is_first = w_.Do(kEq, {index, w_.Number(0, kept)}, truths);
    const ValueId second = Reshaped(Part(w_.X(0), axis, 1, 1), kept.shape);
    const ValueId first = Reshaped(Part(w_.X(0), axis, 0, 1), kept.shape);
    const ValueId other = w_.Do(kSelect, {is_first, second, first}, reals);
    const Type integers{ElementType::kI32, type.shape};
    const ValueId places = w_.Do(kIota, {}, integers);
    w_.Last().attributes.axes = {axis};
    w_.Last().attributes.shape = type.shape;
    const ValueId wide = Widened(index, type.shape, axis);
    const ValueId is_winner = w_.Do(kEq, {places, wide}, {ElementType::kBool, type.shape});
    const ValueId filler = Widened(other, type.shape, axis);
    const ValueId others = w_.Do(kSelect, {is_winner, filler, w_.X(0)}, type);
    const ValueId winner = Extreme(w_.X(0), axis, reals);
    const ValueId runner_up = Extreme(others, axis, reals);
    return largest ? Pair{winner, runner_up} : Pair{runner_up, winner};
  }

  // Neighbours in order; the last element has the one before it. No real decides between those that an
  // integer key before the first real one tells apart.
  Pair OfOrder(ValueId order) {
    const auto is_real = [&](ValueId id) { return w_.TypeOf(id).element == ElementType::kReal; };
    const auto key = std::find_if(op_.operands.begin(), op_.operands.end(), is_real);
    Pair pair = Neighbours(*key, order);
    const Type type = w_.TypeOf(*key);
    const Type truths{ElementType::kBool, type.shape};
    const double infinity = std::numeric_limits<double>::infinity();
    for (auto before = op_.operands.begin(); before != key; ++before) {
      const Pair integers = Neighbours(*before, order);
      const ValueId differ = w_.Do(kNe, {integers.above, integers.below}, truths);
      pair.above = w_.Do(kSelect, {differ, w_.Number(infinity, type), pair.above}, type);
      pair.below = w_.Do(kSelect, {differ, w_.Number(0, type), pair.below}, type);
    }
    return pair;
  }

  Pair Neighbours(ValueId key, ValueId order) {
    const Type type = w_.TypeOf(key);
    const int64_t axis = op_.attributes.axes[0];
    const int64_t n = type.shape[static_cast<size_t>(axis)];
    const ValueId sorted = Taken(key, order, axis);
    const auto moved = [&](int64_t first, int64_t last) {
      const ValueId most = Part(sorted, axis, first, n - 1);
      const ValueId one = Part(sorted, axis, last, 1);
      const ValueId all = w_.Do(kConcat, {most, one}, type);
      w_.Last().attributes.axes = {axis};
      return all;
    };
    return {moved(1, n - 1), moved(0, n - 2)};
  }

  Pair OfPivots() {
    const Shape shape = w_.TypeOf(w_.X(0)).shape;
    const int64_t n = std::min(shape[0], shape[1]);
    const ValueId pivots = w_.Do(kLuPivots, op_.operands, {ElementType::kReal, {2, n}});
    const ValueId taken = Reshaped(Part(pivots, 0, 0, 1), {n});
    const ValueId next = Reshaped(Part(pivots, 0, 1, 1), {n});
    // Neither the last row nor rows without a pivot have a rival.
    const int64_t rivals = std::min(n, shape[0] - 1);
    const Type rest = {ElementType::kReal, {shape[0] - rivals}};
    const double infinity = std::numeric_limits<double>::infinity();
    return {Behind(Part(taken, 0, 0, rivals), w_.Number(infinity, rest)),
            Behind(Part(next, 0, 0, rivals), w_.Number(0, rest))};
  }

  Pair OfConversion() {
    if (whole_ && whole_->code != kTrunc) return OfWhole();
    const ValueId x = whole_ ? Rounded() : w_.X(0);
    const Type type = w_.TypeOf(x);
    const ValueId magnitude = w_.Do(kAbs, {x}, type);
    const ValueId nearest = w_.Do(kRound, {magnitude}, type);
    return {magnitude, w_.Do(kMax, {nearest, w_.Number(1, type)}, type)};
  }

  // Floor and ceil decide on which side of an integer x is, round on which side of a half, of |x| as of x.
  // Where the format has no halves any more, x is whole, and the next larger number is the next one that
  // rounds otherwise.
  Pair OfWhole() {
    const ValueId x = Rounded();
    const Type type = w_.TypeOf(x);
    if (whole_->code != kRound) return {x, w_.Do(kRound, {x}, type)};
    const ValueId magnitude = w_.Do(kAbs, {x}, type);
    const ValueId below = w_.Do(kFloor, {magnitude}, type);
    const ValueId half = w_.Do(kAdd, {below, w_.Number(0.5, type)}, type);
    const ValueId is_whole =
        w_.Do(kEq, {half, w_.Do(kFloor, {half}, type)}, {ElementType::kBool, type.shape});
    const double infinity = std::numeric_limits<double>::infinity();
    const ValueId next = w_.Do(kNextAfter, {magnitude, w_.Number(infinity, type)}, type);
    return {magnitude, w_.Do(kSelect, {is_whole, next, half}, type)};
  }

  // The operand of the rounding, moved as its result was.
  ValueId Rounded() {
    ValueId x = whole_->operand;
    for (const Op& move : whole_->moves) {
      std::vector<ValueId> operands = move.operands;
      operands[0] = x;
      x = w_.Do(move.code, std::move(operands), w_.TypeOf(move.results[0]));
      w_.Last().attributes = move.attributes;
    }
    return x;
  }

  // Two rows, one behind the other.
  ValueId Behind(ValueId a, ValueId b) {
    const int64_t length = w_.TypeOf(a).shape[0] + w_.TypeOf(b).shape[0];
    const ValueId both = w_.Do(kConcat, {a, b}, {ElementType::kReal, {length}});
    w_.Last().attributes.axes = {0};
    return both;
  }
  // `length` elements along an axis, from `start` on.
  ValueId Part(ValueId id, int64_t axis, int64_t start, int64_t length) {
    Type type = w_.TypeOf(id);
    type.shape[static_cast<size_t>(axis)] = length;
    const ValueId part = w_.Do(kSlice, {id}, type);
    w_.Last().attributes.shape = type.shape;
    w_.Last().attributes.start.assign(type.shape.size(), 0);
    w_.Last().attributes.start[static_cast<size_t>(axis)] = start;
    return part;
  }
  ValueId Reshaped(ValueId id, const Shape& shape) {
    if (w_.TypeOf(id).shape == shape) return id;
    const ValueId same = w_.Do(kReshape, {id}, WithShape(w_.TypeOf(id), shape));
    w_.Last().attributes.shape = shape;
    return same;
  }
  // Repeated along an axis that it lacks.
  ValueId Widened(ValueId id, const Shape& shape, int64_t axis) {
    const ValueId wide = w_.Do(kBroadcast, {id}, WithShape(w_.TypeOf(id), shape));
    w_.Last().attributes.shape = shape;
    for (int64_t k = 0; k < static_cast<int64_t>(shape.size()); ++k) {
      if (k != axis) w_.Last().attributes.dims.push_back(k);
    }
    return wide;
  }
  ValueId Extreme(ValueId id, int64_t axis, const Type& type) {
    const ValueId extreme = w_.Do(op_.code == kArgmax ? kReduceMax : kReduceMin, {id}, type);
    w_.Last().attributes.axes = {axis};
    return extreme;
  }
  // The elements at `places` along an axis, each of its own line.
  ValueId Taken(ValueId id, ValueId places, int64_t axis) {
    const Type type = w_.TypeOf(id);
    const int64_t count = ElementCount(type.shape);
    const Type flat{ElementType::kI32, {count}};
    ValueId index = Reshaped(places, flat.shape);
    if (type.shape.size() > 1) index = Flattened(index, type.shape, axis);
    const ValueId taken = w_.Do(kGather, {Reshaped(id, {count}), index}, {type.element, {count}});
    w_.Last().attributes.axes = {0};
    w_.Last().attributes.bounds = Bounds::kClip;
    return Reshaped(taken, type.shape);
  }
  // position / (length * inner) * (length * inner) + place * inner + position % inner.
  ValueId Flattened(ValueId places, const Shape& shape, int64_t axis) {
    const Type flat = w_.TypeOf(places);
    int64_t inner = 1;
    for (size_t k = static_cast<size_t>(axis) + 1; k < shape.size(); ++k) inner *= shape[k];
    const int64_t line = shape[static_cast<size_t>(axis)] * inner;
    const auto number = [&](int64_t n) { return w_.Number(static_cast<double>(n), flat); };
    const ValueId position = w_.Do(kIota, {}, flat);
    w_.Last().attributes.axes = {0};
    w_.Last().attributes.shape = flat.shape;
    const ValueId lines = w_.Do(kQuot, {position, number(line)}, flat);
    const ValueId before = w_.Do(kMul, {lines, number(line)}, flat);
    const ValueId along = w_.Do(kMul, {places, number(inner)}, flat);
    const ValueId within = w_.Do(kRem, {position, number(inner)}, flat);
    return w_.Do(kAdd, {w_.Do(kAdd, {before, along}, flat), within}, flat);
  }

  ExpansionWriter w_;
  const Op& op_;
  const std::optional<Rounding> whole_;
};

// A line of one element leaves nothing to choose.
bool HasChoice(const Program& program, const Op& op) {
  const Shape& shape = program[op.operands[0]].type.shape;
  return ElementCount(shape) > 0 && shape[static_cast<size_t>(op.attributes.axes[0])] > 1;
}

}  // namespace

bool ChoosesByReals(const Program& program, const Op& op) {
  const auto is_real = [&](ValueId id) { return program.IsReal(id); };
  switch (InfoOf(op.code).chooses) {
    case Chooses::kNothing:
      return false;
    case Chooses::kPlaces:
      return std::any_of(op.operands.begin(), op.operands.end(), is_real) && HasChoice(program, op);
    case Chooses::kPivots: {
      // A factor's pivot is compared with 0; that of a matrix of one row has no rival.
      const Shape& shape = program[op.operands[0]].type.shape;
      return ElementCount(shape) > 0 && (op.code == kCholesky || shape[0] > 1);
    }
    case Chooses::kInteger:
      return is_real(op.operands[0]) && !is_real(op.results[0]);
  }
  return false;
}

std::string OwnNameOfChoice(const Op& op) {
  return op.code == kLuPermutation ? "lu" : std::string(InfoOf(op.code).name);
}

void WriteChoice(Program& program, Op op, std::optional<Rounding> whole, const std::string& site,
                 TestKind kind, std::vector<Op>& out, PassBudget& budget) {
  const ValueId result = op.results[0];
  const Type type = program[result].type;
  const bool to_bool = op.code == kConvert && type.element == ElementType::kBool;
  Op test;
  test.role = op.role;
  test.site = op.site;
  test.label = op.label;
  test.attributes.site = site;
  test.attributes.kind = kind;
  PairWriter writer(program, op, std::move(whole), out, budget);
  if (op.code == kCholesky || to_bool) {
    test.code = kEvent;
    test.attributes.comparison = to_bool ? Comparison::kNe : Comparison::kGt;
    if (op.code == kCholesky) out.push_back(op);
    const Pair pair = to_bool ? writer.OfTruth() : writer.OfFactor();
    test.operands = {pair.above, pair.below};
    const Shape shape = program[pair.above].type.shape;
    test.results = {to_bool ? result : writer.NewValue({ElementType::kBool, shape})};
    out.push_back(std::move(test));
    return;
  }
  const ValueId chosen = writer.NewValue(type);
  op.results[0] = chosen;
  out.push_back(op);
  const Pair pair = writer.Of(chosen);
  test.code = kChoice;
  test.operands = {chosen, pair.above, pair.below};
  test.results = {result};
  out.push_back(std::move(test));
}

}  // namespace simgrad::sim
