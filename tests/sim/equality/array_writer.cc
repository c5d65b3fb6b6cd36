// Operations of a random world that read and write at computed places, and linear algebra.
#include <numeric>

#include "sim/op/op_info.h"
#include "tests/sim/equality/world_writer.h"

namespace simgrad::sim::equality {
using enum OpCode;

// Mostly inside [0, length), some outside; computed where the pool has integers, and constant else.
Var WorldWriter::Indices(ValuePool& pool, const Shape& shape, int64_t length) {
  const int64_t count = ElementCount(shape);
  const Vars same = ValuePool::OfShape(pool.i32s, shape);
  if (!same.empty() && random_.Chance(0.5)) return Take(pool, same);
  if (random_.Chance(0.4) && count > 0 && !options_.smooth) {
    // The places of extremes of a random line are data.
    const Var line = RealOf(pool, {3});
    const Var best = builder_.Do(kArgmax, {line}, {.axes = {0}});
    const Var wide = shape.empty() ? best : builder_.Broadcast(best, shape, {});
    if (shape.size() != 1) return wide;
    return builder_.Apply(kAdd, {wide, builder_.Iota(shape, 0)});
  }
  std::vector<double> places;
  for (int64_t k = 0; k < count; ++k) {
    places.push_back(static_cast<double>(
        random_.Integer(-1, random_.Chance(0.8) ? std::max<int64_t>(length - 1, 0) : length)));
  }
  if (count == 0) return builder_.Integer(0, ElementType::kI32, shape);
  return builder_.IntegerArray(places, shape);
}

bool WorldWriter::WriteArgsort(ValuePool& pool) {
  const Vars fitting =
      ValuePool::Where(pool.reals, [](const Var& x) { return !x.shape().empty(); });
  if (fitting.empty()) return false;
  Var x = Take(pool, fitting);
  const Shape shape = x.shape();
  // Some keys are equal.
  if (random_.Chance(0.4)) x = builder_.Apply(kRound, {x});
  Vars keys = {x};
  if (random_.Chance(0.5)) keys.push_back(Like(pool, {AnyInteger(pool), shape}));
  if (random_.Chance(0.2)) keys.push_back(RealOf(pool, shape));
  const int64_t axis = random_.Integer(0, static_cast<int64_t>(shape.size()) - 1);
  Keep(pool, pool.i32s, builder_.Do(kArgsort, keys, {.axes = {axis}}));
  return true;
}

bool WorldWriter::WriteIndexing(OpCode code, ValuePool& pool) {
  if (code == kArgsort) return WriteArgsort(pool);
  const bool integers = !options_.smooth && random_.Chance(0.15);
  const ElementType element = integers ? AnyInteger(pool) : ElementType::kReal;
  const Vars fitting =
      ValuePool::Where(pool.Of(element), [](const Var& x) { return !x.shape().empty(); });
  if (fitting.empty()) return false;
  const Var x = Take(pool, fitting);
  const Shape shape = x.shape();
  if (code == kDynamicSlice || code == kUpdate) {
    Shape part;
    for (int64_t length : shape)
      part.push_back(random_.Integer(std::min<int64_t>(1, length), length));
    const Var starts = Indices(pool, {static_cast<int64_t>(shape.size())}, 3);
    if (code == kUpdate) {
      Keep(pool, pool.Of(element), builder_.Do(kUpdate, {x, Like(pool, {element, part}), starts}));
    } else {
      Keep(pool, pool.Of(element), builder_.Do(kDynamicSlice, {x, starts}, {.shape = part}));
    }
    return true;
  }
  const size_t axis =
      static_cast<size_t>(random_.Integer(0, static_cast<int64_t>(shape.size()) - 1));
  Shape of = {random_.Integer(random_.Chance(0.1) ? 0 : 1, 4)};
  if (random_.Chance(0.2)) of = random_.Chance(0.5) ? Shape{} : Shape{2, 2};
  Shape moved(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis));
  moved.insert(moved.end(), of.begin(), of.end());
  moved.insert(moved.end(), shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1, shape.end());
  if (ElementCount(moved) > MaxElements() || moved.size() > 4) return false;
  const bool clips = shape[axis] > 0 && random_.Chance(0.5);
  Attributes a;
  a.axes = {static_cast<int64_t>(axis)};
  if (code == kGather) {
    a.bounds = clips ? Bounds::kClip : Bounds::kFill;
    if (random_.Chance(0.5)) a.literal = {RandomFill(element)};
    if (clips) a.literal.clear();
    const Var indices = Indices(pool, of, shape[axis]);
    Keep(pool, pool.Of(element), builder_.Do(kGather, {x, indices}, std::move(a)));
    return true;
  }
  static const std::vector<Combine> kCombines = {Combine::kSet, Combine::kAdd, Combine::kMul,
                                                 Combine::kMin, Combine::kMax};
  a.bounds = clips ? Bounds::kClip : Bounds::kDrop;
  a.combine = random_.Pick(kCombines);
  Var indices = Indices(pool, of, shape[axis]);
  if (a.combine == Combine::kMul && options_.smooth) {
    // Distinct: the derivative is that of distinct indices.
    if (of.size() != 1) a.combine = Combine::kAdd;
    if (of.size() == 1) indices = builder_.Iota(of, 0), a.bounds = Bounds::kDrop;
  }
  Keep(pool, pool.Of(element),
       builder_.Do(kScatter, {x, indices, Like(pool, {element, moved})}, std::move(a)));
  return true;
}

