#include <algorithm>
#include <cmath>

#include "tests/sim/nonfinite/planted.h"

namespace simgrad::nonfinite {
namespace {

Format BaseOf(const std::string& preset) {
  if (preset == "f64") return Format::kF64;
  if (preset == "f32") return Format::kF32;
  return preset[0] == 'b' ? Format::kBf16 : Format::kF16;
}

constexpr int64_t kTrips = 3;  // of every for, and the cap of every while
constexpr int64_t kCap = 4;

}  // namespace

Plot::Plot(Random& the_random, const std::string& preset, int64_t least_elements)
    : random(the_random),
      script(the_random.Integer(least_elements, 4)),
      n(script.recipe().n),
      instances(the_random.Integer(1, 4)),
      base_(BaseOf(preset)) {
  planted.policy.preset = preset;
  planted.policy.loss_scale = 1.0;
  planted.steps = random.Integer(1, 4);
  planted.row = random.Integer(0, instances - 1);
  planted.step = random.Integer(0, planted.steps - 1);
  planted.element = random.Integer(0, n - 1);
  FillInputs();
}

double Plot::smallest() const { return std::ldexp(1.0, RangeOf(base_).smallest); }

void Plot::SetRole(const std::string& role, Format format) {
  precision::RoleOverride change;
  change.format = format;
  planted.policy.roles.push_back({role, change});
}

void Plot::FillInputs() {
  const auto eighths = [&](int64_t low, int64_t high) {
    std::vector<double> row;
    for (int64_t i = 0; i < n; ++i) {
      row.push_back(static_cast<double>(random.Integer(low, high)) / 8.0);
    }
    return row;
  };
  for (int64_t i = 0; i < instances; ++i) {
    Sent& sent = planted.sent.emplace_back();
    sent.input[kX] = {eighths(-8, 8)};
    sent.input[kW] = {eighths(-8, 8)};
    sent.input[kZ] = {eighths(1, 8)};
    sent.input[kK] = {eighths(1, 2)};
    for (int64_t t = 0; t < planted.steps; ++t) {
      sent.input[kC].push_back(eighths(1, 2));
      sent.input[kTrigger].push_back(std::vector<double>(static_cast<size_t>(n), 1.0));
      std::vector<double>& weight = sent.input[kWeight].emplace_back();
      for (int64_t e = 0; e < n; ++e) {
        weight.push_back(
            std::ldexp(random.Chance(0.5) ? 1.0 : -1.0, static_cast<int>(random.Integer(0, 2))));
      }
    }
    std::vector<double>& limit = sent.input[kLimit].emplace_back();
    for (int64_t e = 0; e < n; ++e) limit.push_back(static_cast<double>(random.Integer(0, kCap)));
    sent.input[kLimitAll] = {{static_cast<double>(random.Integer(0, kCap))}};
  }
}

int Plot::cotangent_exponent() const {
  const Sent& sent = planted.sent[static_cast<size_t>(planted.row)];
  return std::ilogb(sent.input[kWeight].back()[hit()] * scale);
}

int Plot::Bounded(int x) {
  Script& s = script;
  const int one = s.Literal(1.0);
  return s.Do("div", {x, s.Do("add", {one, s.Do("abs", {x})})});
}

int Plot::Positive(int u) {
  Script& s = script;
  return s.Do("max", {s.Do("sub", {s.Literal(1.0), u}), s.Literal(0.0)});
}

int Plot::Pulse(int u, double height) {
  const int one = Positive(u);
  return script.Do("mul", {one, script.Literal(height)});
}

int Plot::Filler() {
  Script& s = script;
  const int kept = s.Do("add", {s.Do("mul", {kX, kK}), s.Do("mul", {kW, kC})});
  std::vector<int> pool = {kX, kW, kept};
  const int64_t lines = random.Integer(1, 4);
  for (int64_t i = 0; i < lines; ++i) {
    const int p = random.Pick(pool);
    const int q = random.Pick(pool);
    switch (random.Integer(0, base_ == Format::kF64 ? 6 : 9)) {
      case 0:
        pool.push_back(s.Do("min", {p, q}));
        break;
      case 1:
        pool.push_back(s.Do("max", {p, q}));
        break;
      case 2:
        pool.push_back(Bounded(s.Do("mul", {p, q})));
        break;
      case 3:
        pool.push_back(Bounded(s.Do("sub", {p, q})));
        break;
      case 4:
        pool.push_back(s.Do("neg", {s.Do("abs", {p})}));
        break;
      case 5:
        pool.push_back(Bounded(s.Do("fma", {p, s.Literal(0.5), q})));
        break;
      case 6: {
        const int condition = s.Event("filler." + std::to_string(i), p, "lt", q);
        pool.push_back(s.Select(condition, q, Bounded(p)));
        break;
      }
      case 7:
        pool.push_back(s.Do("tanh", {p}));
        break;
      case 8:
        pool.push_back(s.Do("sin", {p}));
        break;
      default:
        pool.push_back(s.Do("sigmoid", {p}));
        break;
    }
  }
  return Bounded(s.Do("add", {pool.back(), kept}));
}

int Plot::UAt(int number, int trigger) {
  return script.Do("abs", {script.Do("sub", {number, trigger})});
}

int Plot::Sow(int a, int sum, const Emit& plant) {
  harmless_ = where == Where::kTop ? 1.0 : -1.0;
  for (Sent& sent : planted.sent) {
    for (auto& row : sent.input[kTrigger]) row.assign(row.size(), harmless_);
  }
  if (where != Where::kTop) return SowInLoop(a, sum, plant);
  trigger_ = 0.0;
  return script.Do("add", {sum, plant(UAt(script.Literal(0.0), kTrigger), a)});
}

// Which iteration fails. A while runs `limit` times, in the failing instance at least so often that
// it gets there.
void Plot::ChooseIteration(int64_t inner_radix, bool outer_for, bool inner_while) {
  const int64_t outer = random.Integer(0, kTrips - 1);
  const int64_t inner = inner_radix > 1 ? random.Integer(0, kTrips - 1) : 0;
  planted.iteration = outer * inner_radix + inner;
  trigger_ = static_cast<double>(planted.iteration);
  leave_ = static_cast<double>(inner_while ? inner : outer);
  if (outer_for && !inner_while) return;
  double& limit = mine().input[kLimitAll][0][0];
  limit = std::max(limit, leave_ + 1.0);
  double& own = mine().input[kLimit][0][hit()];
  own = std::max(own, leave_ + 1.0);
}

int Plot::SowInLoop(int a, int sum, const Emit& plant) {
  Script& s = script;
  const bool outer_for =
      where == Where::kFor || where == Where::kForFor || where == Where::kForWhile;
  const bool inner_for =
      where == Where::kForFor || where == Where::kWhileFor || where == Where::kPerElementFor;
  const bool inner_while = where == Where::kForWhile;
  const int64_t inner_radix = inner_for ? kTrips : inner_while ? kCap + 1 : 1;
  ChooseIteration(inner_radix, outer_for, inner_while);
  const auto once = [&](int number, int trigger, std::vector<int> now) {
    const int y = plant(UAt(number, trigger), now[0]);
    return std::vector<int>{Bounded(s.Do("add", {now[0], s.Literal(0.25)})),
                            s.Do("add", {now[1], y})};
  };
  // number = outer * radix + inner
  const auto number_of = [&](int high, int low) {
    return s.Do("add", {s.Do("mul", {high, s.Scalar(static_cast<double>(inner_radix))}), low});
  };
  const auto inner_loop = [&](int high, int trigger, std::vector<int> now) {
    if (inner_for) {
      return s.For(kTrips, now, [&](int index, const std::vector<int>& carried) {
        return once(number_of(high, s.Real(index)), trigger, carried);
      });
    }
    if (!inner_while) return once(high, trigger, now);
    const std::vector<int> out = s.While(
        "inner", kCap, false, kLimitAll, {s.Scalar(0.0), now[0], now[1]}, {},
        [&](const std::vector<int>& carried, const std::vector<int>&) {
          const auto next = once(number_of(high, carried[0]), trigger, {carried[1], carried[2]});
          return std::vector<int>{s.Do("add", {carried[0], s.Scalar(1.0)}), next[0], next[1]};
        });
    return std::vector<int>{out[1], out[2]};
  };
  if (outer_for) {
    return s.For(kTrips, {a, sum}, [&](int index, const std::vector<int>& carried) {
      return inner_loop(s.Real(index), kTrigger, carried);
    })[1];
  }
  const bool each = per_element();
  const int zero = each ? s.Literal(0.0) : s.Scalar(0.0);
  return s.While(
      "outer", kCap, each, each ? kLimit : kLimitAll, {zero, a, sum},
      each ? std::vector<int>{kTrigger} : std::vector<int>{},
      [&](const std::vector<int>& carried, const std::vector<int>& mapped) {
        const int trigger = each ? mapped[0] : kTrigger;
        const auto next = inner_loop(carried[0], trigger, {carried[1], carried[2]});
        return std::vector<int>{s.Do("add", {carried[0], s.Scalar(1.0)}), next[0], next[1]};
      })[2];
}

void Plot::LeaveBefore() {
  for (Sent& sent : planted.sent) {
    for (int input : {kLimit, kLimitAll}) {
      std::vector<double>& limit = sent.input[input][0];
      limit.assign(limit.size(), static_cast<double>(kCap));
    }
  }
  mine().input[kLimit][0][hit()] = leave_;
  mine().input[kLimitAll][0][0] = leave_;
}

void Plot::Close(int x, int z) {
  Recipe& recipe = script.recipe();
  recipe.next[0] = x;
  recipe.next[1] = kX;
  recipe.next[2] = z;
  if (recipe.terminal_cost < 0) {
    script.BeginTerminal();
    recipe.terminal_cost = script.Total(script.Do("mul", {kTerminalZ, kWeight}));
  }
  planted.recipe = recipe;
}

}  // namespace simgrad::nonfinite
