#include "tests/sim/equality/random_program.h"

#include <utility>

#include "tests/sim/equality/world_writer.h"

namespace simgrad::sim::equality {
namespace {

const std::vector<Shape>& Shapes() {
  static const std::vector<Shape> kShapes = {
      {},     {},     {1},    {2},    {3}, {3},    {4},       {5},       {7},      {9},
      {2, 3}, {3, 2}, {4, 1}, {1, 5}, {0}, {2, 0}, {2, 3, 2}, {1, 3, 1}, {3, 1, 2}};
  return kShapes;
}

const std::vector<Shape>& LargeShapes() {
  static const std::vector<Shape> kShapes = {{500}, {1000}, {729}, {25, 20}, {27, 27}, {10, 10, 8}};
  return kShapes;
}

}  // namespace

WorldWriter::WorldWriter(Random& random, const WorldOptions& options)
    : random_(random), options_(options), builder_("random") {
  wild_ = !options.smooth && random_.Chance(0.125);
  main_shape_ = random_.Pick(Shapes());
}

void WorldWriter::WriteInputs() {
  const auto shape = [&] { return random_.Chance(0.75) ? main_shape_ : random_.Pick(Shapes()); };
  const auto maybe = [&](double low) -> std::optional<double> {
    if (random_.Chance(0.5)) return random_.Uniform(low, 2.0);
    return std::nullopt;
  };
  for (int64_t i = random_.Integer(0, 2); i >= 0; --i) {
    states_.push_back(builder_.State("x" + std::to_string(i), shape()));
    inputs_.reals.push_back(states_.back());
  }
  if (IsLarge()) {
    states_.push_back(builder_.State("field", random_.Pick(LargeShapes())));
    inputs_.reals.push_back(states_.back());
  }
  if (!options_.smooth) {
    for (const ElementType element : {ElementType::kI32, ElementType::kI64, ElementType::kBool,
                                      ElementType::kU32, ElementType::kU8}) {
      if (!random_.Chance(0.3)) continue;
      const std::string name(ElementTypeName(element));
      states_.push_back(builder_.State("n_" + name, shape(), "", element));
      inputs_.Of(element).push_back(states_.back());
    }
    if (random_.Chance(0.4)) {
      inputs_.i32s.push_back(builder_.StepIndex());
      everywhere_.insert(inputs_.i32s.back().id);
    }
  }
  for (int64_t i = random_.Integer(1, 2); i > 0; --i) {
    const Shape of = random_.Chance(0.6) ? Shape{} : shape();
    const std::string name = "p" + std::to_string(i);
    const std::optional<double> preset = maybe(0.1);
    // Drawn aside, so that the rest of a seed's program does not depend on it.
    const bool weights = Random(Random(random_).Bits() ^ 0x5EEDu).Chance(0.25);
    inputs_.reals.push_back(weights ? builder_.Weights(name, of, preset)
                                    : builder_.Param(name, of, preset));
  }
  if (random_.Chance(0.6)) inputs_.reals.push_back(builder_.Control("u", shape(), maybe(-1.0)));
  if (random_.Chance(0.5)) inputs_.reals.push_back(builder_.Data("d", shape(), maybe(-1.0)));
  const Var config = builder_.Config("alpha", random_.Uniform(0.1, 1.0));
  everywhere_.insert(config.id);
  inputs_.reals.push_back(config);
}

ValuePool WorldWriter::InputPool() { return inputs_.Inside(); }

void WorldWriter::WriteInitial() {
  sites_allowed_ = false;
  builder_.SetInitial([&] {
    const RoleScope role(builder_, Role::kState);
    ValuePool pool = InputPool();
    Grow(pool, static_cast<int>(random_.Integer(0, 3)), 1);
    Vars first;
    for (const Var& state : states_) {
      const Type type = builder_.program()[state.id].type;
      if (type.element != ElementType::kReal) {
        first.push_back(Like(pool, type));
      } else {
        first.push_back(random_.Chance(0.3) ? state : state + 0.25 * Digest(pool, type.shape));
      }
    }
    return first;
  });
  sites_allowed_ = true;
}

void WorldWriter::WriteStep() {
  ValuePool pool = InputPool();
  loops_ = 0;
  std::optional<Var> sections;
  if (IsLarge()) sections = WriteSections(pool);
  if (random_.Chance(0.75)) WriteWhile(pool, 0);
  Grow(pool, static_cast<int>(random_.Integer(3, 10)), 0);
  while (random_.Chance(0.3)) WriteEvent(pool);
  if (random_.Chance(0.15)) WriteHalt(pool, 0);
  WriteExports(pool);
  Vars next;
  for (const Var& state : states_) {
    const Type type = builder_.program()[state.id].type;
    if (type.element == ElementType::kBool && !pool.anonymous.empty() && random_.Chance(0.3)) {
      const Vars same = ValuePool::OfShape(pool.anonymous, type.shape);
      next.push_back(same.empty() ? Like(pool, type) : Take(pool, same));
    } else if (type.element != ElementType::kReal) {
      next.push_back(Like(pool, type));
    } else {
      const RoleScope role(builder_, random_.Chance(0.5) ? Role::kState : Role::kDynamics);
      Var mixed = Digest(pool, type.shape);
      if (sections) mixed = mixed + Condense(pool, *sections, type.shape);
      next.push_back(Tamed() ? 0.75 * state + 0.5 * Bounded(mixed) : mixed);
    }
  }
  next_ = next;
}

// Each section sees the inputs and a few values of the one before: so what it costs to choose
// operands does not grow with the world. Nothing is dead: what a section leaves unused is handed on
// or goes into a sum, on which every next state hangs. No section sees that sum, which one
// comparison would cut off from the gradient.
Var WorldWriter::WriteSections(ValuePool& pool) {
  constexpr size_t kHandedOn = 6;  // of each kind of value
  const auto size = [&] { return static_cast<int64_t>(builder_.program().values.size()); };
  const auto some = [&](const Vars& from) {
    Vars fresh = ValuePool::Where(from, [&](const Var& x) { return pool.unused.count(x.id) != 0; });
    while (fresh.size() > kHandedOn) {
      fresh.erase(fresh.begin() + random_.Integer(0, static_cast<int64_t>(fresh.size()) - 1));
    }
    for (const Var& x : fresh) pool.unused.erase(x.id);
    return fresh;
  };
  Var sum = Bounded(RealOf(pool, main_shape_));
  while (size() < options_.size) {
    loops_ = 0;
    if (random_.Chance(0.75)) WriteWhile(pool, 0);
    if (random_.Chance(0.25)) WriteFor(pool, 0);
    Grow(pool, static_cast<int>(random_.Integer(20, 60)), 0);
    ValuePool next = InputPool();
    for (const Var& x : some(pool.i32s)) Keep(next, next.i32s, x);
    for (const Var& x : some(pool.i64s)) Keep(next, next.i64s, x);
    for (const Var& x : some(pool.u32s)) Keep(next, next.u32s, x);
    for (const Var& x : some(pool.u8s)) Keep(next, next.u8s, x);
    for (const Var& x : some(pool.choices)) Keep(next, next.choices, x);
    for (const Var& x : some(pool.anonymous)) Keep(next, next.anonymous, x);
    for (const Var& x : some(pool.reals)) Keep(next, next.reals, wild_ ? x : Bounded(x));
    sum = 0.75 * sum + DigestAll(pool, main_shape_);
    pool = std::move(next);
  }
  loops_ = 0;
  return sum;
}

// What is still unused, and sometimes an input or a next state as it is.
void WorldWriter::WriteExports(ValuePool& pool) {
  Vars exported;
  for (const Vars* list : {&pool.reals, &pool.i32s, &pool.i64s, &pool.u32s, &pool.u8s,
                           &pool.choices, &pool.anonymous}) {
    for (const Var& x : *list) {
      if (pool.unused.count(x.id) != 0 && exported.size() < 5 && random_.Chance(0.8)) {
        exported.push_back(x);
      }
    }
  }
  if (random_.Chance(0.2)) exported.push_back(random_.Pick(pool.reals));
  for (size_t i = 0; i < exported.size(); ++i) {
    if (random_.Chance(0.7)) pool.unused.erase(exported[i].id);
    builder_.Export("o" + std::to_string(i), exported[i], random_.Chance(0.7));
  }
}

Var WorldWriter::WriteCost(ValuePool pool) {
  Grow(pool, static_cast<int>(random_.Integer(0, 3)), 1);
  const Var x = Digest(pool, main_shape_);
  if (ElementCount(main_shape_) > 0 && random_.Chance(0.6)) return builder_.Mean(x * x);
  return builder_.Reduce(OpCode::kSum, random_.Chance(0.5) ? x * x : x);
}

void WorldWriter::WriteObjective(int number) {
  sites_allowed_ = false;
  std::vector<Var> exported;
  for (const Export& item : builder_.program().exports) exported.push_back({&builder_, item.value});
  const double kind = random_.Uniform(0.0, 1.0);
  std::function<Var()> stage;
  std::function<Var(const Vars&, const Vars&)> terminal;
  const auto add = [&](ValuePool& pool, const Vars& values) {
    for (const Var& x : values) {
      const ElementType element = TypeOf(x);
      if (element == ElementType::kBool) {
        pool.anonymous.push_back(x);
      } else {
        pool.Of(element).push_back(x);
        if (IsLarge()) pool.unused.insert(x.id);
      }
    }
  };
  if (kind < 0.7) {
    stage = [&] {
      ValuePool pool = InputPool();
      add(pool, exported);
      return WriteCost(pool);
    };
  }
  if (kind > 0.35) {
    terminal = [&](const Vars& states, const Vars& exports) {
      ValuePool pool;
      add(pool, states);
      if (halts_ == 0) add(pool, exports);
      for (const Var& x : inputs_.reals) {
        const bool state =
            std::any_of(states_.begin(), states_.end(), [&](const Var& s) { return s.id == x.id; });
        if (!state) pool.reals.push_back(x);
      }
      return WriteCost(pool);
    };
  }
  builder_.AddObjective("cost" + std::to_string(number), stage, terminal);
  sites_allowed_ = true;
}

absl::StatusOr<RandomWorld> WorldWriter::Write() {
  if (options_.counts_choices) {
    builder_.program().level = TestLevel::kDecisions;
  } else if (random_.Chance(0.4)) {
    builder_.program().level = static_cast<TestLevel>(random_.Integer(1, 3));
  }
  WriteInputs();
  if (random_.Chance(0.3)) WriteInitial();
  WriteStep();
  builder_.SetNext(next_);
  const int objectives = static_cast<int>(random_.Integer(1, 2));
  for (int i = 0; i < objectives; ++i) WriteObjective(i);
  absl::StatusOr<Program> program = builder_.Finish();
  if (!program.ok()) return program.status();
  world_.program = std::move(*program);
  return std::move(world_);
}

absl::StatusOr<RandomWorld> MakeRandomWorld(Random& random, const WorldOptions& options) {
  return WorldWriter(random, options).Write();
}

}  // namespace simgrad::sim::equality