Var WorldWriter::Matrix(ValuePool& pool, const Shape& shape) {
  Var m = RealOf(pool, shape);
  if (Tamed()) m = Bounded(m);
  // So that rows differ.
  std::vector<double> own(static_cast<size_t>(ElementCount(shape)));
  for (double& x : own) x = random_.Uniform(-1.0, 1.0);
  if (own.empty() || random_.Chance(0.1)) return m;
  return m + builder_.LiteralArray(own, shape);
}

// Far from singular, or whatever the pool has.
Var WorldWriter::Regular(ValuePool& pool, const Shape& shape) {
  const Var m = Matrix(pool, shape);
  const int64_t rows = shape[shape.size() - 2];
  const int64_t columns = shape.back();
  const int64_t count = ElementCount(shape);
  if (count == 0 || (!options_.smooth && !IsLarge() && random_.Chance(0.25))) return m;
  std::vector<double> diagonal(static_cast<size_t>(count), 0.0);
  for (int64_t first = 0; first < count; first += rows * columns) {
    for (int64_t k = 0; k < std::min(rows, columns); ++k)
      diagonal[static_cast<size_t>(first + k * (columns + 1))] = 4.0 + static_cast<double>(rows);
  }
  const Var bounded = Tamed() ? Bounded(m) : m;
  return bounded + builder_.LiteralArray(diagonal, shape);
}

// The axes before those of a matrix: none, or some.
Shape WorldWriter::LeadingAxes() {
  // Drawn aside, so that a seed's program without any does not depend on it.
  Random aside(Random(random_).Bits() ^ 0xBA7C4u);
  static const std::vector<Shape> kLeading = {{}, {}, {}, {2}, {2}, {3}, {1, 2}, {0}};
  return aside.Pick(kLeading);
}

bool WorldWriter::WriteLinear(OpCode code, ValuePool& pool) {
  const auto length = [&] { return random_.Integer(random_.Chance(0.04) ? 0 : 1, 4); };
  const int64_t n = length();
  const int64_t m = random_.Integer(1, 3);
  if (code == kMatmul) {
    const int64_t k = length();
    Var a = Matrix(pool, {n, k});
    Var b = Matrix(pool, {k, m});
    if (random_.Chance(0.3)) {
      a = builder_.Broadcast(a, {2, n, k}, {1, 2});
      b = builder_.Broadcast(b, {2, k, m}, {1, 2});
    }
    Keep(pool, pool.reals, builder_.Do(kMatmul, {a, b}));
    return true;
  }
  if (code == kNorm2) {
    const Vars fitting =
        ValuePool::Where(pool.reals, [](const Var& x) { return !x.shape().empty(); });
    if (fitting.empty()) return false;
    Var x = Take(pool, fitting);
    if (options_.smooth) x = Positive(x);
    const int64_t axis = random_.Integer(0, static_cast<int64_t>(x.shape().size()) - 1);
    Keep(pool, pool.reals,
         builder_.Reduce(
             kNorm2, x, random_.Chance(0.5) ? std::vector<int64_t>{} : std::vector<int64_t>{axis}));
    return true;
  }
  if (code == kLu || code == kLuPermutation) {
    // Drawn aside, so that a seed's program of square ones does not depend on it.
    const bool square = Random(Random(random_).Bits() ^ 0x7A11u).Chance(0.5);
    const Var a = Regular(pool, {n, square ? n : m});
    Keep(pool, code == kLu ? pool.reals : pool.i32s, builder_.Do(code, {a}));
    return true;
  }
  WriteSystem(code, pool, n, m);
  return true;
}

// n unknowns, m right sides.
void WorldWriter::WriteSystem(OpCode code, ValuePool& pool, int64_t n, int64_t m) {
  const bool of_lu = code == kSolve || code == kLuSolve;  // which takes one matrix
  const Shape leading = of_lu ? Shape{} : LeadingAxes();
  const auto shaped = [&](int64_t rows, int64_t columns) {
    Shape shape = leading;
    shape.insert(shape.end(), {rows, columns});
    return shape;
  };
  const Var a = Regular(pool, shaped(n, n));
  if (code == kCholesky) {
    Keep(pool, pool.reals, builder_.Do(kCholesky, {a}));
    return;
  }
  const Var b = Matrix(pool, shaped(n, m));
  if (code == kSolve) {
    Keep(pool, pool.reals, builder_.Do(kSolve, {a, b}));
    return;
  }
  Attributes how;
  how.transposed = random_.Chance(0.5);
  if (code == kLuSolve) {
    const Var factors = builder_.Do(kLu, {a});
    const Var rows = builder_.Do(kLuPermutation, {a});
    Keep(pool, pool.reals, builder_.Do(kLuSolve, {a, factors, rows, b}, how));
    return;
  }
  how.upper = random_.Chance(0.5);
  how.unit = random_.Chance(0.3);
  Keep(pool, pool.reals, builder_.Do(kTriangularSolve, {a, b}, how));
}

}  // namespace simgrad::sim::equality
