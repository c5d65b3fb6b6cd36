// Single operations of a random world.
#include <numeric>

#include "sim/op/op_info.h"
#include "tests/sim/equality/world_writer.h"

namespace simgrad::sim::equality {
using enum OpCode;

OpCode WorldWriter::RandomOp() {
  static const std::vector<OpCode> kAll = [] {
    std::vector<OpCode> all;
    EachOp([&](OpCode code, const OpInfo& info) {
      if (info.in_worlds) all.push_back(code);
    });
    return all;
  }();
  OpCode code = random_.Chance(0.2) ? options_.focus : random_.Pick(kAll);
  while (options_.smooth && !InfoOf(code).smooth) code = random_.Pick(kAll);
  return code;
}

Role WorldWriter::RandomRole() {
  static const std::vector<Role> kRoles = {
      Role::kDynamics, Role::kDynamics, Role::kDynamics,    Role::kSolver, Role::kSolver,
      Role::kState,    Role::kNetwork,  Role::kTermination, Role::kEvent,  Role::kObjective};
  return random_.Pick(kRoles);
}

std::string WorldWriter::NewSite(const std::string& kind) {
  sites_.push_back(kind + std::to_string(sites_.size()));
  return sites_.back();
}

void WorldWriter::Keep(ValuePool& pool, Vars& list, Var x) {
  list.push_back(x);
  pool.unused.insert(x.id);
}

Var WorldWriter::Take(ValuePool& pool, const Vars& from) {
  const Vars fresh =
      ValuePool::Where(from, [&](const Var& x) { return pool.unused.count(x.id) != 0; });
  const Var taken = random_.Pick(!fresh.empty() && random_.Chance(0.6) ? fresh : from);
  pool.unused.erase(taken.id);
  return taken;
}

Var WorldWriter::Real(ValuePool& pool) {
  if (pool.reals.empty()) return builder_.Literal(random_.Uniform(-2.0, 2.0));
  return Take(pool, pool.reals);
}

Var WorldWriter::RealOf(ValuePool& pool, const Shape& shape) {
  const Vars same = ValuePool::OfShape(pool.reals, shape);
  if (!same.empty() && random_.Chance(0.85)) return Take(pool, same);
  const Vars scalars = ValuePool::OfShape(pool.reals, {});
  if (scalars.empty()) return builder_.Literal(random_.Uniform(-2.0, 2.0), shape);
  const Var scalar = Take(pool, scalars);
  return shape.empty() ? scalar : builder_.Broadcast(scalar, shape, {});
}

Var WorldWriter::Like(ValuePool& pool, const Type& type) {
  if (type.element == ElementType::kReal) return RealOf(pool, type.shape);
  const Vars same = ValuePool::OfShape(pool.Of(type.element), type.shape);
  if (!same.empty()) return Take(pool, same);
  const bool truth = type.element == ElementType::kBool;
  return Whole(type, truth ? 0 : -5, truth ? 1 : 5);
}

Var WorldWriter::Whole(const Type& type, int64_t low, int64_t high) {
  int64_t n = random_.Integer(low, high);
  if (n < 0 && type.element == ElementType::kU32) n += int64_t{1} << 32;
  if (n < 0 && type.element == ElementType::kU8) n += 1 << 8;
  return builder_.Integer(n, type.element, type.shape);
}

ElementType WorldWriter::AnyInteger(const ValuePool& pool) {
  const double kind = random_.Uniform(0.0, 1.0);
  if (kind < 0.25 && !pool.u32s.empty()) return ElementType::kU32;
  if (kind < 0.4 && !pool.u8s.empty()) return ElementType::kU8;
  return kind < 0.75 ? ElementType::kI32 : ElementType::kI64;
}

double WorldWriter::RandomFill(ElementType element) {
  // Of reals also a zero with a sign, a number that becomes one, and one that is rounded.
  static const std::vector<double> kReals = {-2.0, -1.0, 0.0, 1.0, 2.0, -0.0, -1e-300, 0.1};
  if (element == ElementType::kReal) return random_.Pick(kReals);
  const bool natural = element == ElementType::kU32 || element == ElementType::kU8;
  return static_cast<double>(random_.Integer(natural ? 0 : -2, natural ? 255 : 2));
}

Var WorldWriter::Threshold(ValuePool& pool) {
  static const std::vector<double> kThresholds = {0.0, 0x1p-6, 1e-3, 0.25, 0.5, 1.0, 1.5};
  const double value = random_.Pick(kThresholds);
  world_.thresholds.push_back(value);
  constexpr int kMostConfigs = 64;
  if (configs_ < kMostConfigs && random_.Chance(0.5)) {
    const Var config = builder_.Config("c" + std::to_string(configs_++), value);
    everywhere_.insert(config.id);
    inputs_.reals.push_back(config);
    return config;
  }
  const Vars scalars = ValuePool::OfShape(pool.reals, {});
  if (!scalars.empty() && random_.Chance(0.15)) return Take(pool, scalars);
  return builder_.Literal(value);
}

Var WorldWriter::Positive(Var x) { return builder_.Apply(kSoftplus, {x}) + builder_.Literal(0.25); }

Var WorldWriter::Bounded(Var x) { return builder_.Apply(random_.Chance(0.5) ? kTanh : kSin, {x}); }

Var WorldWriter::Within(Domain domain, Var x) {
  switch (domain) {
    case Domain::kPositive:
      return Positive(x);
    case Domain::kBounded:
      return Bounded(x);
    case Domain::kInside:
      return builder_.Literal(0.75) * Bounded(x);
    case Domain::kAll:
      break;
  }
  return x;
}

Var WorldWriter::Condense(ValuePool& pool, Var x, const Shape& shape) {
  pool.unused.erase(x.id);
  if (TypeOf(x) != ElementType::kReal) x = builder_.Convert(x, ElementType::kReal);
  if (x.shape() == shape) return x;
  if (!x.shape().empty()) x = builder_.Reduce(kSum, x);
  return shape.empty() ? x : builder_.Broadcast(x, shape, {});
}

Var WorldWriter::Digest(ValuePool& pool, const Shape& shape) {
  Vars parts;
  for (const Vars* list : {&pool.reals, &pool.i32s, &pool.i64s, &pool.u32s, &pool.u8s,
                           &pool.choices, &pool.anonymous}) {
    for (const Var& x : *list) {
      if (pool.unused.count(x.id) != 0) parts.push_back(x);
    }
  }
  while (parts.size() > 3) {
    parts.erase(parts.begin() + random_.Integer(0, static_cast<int64_t>(parts.size()) - 1));
  }
  Var sum = RealOf(pool, shape);
  if (Tamed()) sum = Bounded(sum);
  for (const Var& x : parts) {
    const Var part = Condense(pool, x, shape);
    sum = sum + 0.5 * (Tamed() ? Bounded(part) : part);
  }
  return sum;
}

// Of every such value that is no anonymous bool.
Var WorldWriter::DigestAll(ValuePool& pool, const Shape& shape) {
  Vars parts;
  for (const Vars* list :
       {&pool.reals, &pool.i32s, &pool.i64s, &pool.u32s, &pool.u8s, &pool.choices}) {
    for (const Var& x : *list) {
      if (pool.unused.count(x.id) != 0) parts.push_back(x);
    }
  }
  Var sum = Bounded(RealOf(pool, shape));
  for (const Var& x : parts) sum = sum + 0.125 * Bounded(Condense(pool, x, shape));
  return sum;
}

void WorldWriter::Grow(ValuePool& pool, int count, int depth) {
  for (int i = 0; i < count; ++i) {
    const RoleScope role(builder_, random_.Chance(0.3) ? builder_.role() : RandomRole());
    const bool sited = !sites_.empty() && random_.Chance(0.1);
    const SiteScope site(builder_, sited ? random_.Pick(sites_) : builder_.site());
    builder_.Label("line " + std::to_string(builder_.program().values.size()));
    for (int attempt = 0; attempt < 4; ++attempt) {
      if (WriteOp(RandomOp(), pool, depth)) break;
    }
  }
}

bool WorldWriter::WriteOp(OpCode code, ValuePool& pool, int depth) {
  switch (InfoOf(code).op_class) {
    case OpClass::kElementwise: {
      const bool integers =
          InfoOf(code).on_integers != nullptr && !options_.smooth && random_.Chance(0.25);
      if (!integers || !WriteIntegers(code, pool)) WriteReals(code, pool);
      return true;
    }
    case OpClass::kCompare:
      return WriteCompare(code, pool);
    case OpClass::kPredicate:
      Keep(pool, pool.choices, builder_.Apply(code, {Real(pool)}));
      return true;
    case OpClass::kLogic:
      return WriteLogic(code, pool);
    case OpClass::kChoice:
      return WriteSelect(pool);
    case OpClass::kShape:
      return WriteShape(code, pool);
    case OpClass::kReduction:
      return WriteReduction(code, pool);
    case OpClass::kIndexing:
      return WriteIndexing(code, pool);
    case OpClass::kLinear:
      return WriteLinear(code, pool);
    case OpClass::kPrecision:
      return WritePrecision(code, pool);
    case OpClass::kConstant:
      if (code == kUniform || code == kNormal) return WriteDraw(code, pool);
      WriteLiteral(pool);
      return true;
    case OpClass::kControl:
      if (code == kEvent) return WriteEvent(pool);
      if (code == kChoice) return WriteChoice(pool);
      if (code == kCond) return WriteCond(pool, depth);
      if (code == kAccept) return WriteAccept(pool);
      if (code == kCall) return WriteCall(pool, depth);
      if (code == kHalt) return WriteHalt(pool, depth);
      if (code == kFor) return WriteFor(pool, depth);
      if (code == kWhile) return WriteWhile(pool, depth);
      break;
    case OpClass::kAdjoint:
      break;
  }
  return false;
}

bool WorldWriter::WriteIntegers(OpCode code, ValuePool& pool) {
  Vars& list = pool.Of(AnyInteger(pool));
  if (list.empty()) return false;
  const Var a = Take(pool, list);
  Vars operands = {a};
  while (static_cast<int>(operands.size()) < InfoOf(code).operands.most) {
    const Vars same = ValuePool::OfShape(list, a.shape());
    const bool literal = random_.Chance(0.3);
    operands.push_back(literal ? Whole({TypeOf(a), a.shape()}, -3, 3) : Take(pool, same));
  }
  Keep(pool, list, builder_.Apply(code, operands));
  return true;
}

void WorldWriter::WriteReals(OpCode code, ValuePool& pool) {
  Var a = Real(pool);
  Vars rest;
  for (int i = 1; i < InfoOf(code).operands.most; ++i) {
    rest.push_back(random_.Chance(0.2) ? RealOf(pool, {}) : RealOf(pool, a.shape()));
  }
  // Into the domain, and away from where the result explodes.
  if (Tamed()) {
    a = Within(InfoOf(code).domains[0], a);
    for (size_t i = 0; i < rest.size(); ++i) rest[i] = Within(InfoOf(code).domains[i + 1], rest[i]);
  }
  rest.insert(rest.begin(), a);
  Keep(pool, pool.reals, builder_.Apply(code, rest));
}

bool WorldWriter::WriteCompare(OpCode code, ValuePool& pool) {
  const bool equality = code == kEq || code == kNe;
  if (random_.Chance(0.4)) {
    const Var a = Real(pool);
    const Var b = random_.Chance(0.5) ? Threshold(pool) : RealOf(pool, a.shape());
    const bool decides = builder_.program().level != TestLevel::kDeclared;
    Keep(pool, decides ? pool.choices : pool.anonymous, builder_.Apply(code, {a, b}));
    return true;
  }
  Vars& list = equality && random_.Chance(0.2) ? pool.choices : pool.Of(AnyInteger(pool));
  if (list.empty()) return false;
  const Var a = Take(pool, list);
  const Var b = Like(pool, {TypeOf(a), a.shape()});
  Keep(pool, pool.choices, builder_.Apply(code, {a, b}));
  return true;
}

bool WorldWriter::WriteBits(OpCode code, ValuePool& pool) {
  Vars& list = pool.Of(AnyInteger(pool));
  if (list.empty()) return false;
  Vars operands = {Take(pool, list)};
  const Type type{TypeOf(operands[0]), operands[0].shape()};
  const bool shifts = code == kShl || code == kShr;
  if (code != kNot) {
    operands.push_back(shifts && random_.Chance(0.7) ? Whole(type, -1, 66) : Like(pool, type));
  }
  Keep(pool, list, builder_.Apply(code, operands));
  return true;
}

bool WorldWriter::WriteLogic(OpCode code, ValuePool& pool) {
  const bool shifts = code == kShl || code == kShr;
  if (shifts || (!options_.smooth && random_.Chance(0.4))) return WriteBits(code, pool);
  const bool anonymous = !pool.anonymous.empty() && (pool.choices.empty() || random_.Chance(0.4));
  if (!anonymous && pool.choices.empty()) return false;
  const Var a = Take(pool, anonymous ? pool.anonymous : pool.choices);
  if (code == kNot) {
    Keep(pool, anonymous ? pool.anonymous : pool.choices, Not(a));
    return true;
  }
  const Vars same = ValuePool::OfShape(pool.choices, a.shape());
  const Var b =
      same.empty() ? builder_.Integer(1, ElementType::kBool, a.shape()) : Take(pool, same);
  Keep(pool, anonymous ? pool.anonymous : pool.choices, builder_.Apply(code, {a, b}));
  return true;
}

bool WorldWriter::WriteSelect(ValuePool& pool) {
  if (pool.choices.empty() && !WriteEvent(pool)) return false;
  const Var condition = Take(pool, pool.choices);
  const double kind = options_.smooth ? 1.0 : random_.Uniform(0.0, 1.0);
  const ElementType element = kind < 0.15 ? AnyInteger(pool) : ElementType::kReal;
  if (kind < 0.15 && !pool.Of(element).empty()) {
    const Type type{element, condition.shape()};
    Keep(pool, pool.Of(element), Select(condition, Like(pool, type), Like(pool, type)));
  } else if (kind < 0.25) {
    const Type type{ElementType::kBool, condition.shape()};
    Keep(pool, pool.choices, Select(condition, Like(pool, type), Like(pool, type)));
  } else {
    const Var a = condition.shape().empty() ? Real(pool) : RealOf(pool, condition.shape());
    Keep(pool, pool.reals, Select(condition, a, RealOf(pool, a.shape())));
  }
  return true;
}

bool WorldWriter::WriteEvent(ValuePool& pool) {
  if (!sites_allowed_) return false;
  std::optional<Var> guard;
  bool integers = !options_.smooth && random_.Chance(0.15);
  const ElementType element = integers ? AnyInteger(pool) : ElementType::kReal;
  integers = integers && !pool.Of(element).empty();
  const Var a = integers ? Take(pool, pool.Of(element)) : Real(pool);
  const Var b = integers              ? Like(pool, {element, a.shape()})
                : random_.Chance(0.7) ? Threshold(pool)
                                      : RealOf(pool, a.shape());
  const Vars& guards =
      !pool.anonymous.empty() && random_.Chance(0.5) ? pool.anonymous : pool.choices;
  const Vars fitting = ValuePool::Where(
      guards, [&](const Var& x) { return x.shape().empty() || x.shape() == a.shape(); });
  if (!fitting.empty() && random_.Chance(0.75)) guard = Take(pool, fitting);
  const auto comparison = static_cast<Comparison>(random_.Integer(0, 5));
  Keep(pool, pool.choices, builder_.Event(NewSite("event"), a, comparison, b, guard));
  return true;
}

bool WorldWriter::WriteChoice(ValuePool& pool) {
  if (!sites_allowed_) return false;
  Vars& list = pool.Of(AnyInteger(pool));
  if (list.empty()) return false;
  const Var chosen = Take(pool, list);
  const Var a = RealOf(pool, chosen.shape());
  const Var b = random_.Chance(0.5) ? Threshold(pool) : RealOf(pool, chosen.shape());
  Keep(pool, list, builder_.Choice(NewSite("choice"), chosen, a, b));
  return true;
}

bool WorldWriter::WriteAccept(ValuePool& pool) {
  if (!sites_allowed_) return false;
  const Var trial = Real(pool);
  const Var current = RealOf(pool, trial.shape());
  const Var a = random_.Chance(0.5) ? RealOf(pool, {}) : RealOf(pool, trial.shape());
  const Var bound = Threshold(pool);
  const Var b = a.shape().empty() ? bound : builder_.Broadcast(bound, a.shape(), {});
  const auto comparison = static_cast<Comparison>(random_.Integer(0, 5));
  Keep(pool, pool.reals, builder_.Accept(NewSite("accept"), a, comparison, b, trial, current));
  return true;
}

void WorldWriter::WriteLiteral(ValuePool& pool) {
  const double kind = random_.Uniform(0.0, 1.0);
  if (kind < 0.2 && !options_.smooth) {
    static const std::vector<ElementType> kElements = {ElementType::kI32, ElementType::kI32,
                                                       ElementType::kI64, ElementType::kU32,
                                                       ElementType::kU8};
    const ElementType element = random_.Pick(kElements);
    const Var x = Whole({element, random_.Chance(0.5) ? main_shape_ : Shape{}}, -9, 9);
    everywhere_.insert(x.id);
    Keep(pool, pool.Of(element), x);
    return;
  }
  Var x = builder_.Literal(random_.Uniform(-2.0, 2.0));
  if (kind > 0.7) {
    std::vector<double> values(static_cast<size_t>(ElementCount(main_shape_)));
    for (double& value : values) value = random_.Uniform(-2.0, 2.0);
    if (!values.empty()) x = builder_.LiteralArray(values, main_shape_);
  }
  everywhere_.insert(x.id);
  Keep(pool, pool.reals, x);
}

bool WorldWriter::WriteShape(OpCode code, ValuePool& pool) {
  const double kind = options_.smooth ? 1.0 : random_.Uniform(0.0, 1.0);
  const ElementType element = kind < 0.1   ? AnyInteger(pool)
                              : kind < 0.2 ? ElementType::kBool
                                           : ElementType::kReal;
  if (code == kIota) {
    const Shape of = main_shape_.empty() ? Shape{random_.Integer(1, 4)} : main_shape_;
    const int64_t axis = random_.Integer(0, static_cast<int64_t>(of.size()) - 1);
    const ElementType as = random_.Chance(0.5) ? ElementType::kI32 : AnyInteger(pool);
    Keep(pool, pool.Of(as), builder_.Iota(of, axis, as));
    return true;
  }
  if (pool.Of(element).empty()) return false;
  if (code == kConcat) return WriteConcat(pool, element);
  const Var x = Take(pool, pool.Of(element));
  const Shape shape = x.shape();
  const int64_t rank = static_cast<int64_t>(shape.size());
  const int64_t count = ElementCount(shape);
  if (code == kBroadcast) {
    const int64_t length = random_.Chance(0.04) ? 0 : random_.Integer(1, 3);
    if (rank >= 3 || count * length > MaxElements()) return false;
    Shape wide = shape;
    const int64_t at = random_.Integer(0, rank);
    wide.insert(wide.begin() + at, length);
    std::vector<int64_t> dims;
    for (int64_t i = 0; i < rank; ++i) dims.push_back(i < at ? i : i + 1);
    Keep(pool, pool.Of(element), builder_.Broadcast(x, wide, dims));
    return true;
  }
  if (code == kReshape) {
    const Shape target = random_.Chance(0.5) ? Shape{count} : Shape{1, count};
    Keep(pool, pool.Of(element), builder_.Reshape(x, target));
    return true;
  }
  if (rank == 0) return false;
  if (code == kTake) return WriteTake(pool, element, x);
  return WriteWindow(code, pool, element, x);
}

bool WorldWriter::WriteTake(ValuePool& pool, ElementType element, Var x) {
  const int64_t count = ElementCount(x.shape());
  Attributes a;
  a.shape = random_.Chance(0.5) ? Shape{random_.Integer(0, 6)}
                                : Shape{random_.Integer(1, 3), random_.Integer(1, 3)};
  for (int64_t k = ElementCount(a.shape); k > 0; --k) {
    a.start.push_back(count == 0 || random_.Chance(0.15) ? -1 : random_.Integer(0, count - 1));
  }
  if (random_.Chance(0.5)) a.literal = {RandomFill(element)};
  Keep(pool, pool.Of(element), builder_.Do(kTake, {x}, std::move(a)));
  return true;
}

bool WorldWriter::WriteWindow(OpCode code, ValuePool& pool, ElementType element, Var x) {
  const Shape shape = x.shape();
  Attributes a;
  if (code == kTranspose) {
    for (size_t k = 0; k < shape.size(); ++k) a.dims.push_back(static_cast<int64_t>(k));
    for (size_t k = shape.size(); k-- > 1;) {
      std::swap(a.dims[k],
                a.dims[static_cast<size_t>(random_.Integer(0, static_cast<int64_t>(k)))]);
    }
    Keep(pool, pool.Of(element), builder_.Do(kTranspose, {x}, std::move(a)));
    return true;
  }
  if (code == kPad) {
    for (int64_t length : shape) {
      const int64_t low = random_.Integer(0, 2);
      const int64_t between = random_.Chance(0.3) ? random_.Integer(1, 2) : 0;
      const int64_t own = length == 0 ? 0 : (length - 1) * (between + 1) + 1;
      a.start.push_back(low);
      a.dims.push_back(between);
      a.shape.push_back(low + own + random_.Integer(0, 1));
    }
    if (ElementCount(a.shape) > MaxElements()) return false;
    if (random_.Chance(0.5)) a.dims.clear();
    if (a.dims.empty()) {
      for (size_t k = 0; k < shape.size(); ++k) {
        a.shape[k] = std::max(a.shape[k], a.start[k] + shape[k]);
      }
    }
    if (random_.Chance(0.5)) a.literal = {RandomFill(element)};
    Keep(pool, pool.Of(element), builder_.Do(kPad, {x}, std::move(a)));
    return true;
  }
  const bool strides = random_.Chance(0.4);
  for (int64_t length : shape) {
    const int64_t step = strides ? random_.Integer(1, 3) : 1;
    const int64_t start = random_.Integer(0, length);
    const int64_t most = (length - start + step - 1) / step;
    a.start.push_back(start);
    a.shape.push_back(random_.Integer(random_.Chance(0.9) ? std::min<int64_t>(1, most) : 0, most));
    if (strides) a.dims.push_back(step);
  }
  Keep(pool, pool.Of(element), builder_.Do(kSlice, {x}, std::move(a)));
  return true;
}

bool WorldWriter::WriteConcat(ValuePool& pool, ElementType element) {
  const Vars fitting = ValuePool::Where(pool.Of(element), [&](const Var& x) {
    return !x.shape().empty() && 3 * ElementCount(x.shape()) <= MaxElements();
  });
  if (fitting.empty()) return false;
  const Var x = Take(pool, fitting);
  Vars parts = {x};
  for (int64_t more = random_.Integer(0, 2); more > 0; --more) {
    parts.push_back(Like(pool, {element, x.shape()}));
  }
  const int64_t axis = random_.Integer(0, static_cast<int64_t>(x.shape().size()) - 1);
  Keep(pool, pool.Of(element), builder_.Concat(parts, axis));
  return true;
}

bool WorldWriter::WriteReduction(OpCode code, ValuePool& pool) {
  const bool of_bools = code == kAny || code == kAll;
  const bool may_be_empty = code == kSum || code == kProd || code == kCumsum || of_bools;
  const double kind = options_.smooth ? 1.0 : random_.Uniform(0.0, 1.0);
  Vars& list = of_bools      ? (random_.Chance(0.7) ? pool.choices : pool.anonymous)
               : kind < 0.25 ? pool.Of(AnyInteger(pool))
                             : pool.reals;
  const Vars fitting = ValuePool::Where(list, [&](const Var& x) {
    return !x.shape().empty() && (may_be_empty || ElementCount(x.shape()) > 0);
  });
  if (fitting.empty()) return false;
  Var x = Take(pool, fitting);
  const bool is_real = TypeOf(x) == ElementType::kReal;
  if (is_real && Tamed()) x = Within(InfoOf(code).domains[0], x);
  const int64_t rank = static_cast<int64_t>(x.shape().size());
  if (code == kCumsum) {
    Keep(pool, list, builder_.Cumsum(x, random_.Integer(0, rank - 1), random_.Chance(0.5)));
    return true;
  }
  std::vector<int64_t> axes = {random_.Integer(0, rank - 1)};
  const bool several = code == kSum || code == kProd || of_bools;
  if (several && random_.Chance(0.5)) axes.clear();  // all of them
  const bool argument = code == kArgmax || code == kArgmin;
  Keep(pool, argument ? pool.i32s : list, builder_.Reduce(code, x, axes));
  return true;
}

bool WorldWriter::WriteFakeQuantize(ValuePool& pool) {
  const Var x = Real(pool);
  Attributes how;
  how.format = random_.Chance(0.5) ? Format::kE4m3 : Format::kE5m2;
  Shape of_scale;
  for (size_t axis = 0; axis < x.shape().size(); ++axis) {
    if (random_.Chance(0.7)) {
      how.axes.push_back(static_cast<int64_t>(axis));
    } else {
      of_scale.push_back(x.shape()[axis]);
    }
  }
  Vars operands = {x};
  // Small enough for some numbers to be clamped; sometimes 0 or negative.
  if (random_.Chance(0.6)) operands.push_back(0.001 * RealOf(pool, of_scale));
  const Var kept = builder_.Do(kFakeQuantize, operands, how);
  Keep(pool, pool.reals, wild_ ? kept : Bounded(kept));
  return true;
}

bool WorldWriter::WritePrecision(OpCode code, ValuePool& pool) {
  if (code == kStopGradient) {
    const Var x = Real(pool);
    Keep(pool, pool.reals, builder_.Apply(kStopGradient, {x}));
    return true;
  }
  if (code == kFakeQuantize) return WriteFakeQuantize(pool);
  if (code == kCast) {
    std::optional<Format> format;
    std::optional<Overflow> overflow;
    if (random_.Chance(0.85)) {
      format = static_cast<Format>(random_.Integer(0, precision::kFormatCount - 1));
    }
    if (random_.Chance(0.7)) {
      overflow = random_.Chance(0.5) ? Overflow::kIeee : Overflow::kSaturate;
    }
    const Var x = Real(pool);
    // Sometimes beyond the largest number of the small formats.
    const Var source = random_.Chance(IsLarge() ? 0.01 : 0.25) ? 3000.0 * x : x;
    std::optional<CastRounding> rounding;
    if (random_.Chance(0.4)) {
      const bool may_draw = sites_allowed_ && in_vjp_ == 0;
      rounding = static_cast<CastRounding>(random_.Integer(0, may_draw ? 3 : 2));
    }
    const Var cast = builder_.Cast(source, format, overflow, rounding);
    Keep(pool, pool.reals, source.id == x.id || wild_ ? cast : Bounded(cast));
    return true;
  }
  static const std::vector<ElementType> kTypes = {ElementType::kReal, ElementType::kI32,
                                                  ElementType::kI64,  ElementType::kBool,
                                                  ElementType::kU32,  ElementType::kU8};
  const ElementType from = random_.Pick(kTypes);
  const ElementType to = random_.Pick(kTypes);
  if (pool.Of(from).empty()) return false;
  const Var x = Take(pool, pool.Of(from));
  Keep(pool, pool.Of(to), builder_.Convert(x, to));
  return true;
}

}  // namespace simgrad::sim::equality
