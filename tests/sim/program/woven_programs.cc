#include "tests/sim/program/woven_programs.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "tests/sim/equality/random.h"

namespace simgrad::sim::woven {
namespace {

using enum OpCode;
using equality::Random;

class Weaver {
 public:
  explicit Weaver(uint64_t seed) : random_(seed), b_("woven") {}

  Woven Weave() {
    Vars pool;
    const int64_t states = random_.Integer(1, 4);
    for (int64_t i = 0; i < states; ++i) pool.push_back(b_.State("x" + std::to_string(i), {3}));
    for (int64_t i = random_.Integer(0, 2); i > 0; --i) {
      pool.push_back(b_.Param("p" + std::to_string(i), {3}, 0.5));
    }
    pool.push_back(b_.Control("u", {3}, 0.25));
    const Vars inputs = pool;
    WriteInitial(inputs, states);
    Grow(pool, 0, random_.Integer(3, 8));
    Vars next;
    for (int64_t i = 0; i < states; ++i) {
      next.push_back(random_.Chance(0.3) ? pool[static_cast<size_t>((i + 1) % states)]
                                         : Pick(pool));
    }
    b_.SetNext(next);
    Vars exported = inputs;
    for (int64_t i = random_.Integer(0, 3); i > 0; --i) {
      exported.push_back(Pick(pool));
      b_.Export("e" + std::to_string(i), exported.back(), random_.Chance(0.7));
    }
    WriteObjective(exported);
    return Asked();
  }

 private:
  void WriteInitial(const Vars& inputs, int64_t states) {
    if (!random_.Chance(0.4)) return;
    sites_allowed_ = false;
    b_.SetInitial([&] {
      Vars pool = inputs;
      Grow(pool, 1, random_.Integer(1, 4));
      Vars first;
      for (int64_t i = 0; i < states; ++i) first.push_back(Pick(pool));
      return first;
    });
    sites_allowed_ = true;
  }

  void WriteObjective(const Vars& exported) {
    sites_allowed_ = false;
    const auto cost = [&](Vars pool) {
      Grow(pool, 1, random_.Integer(1, 4));
      return b_.Reduce(kSum, Pick(pool));
    };
    const int64_t kind = random_.Integer(0, 2);
    std::function<Var()> stage;
    std::function<Var(const Vars&, const Vars&)> terminal;
    if (kind != 0) stage = [&] { return cost(exported); };
    if (kind != 1) {
      terminal = [&](const Vars& states, const Vars& exports) {
        Vars pool = states;
        pool.insert(pool.end(), exports.begin(), exports.end());
        return cost(pool);
      };
    }
    b_.AddObjective("cost", stage, terminal);
  }

  Woven Asked() {
    Woven woven;
    woven.world = b_.Finish().value();
    const Program& world = woven.world;
    if (random_.Chance(0.7)) woven.objective = "cost";
    woven.adjoint.objective = woven.objective;
    const double sent = woven.objective.empty() ? 0.6 : 0.2;
    for (const Input& input : world.inputs) {
      woven.adjoint.wanted.push_back(IsDifferentiable(world, input) && random_.Chance(0.7));
      if (input.kind != InputKind::kState) continue;
      woven.adjoint.final_state.push_back(random_.Chance(sent));
      woven.adjoint.trajectory_state.push_back(random_.Chance(sent / 2));
    }
    for (size_t i = 0; i < world.exports.size(); ++i) {
      woven.adjoint.trajectory_export.push_back(random_.Chance(sent));
    }
    precision::PolicySpec spec;
    spec.preset = random_.Pick(precision::PresetNames());
    woven.policy = std::get<precision::Policy>(precision::Resolve(spec));
    return woven;
  }

  Var Pick(const Vars& pool) {
    const int64_t last = static_cast<int64_t>(pool.size()) - 1;
    const int64_t first = random_.Chance(0.5) ? std::max<int64_t>(0, last - 3) : 0;
    return pool[static_cast<size_t>(random_.Integer(first, last))];
  }

  void Grow(Vars& pool, int depth, int64_t count) {
    for (; count > 0; --count) Write(pool, depth);
  }

