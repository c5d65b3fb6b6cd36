// Calls, draws and halts of a random world.
#include "tests/sim/equality/world_writer.h"

namespace simgrad::sim::equality {

using enum OpCode;

bool WorldWriter::WriteCall(ValuePool& pool, int depth) {
  if (depth >= 3 || calls_ >= 4) return false;
  ++calls_;
  if (options_.smooth) return WriteSmoothCall(pool);
  const bool has_vjp = random_.Chance(0.75);
  Vars args;
  for (int64_t more = random_.Integer(0, 2); more >= 0; --more) args.push_back(Real(pool));
  for (const Vars* list : {&pool.i32s, &pool.choices}) {
    if (!list->empty() && random_.Chance(0.2)) args.push_back(Take(pool, *list));
  }
  std::vector<Type> types = {{ElementType::kReal, args[0].shape()}};
  if (random_.Chance(0.4)) types.push_back({ElementType::kReal, {}});
  if (random_.Chance(0.2)) types.push_back({ElementType::kI32, {}});
  const ValuePool visible = has_vjp ? pool.Only(everywhere_) : pool.Inside();
  const RoleScope role(builder_, RandomRole());
  const auto made = [&](ValuePool& inside, const std::vector<Type>& wanted, int count) {
    Grow(inside, static_cast<int>(random_.Integer(0, count)), depth + 1);
    if (random_.Chance(0.25)) WriteWhile(inside, depth + 1);
    if (random_.Chance(0.15)) WriteFor(inside, depth + 1);
    Vars yields;
    for (const Type& type : wanted) {
      const bool is_real = type.element == ElementType::kReal;
      const Var mixed = is_real ? Digest(inside, type.shape) : Like(inside, type);
      yields.push_back(is_real && Tamed() ? Bounded(mixed) : mixed);
    }
    return yields;
  };
  const auto body = [&](const Vars& inner) {
    ValuePool inside = RegionPool(visible, {inner});
    return made(inside, types, 3);
  };
  const auto vjp = [&](const Vars& operands, const Vars& results, const Vars& cotangents) {
    ValuePool inside = RegionPool(visible, {operands, results, cotangents});
    for (const Var& g : cotangents) inside.unused.insert(g.id);
    std::vector<Type> wanted;
    for (const Var& x : operands) {
      if (TypeOf(x) == ElementType::kReal) wanted.push_back({ElementType::kReal, x.shape()});
    }
    ++in_vjp_;
    const Vars yields = made(inside, wanted, 4);
    --in_vjp_;
    return yields;
  };
  const Vars results = has_vjp ? builder_.Call(args, body, vjp) : builder_.Call(args, body);
  for (const Var& x : results) Keep(pool, pool.Of(TypeOf(x)), x);
  return true;
}

// Of a and b: (sin a) b and the sum of a a; the vjp doubles in a loop, or in a region that is taken where
// |a| is small.
bool WorldWriter::WriteSmoothCall(ValuePool& pool) {
  const Var first = Real(pool);
  const Vars args = {first, RealOf(pool, first.shape())};
  const auto squared = [&](Var x) {
    const Var square = x * x;
    return x.shape().empty() ? square : builder_.Reduce(kSum, square);
  };
  const auto body = [&](const Vars& x) {
    return Vars{builder_.Apply(kSin, {x[0]}) * x[1], squared(x[0])};
  };
  const bool by_loop = random_.Chance(0.5);
  const std::string site = NewSite("small");
  const auto vjp = [&](const Vars& x, const Vars& y, const Vars& g) {
    const auto twice = [](const Vars& z) { return Vars{z[0] + z[0]}; };
    Var doubled = x[0];
    if (by_loop) {
      doubled = builder_.For(1, {x[0]}, [&](Var, const Vars& z) { return twice(z); })[0];
    } else {
      const Var small = builder_.Event(site, y[1], Comparison::kLt, builder_.Literal(1.0));
      doubled =
          builder_.Cond(small, {x[0]}, {[](const Vars& z) { return Vars{2.0 * z[0]}; }, twice})[0];
    }
    const Shape shape = x[0].shape();
    const Var of_sum = shape.empty() ? g[1] : builder_.Broadcast(g[1], shape, {});
    return Vars{g[0] * builder_.Apply(kCos, {x[0]}) * x[1] + of_sum * doubled,
                g[0] * builder_.Apply(kSin, {x[0]})};
  };
  for (const Var& x : builder_.Call(args, body, vjp)) Keep(pool, pool.reals, x);
  return true;
}

bool WorldWriter::WriteDraw(OpCode code, ValuePool& pool) {
  if (!sites_allowed_ || in_vjp_ > 0) return false;
  Attributes a;
  if (random_.Chance(0.6)) a.shape = main_shape_;
  Keep(pool, pool.reals, builder_.Do(code, {}, std::move(a)));
  return true;
}

// Where some bool holds, or from a step on.
bool WorldWriter::WriteHalt(ValuePool& pool, int depth) {
  if (!sites_allowed_ || depth > 0 || in_vjp_ > 0 || halts_ >= 2) return false;
  const Vars truths = ValuePool::OfShape(pool.choices, {});
  const Vars counts = ValuePool::OfShape(pool.i32s, {});
  if (truths.empty() && counts.empty()) return false;
  ++halts_;
  const bool has_truth = !truths.empty() && (counts.empty() || random_.Chance(0.6));
  const Var holds =
      has_truth
          ? Take(pool, truths)
          : builder_.Apply(kGe, {Take(pool, counts), builder_.Integer(random_.Integer(1, 6))});
  builder_.Halt("halt" + std::to_string(halts_), holds, !options_.smooth && random_.Chance(0.3));
  return true;
}

}  // namespace simgrad::sim::equality
