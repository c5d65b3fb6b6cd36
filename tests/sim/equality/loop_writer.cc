// Loops of a random world. Every while has a driver, its first carried value, which moves towards
// its test by a fixed rate, so that instances that start differently stop at different counts.
#include <functional>

#include "tests/sim/equality/world_writer.h"

namespace simgrad::sim::equality {
namespace {

using enum OpCode;

Shape Prefixed(int64_t n, const Shape& shape) {
  Shape result = {n};
  result.insert(result.end(), shape.begin(), shape.end());
  return result;
}

}  // namespace

WorldWriter::LoopPlan WorldWriter::PlanLoop(int64_t elements, int depth) {
  LoopPlan plan;
  plan.depth = depth;
  plan.options.elements = elements;
  plan.options.max_iter = random_.Integer(1, depth == 0 ? 8 : depth == 1 ? 4 : 3);
  plan.options.cap_order = random_.Chance(0.5) ? CapOrder::kTestFirst : CapOrder::kCapFirst;
  plan.pattern = static_cast<Pattern>(random_.Integer(0, 3));
  plan.is_predicate = random_.Chance(0.3);
  plan.has_entry = !plan.is_predicate && random_.Chance(0.3);
  switch (plan.pattern) {
    case Pattern::kShrink:
    case Pattern::kProject:
      plan.options.comparison = random_.Chance(0.5) ? Comparison::kLt : Comparison::kLe;
      break;
    case Pattern::kGrow:
      plan.options.comparison = random_.Chance(0.5) ? Comparison::kGt : Comparison::kGe;
      break;
    case Pattern::kCount:
      plan.options.comparison = static_cast<Comparison>(random_.Integer(2, 5));
      break;
  }
  plan.options.site = NewSite("loop");
  return plan;
}

// x with a leading axis of n.
Var WorldWriter::WithLeading(ValuePool& pool, Var x, int64_t n) {
  pool.unused.erase(x.id);
  if (!x.shape().empty() && x.shape()[0] == n) return x;
  if (x.shape().size() >= 3 || n * ElementCount(x.shape()) > MaxElements()) {
    return TypeOf(x) == ElementType::kReal ? RealOf(pool, {n})
                                           : builder_.Integer(1, TypeOf(x), {n});
  }
  std::vector<int64_t> dims;
  for (size_t i = 0; i < x.shape().size(); ++i) dims.push_back(static_cast<int64_t>(i) + 1);
  return builder_.Broadcast(x, Prefixed(n, x.shape()), dims);
}

Vars WorldWriter::OtherCarried(ValuePool& pool, const LoopPlan& plan) {
  Vars carried;
  if (plan.pattern == Pattern::kCount) carried.push_back(builder_.Literal(0.0));
  for (int64_t more = random_.Integer(0, 2); more > 0; --more) carried.push_back(Real(pool));
  for (const Vars* list : {&pool.i32s, &pool.i64s, &pool.u32s, &pool.u8s, &pool.choices}) {
    if (!options_.smooth && !list->empty() && random_.Chance(0.15)) {
      carried.push_back(Take(pool, *list));
    }
  }
  if (plan.options.elements == 0) return carried;
  for (Var& x : carried) x = WithLeading(pool, x, plan.options.elements);
  return carried;
}

ValuePool WorldWriter::RegionPool(const ValuePool& visible, const std::vector<Vars>& lists) {
  ValuePool pool = visible.Inside();
  for (const Vars& list : lists) {
    for (const Var& x : list) pool.Of(TypeOf(x)).push_back(x);
  }
  return pool;
}

// A scalar that is small where the driver is.
Var WorldWriter::Residual(Var driver) {
  const double kind = random_.Uniform(0.0, 1.0);
  if (driver.shape().empty()) {
    return kind < 0.5 ? builder_.Apply(kAbs, {driver}) : driver * driver;
  }
  if (kind < 0.4) return builder_.Reduce(kSum, builder_.Apply(kAbs, {driver}));
  if (kind < 0.7) return builder_.Reduce(kSum, driver * driver);
  const Var flat = builder_.Reshape(driver, {ElementCount(driver.shape())});
  if (flat.shape()[0] == 0) return builder_.Reduce(kSum, flat);
  return builder_.Reduce(kReduceMax, builder_.Apply(kAbs, {flat}));
}

LoopTest WorldWriter::WriteTest(const LoopPlan& plan, const ValuePool& visible, const Vars& carried,
                                const Vars& mapped) {
  ValuePool pool = RegionPool(visible, {carried, mapped});
  Grow(pool, static_cast<int>(random_.Integer(0, 2)), plan.depth + 1);
  if (random_.Chance(0.1)) WriteWhile(pool, plan.depth + 1);
  LoopTest test;
  const Var driver = carried[0];
  test.rhs = Threshold(pool);
  switch (plan.pattern) {
    case Pattern::kShrink:
    case Pattern::kGrow:
      test.lhs = Residual(driver);
      break;
    case Pattern::kProject: {
      RoleScope solver(builder_, Role::kSolver);
      SiteScope none(builder_, "");
      test.exports = {Relu(-driver)};
      RoleScope termination(builder_, Role::kTermination);
      test.lhs = driver.shape().empty() ? test.exports[0] : builder_.Reduce(kSum, test.exports[0]);
      break;
    }
    case Pattern::kCount: {
      // An integer that counts against the size of the driver; (0 - 0) where `ne` should hold.
      const Var count = carried[1].shape().empty() ? carried[1] : builder_.Reduce(kSum, carried[1]);
      const Var size = builder_.Apply(kFloor, {3.0 * Residual(driver)});
      const bool differs = plan.options.comparison == Comparison::kNe;
      test.lhs = differs ? builder_.Apply(kFloor, {count * (0.25 * size)}) : count;
      if (!differs) test.rhs = size;
      break;
    }
  }
  if (random_.Chance(0.1)) test.lhs = builder_.Cast(test.lhs);
  if (plan.has_entry) test.entry = Threshold(pool);
  for (const Vars* list : {&pool.reals, &pool.i32s, &pool.u32s, &pool.choices, &pool.anonymous}) {
    if (!list->empty() && random_.Chance(0.3)) test.exports.push_back(Take(pool, *list));
  }
  return test;
}

// A scalar bool.
Var WorldWriter::Condition(ValuePool& pool, Var driver) {
  const double kind = random_.Uniform(0.0, 1.0);
  const Vars truths = ValuePool::OfShape(pool.choices, {});
  const Vars counts = ValuePool::OfShape(pool.i32s, {});
  if (kind < 0.35 && !truths.empty()) return Take(pool, truths);
  if (kind < 0.55 && !counts.empty()) {
    const Var bound = builder_.Integer(random_.Integer(0, 4));
    return builder_.Apply(random_.Chance(0.5) ? kGe : kEq, {Take(pool, counts), bound});
  }
  const bool has_any = InfoOf(kAny).in_worlds && !driver.shape().empty();
  if (kind < 0.75 && has_any && ElementCount(driver.shape()) > 0) {
    const Var size = builder_.Apply(kAbs, {driver});
    const Var bound = builder_.Broadcast(Threshold(pool), driver.shape(), {});
    return builder_.Reduce(kAny, builder_.Apply(kGt, {size, bound}));
  }
  const Var first = Real(pool);
  const Var sum = first + RealOf(pool, first.shape());
  const Var one = sum.shape().empty() ? sum : builder_.Reduce(kSum, sum);
  return builder_.Apply(random_.Chance(0.5) ? kLt : kGe, {one, Threshold(pool)});
}

LoopPredicate WorldWriter::WritePredicate(const LoopPlan& plan, const ValuePool& visible,
                                          const Vars& carried, const Vars& mapped) {
  const LoopTest test = WriteTest(plan, visible, carried, mapped);
  ValuePool pool = RegionPool(visible, {carried, mapped});
  const auto code =
      static_cast<OpCode>(static_cast<int>(kLt) + static_cast<int>(plan.options.comparison));
  LoopPredicate predicate{builder_.Apply(code, {test.lhs, test.rhs}), test.exports};
  for (int64_t more = random_.Integer(0, 3); more > 0; --more) {
    Var other = Condition(pool, carried[0]);
    if (random_.Chance(0.3)) other = Not(other);
    const double kind = random_.Uniform(0.0, 1.0);
    if (kind < 0.4) {
      predicate.stop = builder_.Apply(kOr, {predicate.stop, other});
    } else if (kind < 0.7) {
      predicate.stop = And(other, predicate.stop);
    } else if (kind < 0.85) {
      const Var as_count = builder_.Convert(other, ElementType::kI32);
      const Var held = builder_.Apply(kGe, {as_count, builder_.Integer(1)});
      predicate.stop = builder_.Apply(kOr, {held, predicate.stop});
    } else {
      const Vars whole = ValuePool::OfShape(pool.choices, {});
      if (!whole.empty())
        predicate.stop = builder_.Apply(kSelect, {Take(pool, whole), other, predicate.stop});
    }
  }
  return predicate;
}

// Its regions are made of what can be seen here and of its arguments.
bool WorldWriter::WriteCond(ValuePool& pool, int depth) {
  const Vars truths = ValuePool::OfShape(pool.choices, {});
  const Vars numbers = options_.smooth ? Vars() : ValuePool::OfShape(pool.i32s, {});
  if (depth >= 3 || conds_ >= 6 || (truths.empty() && numbers.empty())) return false;
  ++conds_;
  const bool is_bool = numbers.empty() || (!truths.empty() && random_.Chance(0.6));
  const Var choice = is_bool ? Take(pool, truths) : Take(pool, numbers);
  Vars args;
  for (int64_t more = random_.Integer(0, 2); more > 0; --more) args.push_back(Real(pool));
  std::vector<Type> types = {{ElementType::kReal, Real(pool).shape()}};
  if (random_.Chance(0.3)) types.push_back({ElementType::kReal, {}});
  if (!options_.smooth && random_.Chance(0.2)) types.push_back({ElementType::kI32, {}});
  if (!options_.smooth && random_.Chance(0.2)) types.push_back({ElementType::kBool, {}});
  const ValuePool visible = pool.Inside();
  const RoleScope role(builder_, RandomRole());
  const auto region = [&](const Vars& inner) {
    ValuePool inside = RegionPool(visible, {inner});
    Grow(inside, static_cast<int>(random_.Integer(0, 3)), depth + 1);
    if (random_.Chance(0.2)) WriteWhile(inside, depth + 1);
    Vars yields;
    for (const Type& type : types) {
      if (type.element != ElementType::kReal) {
        yields.push_back(Like(inside, type));
      } else {
        const Var mixed = Digest(inside, type.shape);
        yields.push_back(Tamed() ? Bounded(mixed) : mixed);
      }
    }
    return yields;
  };
  const int64_t count = is_bool ? 2 : random_.Integer(2, 4);
  const std::vector<std::function<Vars(const Vars&)>> regions(static_cast<size_t>(count), region);
  for (const Var& x : builder_.Cond(choice, args, regions)) Keep(pool, pool.Of(TypeOf(x)), x);
  return true;
}

Vars WorldWriter::WriteBody(const LoopPlan& plan, const ValuePool& visible, const Vars& carried,
                            const Vars& exports, const Vars& mapped) {
  ValuePool pool = RegionPool(visible, {carried, mapped});
  for (const Var& x : exports) {
    const bool truth = TypeOf(x) == ElementType::kBool;
    (truth ? pool.anonymous : pool.Of(TypeOf(x))).push_back(x);
  }
  const int64_t most = !IsLarge() ? 3 : plan.depth == 0 ? 40 : 15;
  Grow(pool, static_cast<int>(random_.Integer(0, most)), plan.depth + 1);
  if (random_.Chance(0.3)) WriteWhile(pool, plan.depth + 1);
  if (random_.Chance(0.1)) WriteFor(pool, plan.depth + 1);
  static const std::vector<double> kRates = {0.25, 0.5, 0.5, 0.7};
  const Var rate = builder_.Literal(random_.Pick(kRates));
  const Var driver = carried[0];
  Vars yields;
  switch (plan.pattern) {
    case Pattern::kShrink:
      yields.push_back(driver * rate);
      break;
    case Pattern::kProject:
      yields.push_back(driver + rate * exports[0]);
      break;
    case Pattern::kGrow:
      yields.push_back(driver + driver * rate);
      break;
    case Pattern::kCount:
      yields.push_back(driver);
      break;
  }
  if (random_.Chance(0.7)) {
    yields[0] = yields[0] + 0.0625 * Bounded(Digest(pool, driver.shape()));
  }
  for (size_t k = 1; k < carried.size(); ++k) {
    const Type type = builder_.program()[carried[k].id].type;
    if (plan.pattern == Pattern::kCount && k == 1) {
      yields.push_back(carried[k] + builder_.Literal(1.0));
    } else if (type.element == ElementType::kReal) {
      const Var mixed = Digest(pool, type.shape);
      yields.push_back(Tamed() ? 0.5 * carried[k] + Bounded(mixed) : mixed);
    } else {
      yields.push_back(Like(pool, type));
    }
  }
  return yields;
}

bool WorldWriter::WriteWhile(ValuePool& pool, int depth) {
  if (!sites_allowed_ || depth >= 3 || loops_ >= 6) return false;
  ++loops_;
  const Vars leading = ValuePool::Where(
      pool.reals, [](const Var& x) { return !x.shape().empty() && x.shape()[0] > 0; });
  const bool per_element = !leading.empty() && random_.Chance(0.45);
  const Var start = per_element ? Take(pool, leading) : Real(pool);
  const LoopPlan plan = PlanLoop(per_element ? start.shape()[0] : 0, depth);
  static const std::vector<double> kScales = {1.0, 1.0, 2.0, 4.0};
  Vars carried = {random_.Pick(kScales) * start};
  for (const Var& x : OtherCarried(pool, plan)) carried.push_back(x);
  Vars mapped;
  for (int64_t more = per_element ? random_.Integer(0, 2) : 0; more > 0; --more) {
    mapped.push_back(WithLeading(pool, Real(pool), plan.options.elements));
  }
  const ValuePool visible = per_element ? pool.Only(everywhere_) : pool.Inside();
  const std::set<ValueId> everywhere = everywhere_;
  // In a body the driver must be what the plan moves, whatever role it has around.
  const RoleScope role(builder_, random_.Chance(0.7) ? Role::kSolver : RandomRole());
  const auto body = [&](const Vars& inner, const Vars& exports, const Vars& inner_mapped) {
    return WriteBody(plan, visible, inner, exports, inner_mapped);
  };
  LoopResult result;
  if (plan.is_predicate) {
    result = builder_.While(
        plan.options, carried, mapped,
        [&](const Vars& inner, const Vars& inner_mapped) {
          return WritePredicate(plan, visible, inner, inner_mapped);
        },
        body);
  } else {
    result = builder_.While(
        plan.options, carried, mapped,
        [&](const Vars& inner, const Vars& inner_mapped) {
          return WriteTest(plan, visible, inner, inner_mapped);
        },
        body);
  }
  for (const Var& x : result.carried) Keep(pool, pool.Of(TypeOf(x)), x);
  for (const Var& x : result.exports) {
    const bool truth = TypeOf(x) == ElementType::kBool;
    Keep(pool, truth ? pool.anonymous : pool.Of(TypeOf(x)), x);
  }
  Keep(pool, pool.i32s, result.iterations);
  return true;
}

bool WorldWriter::WriteFor(ValuePool& pool, int depth) {
  if (depth >= 3 || loops_ >= 6) return false;
  ++loops_;
  const bool stacks = random_.Chance(0.4);
  Vars carried;
  for (int64_t more = random_.Integer(stacks ? 0 : 1, 2); more > 0; --more) {
    carried.push_back(Real(pool));
  }
  if (!options_.smooth && !pool.i32s.empty() && random_.Chance(0.2)) {
    carried.push_back(Take(pool, pool.i32s));
  }
  int64_t trips = random_.Chance(0.1) ? 0 : random_.Integer(1, depth == 0 ? 4 : 2);
  Vars scanned;
  const Vars leading = ValuePool::Where(
      pool.reals, [](const Var& x) { return !x.shape().empty() && x.shape()[0] < 6; });
  if (!leading.empty() && random_.Chance(0.5)) {
    scanned.push_back(Take(pool, leading));
    trips = scanned[0].shape()[0];
    if (random_.Chance(0.4)) scanned.push_back(WithLeading(pool, Real(pool), trips));
    if (!options_.smooth && !pool.choices.empty() && random_.Chance(0.3)) {
      scanned.push_back(WithLeading(pool, Take(pool, pool.choices), trips));
    }
  }
  const ValuePool visible = pool.Inside();
  const auto body = [&](Var index, const Vars& inner, const Vars& elements) {
    ValuePool inside = RegionPool(visible, {inner, elements});
    if (!options_.smooth) inside.i32s.push_back(index);
    Grow(inside, static_cast<int>(random_.Integer(1, 3)), depth + 1);
    if (random_.Chance(0.25)) WriteWhile(inside, depth + 1);
    Vars yields;
    for (const Var& x : inner) {
      const Type type = builder_.program()[x.id].type;
      if (type.element != ElementType::kReal) {
        yields.push_back(Like(inside, type));
        continue;
      }
      Var mixed = Digest(inside, type.shape);
      for (const Var& y : elements) {
        if (TypeOf(y) == ElementType::kReal && y.shape() == type.shape) mixed = mixed + y;
      }
      yields.push_back(Tamed() ? 0.5 * x + Bounded(mixed) : mixed);
    }
    if (stacks || yields.empty()) {
      const Var made = Real(inside);
      yields.push_back(made.shape().size() < 3 ? made : builder_.Reduce(kSum, made));
      if (!inside.choices.empty() && random_.Chance(0.3)) {
        const Var truth = Take(inside, inside.choices);
        if (truth.shape().empty()) yields.push_back(truth);
      }
    }
    return yields;
  };
  const bool reverse = random_.Chance(0.4);
  const Vars results = builder_.Scan(trips, carried, scanned, reverse, body);
  for (const Var& x : results) Keep(pool, pool.Of(TypeOf(x)), x);
  return true;
}

}  // namespace simgrad::sim::equality