  void Write(Vars& pool, int depth) {
    b_.Label("line " + std::to_string(++labels_));
    const Var x = Pick(pool);
    const Var y = random_.Chance(0.1) ? b_.Literal(0.5, x.shape()) : Pick(pool);
    switch (random_.Integer(0, depth < 4 && left_ > 0 ? 15 : 8)) {
      case 0:
        return pool.push_back(x + y);
      case 1:
        return pool.push_back(x * y);
      case 2:
        return pool.push_back(b_.Apply(kSin, {x}));
      case 3:
        return pool.push_back(Max(x, y));
      case 4:
        return pool.push_back(Choice(x, y));
      case 5:
        return pool.push_back(Pieces(x, y));
      case 6:
        return pool.push_back(b_.Apply(kStopGradient, {x}));
      case 7:
        return pool.push_back(b_.Apply(kAbs, {x}) - y);
      case 8:
        return pool.push_back(x.shape().empty() ? x * x : b_.Cumsum(x, 0, random_.Chance(0.5)));
      case 9:
      case 10:
      case 11:
        return For(pool, depth);
      default:
        if (!sites_allowed_) return For(pool, depth);
        return While(pool, depth, depth < 3 && !x.shape().empty() && random_.Chance(0.25));
    }
  }

  Var Choice(Var x, Var y) {
    if (!sites_allowed_) return Min(x, y);
    return Select(b_.Event("event" + std::to_string(sites_++), x, Comparison::kLt, y), x, y);
  }

  Var Pieces(Var x, Var y) {
    if (x.shape().empty()) return x - y;
    if (random_.Chance(0.3)) return b_.Broadcast(b_.Reduce(kReduceMax, x), {3}, {});
    if (random_.Chance(0.4)) return b_.Broadcast(b_.Reduce(kSum, x), {3}, {});
    return b_.Concat({b_.Slice(x, {0}, {2}), b_.Slice(y, {2}, {1})}, 0);
  }

  Vars Picks(const Vars& pool, int64_t low, int64_t high) {
    Vars picks;
    for (int64_t i = random_.Integer(low, high); i > 0; --i) picks.push_back(Pick(pool));
    return picks;
  }

  // Handed on: values from inside or outside, or the carried ones in other places.
  Vars HandedOn(const Vars& carried, const Vars& pool) {
    Vars next;
    for (size_t i = 0; i < carried.size(); ++i) {
      const double kind = random_.Uniform(0.0, 1.0);
      next.push_back(kind < 0.4   ? carried[(i + 1) % carried.size()]
                     : kind < 0.5 ? carried[i]
                                  : Pick(pool));
    }
    return next;
  }

  static Vars With(const Vars& visible, const Vars& a, const Vars& b = {}, const Vars& c = {}) {
    Vars pool = visible;
    for (const Vars* list : {&a, &b, &c}) pool.insert(pool.end(), list->begin(), list->end());
    return pool;
  }

  void For(Vars& pool, int depth) {
    --left_;
    const Vars out =
        b_.For(random_.Integer(0, 4), Picks(pool, 1, 5), [&](Var, const Vars& carried) {
          Vars inside = With(pool, carried);
          Grow(inside, depth + 1, random_.Integer(0, 4));
          return HandedOn(carried, inside);
        });
    for (const Var& x : out) pool.push_back(x);
  }

  void While(Vars& pool, int depth, bool mapped_loop) {
    --left_;
    WhileOptions options;
    options.site = "loop" + std::to_string(sites_++);
    options.max_iter = random_.Integer(1, 3);
    options.cap_order = random_.Chance(0.5) ? CapOrder::kCapFirst : CapOrder::kTestFirst;
    options.elements = mapped_loop ? 3 : 0;
    const Vars mapped = mapped_loop ? Picks(pool, 0, 3) : Vars{};
    const Vars visible = mapped_loop ? Vars{} : pool;
    const auto test = [&](const Vars& carried, const Vars& args) {
      Vars inside = With(visible, carried, args);
      Grow(inside, depth + 1, random_.Integer(0, 3));
      LoopTest tested;
      const Var lhs = Pick(inside);
      tested.lhs = lhs.shape().empty() ? lhs : b_.Reduce(kSum, lhs);
      tested.rhs = b_.Literal(0.5);
      if (random_.Chance(0.3)) tested.entry = b_.Literal(0.25);
      tested.exports = Picks(inside, 0, 3);
      return tested;
    };
    const auto body = [&](const Vars& carried, const Vars& exports, const Vars& args) {
      Vars inside = With(visible, carried, exports, args);
      Grow(inside, depth + 1, random_.Integer(0, 4));
      return HandedOn(carried, inside);
    };
    const LoopResult out = b_.While(options, Picks(pool, 1, 4), mapped, test, body);
    for (const Var& x : out.carried) pool.push_back(x);
    for (const Var& x : out.exports) pool.push_back(x);
  }

  Random random_;
  Builder b_;
  int sites_ = 0;
  int labels_ = 0;
  int left_ = 12;  // loops that may still be written
  bool sites_allowed_ = true;
};

}  // namespace

Woven Weave(uint64_t seed) { return Weaver(seed).Weave(); }

}  // namespace simgrad::sim::woven
