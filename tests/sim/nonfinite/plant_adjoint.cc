// Plants that are finite forward and fail in the adjoint. Each gives a value that is added to state
// z, whose cotangent is everywhere g = scale * weight, a power of two.
#include <cmath>
#include <limits>

#include "tests/sim/nonfinite/planted.h"

namespace simgrad::nonfinite {
namespace {

using sim::NonFiniteClass;

struct Kind {
  std::string name;
  std::string operation;
  NonFiniteClass non_finite_class;
};

const std::vector<Kind>& Kinds() {
  using enum NonFiniteClass;
  static const auto* const kinds = new std::vector<Kind>{
      {"sqrt at 0", "div", kDivideByZero},
      {"sqrt at 0, cotangent 0", "div", kInvalid},
      {"root at 0", "pow", kDivideByZero},
      {"power of 0 by its exponent", "log", kDivideByZero},
      {"log of a subnormal", "div", kOverflow},
      {"division by a subnormal", "div", kOverflow},
      {"asin at 1", "div", kDivideByZero},
      {"acos at 1", "div", kDivideByZero},
      {"cbrt at 0", "div", kDivideByZero},
      {"log2 of a subnormal", "div", kOverflow},
      {"rsqrt of a subnormal", "div", kOverflow},
      {"chain of products", "mul", kOverflow},
      {"exp", "mul", kOverflow},
      {"reciprocal", "mul", kOverflow},
      {"atan2 at 0, 0", "div", kInvalid},
      {"fan-in", "add", kOverflow},
      {"fan-in of one masked", "merge", kOverflow},
      {"fan-in of two masked", "merge2", kOverflow},
      {"tape in e4m3", "tape", kConversion},
      {"tape in f16", "tape", kConversion},
      // Not in loops per element.
      {"broadcast", "sum", kOverflow},
      {"factors behind one", "exclusive_prod", kOverflow},
      {"gradient of a param", "accumulate", kOverflow},
      {"gradient of a control", "accumulate", kOverflow},
      {"cast into the gradient", "cast", kConversion},
  };
  return *kinds;
}
constexpr size_t kNotPerElement = 20;

class AdjointPlanter {
 public:
  AdjointPlanter(Plot& plot, const Kind& kind) : p_(plot), s_(plot.script), kind_(kind) {}

  int Plant(int u, int a) {
    const std::string& name = kind_.name;
    // Active, 0 at u = 0 and at least one half elsewhere.
    const int zero = s_.Do("mul", {u, s_.Do("add", {Lit(0.5), s_.Do("abs", {a})})});
    if (name == "sqrt at 0") return Label("sqrt", {zero});
    if (name == "sqrt at 0, cotangent 0") return s_.Do("mul", {Label("sqrt", {zero}), Lit(0.0)});
    if (name == "root at 0") return Label("pow", {zero, Lit(0.5)});
    if (name == "power of 0 by its exponent") {
      return Label("pow", {zero, s_.Do("add", {Lit(0.5), s_.Do("abs", {a})})});
    }
    if (name == "atan2 at 0, 0") {
      const int other = s_.Do("mul", {u, s_.Do("add", {Lit(0.75), s_.Do("abs", {a})})});
      return Label("atan2", {zero, other});
    }
    if (name == "log of a subnormal") {
      return Label("log", {s_.Do("max", {zero, Lit(p_.smallest())})});
    }
    if (name == "division by a subnormal") {
      return Label("div", {zero, s_.Do("max", {u, Lit(p_.smallest())})});
    }
    // 1 at u = 0, at most two thirds elsewhere.
    const auto one = [&] {
      return s_.Do("div", {Lit(1.0), s_.Do("add", {Lit(1.0), s_.Do("abs", {zero})})});
    };
    if (name == "asin at 1") return Label("asin", {one()});
    if (name == "acos at 1") return Label("acos", {one()});
    if (name == "cbrt at 0") return Label("cbrt", {zero});
    if (name == "log2 of a subnormal") {
      return Label("log2", {s_.Do("max", {zero, Lit(p_.smallest())})});
    }
    if (name == "rsqrt of a subnormal") {
      return Label("rsqrt", {s_.Do("max", {zero, Lit(p_.smallest())})});
    }
    return Scaled(u, a, zero);
  }

 private:
  int Label(const std::string& what, std::vector<int> in) {
    s_.label = "plant";
    return s_.Do(what, std::move(in));
  }
  int Lit(double value) { return s_.Literal(value); }
  int g() const { return p_.cotangent_exponent(); }
  // |g| times this is three quarters of the largest number.
  double ThreeQuarters() const { return std::ldexp(1.5, p_.top_exponent() - g()); }
  // |g| 2^k is finite, |g| 2^2k is not: g + k < top, g + 2k > top.
  int Middle() const { return (p_.top_exponent() - g()) / 2 + 1; }

  int Scaled(int u, int a, int zero) {
    const std::string& name = kind_.name;
    if (name == "chain of products") {
      const int high = p_.Pulse(u, std::ldexp(1.0, Middle()));
      return s_.Do("mul", {Label("mul", {zero, high}), high});
    }
    if (name == "exp") return Exp(u, zero);
    if (name == "reciprocal") {
      const int low = s_.Do("add", {zero, p_.Pulse(u, std::ldexp(1.0, -Middle()))});
      return Label("div", {Lit(1.0), low});
    }
    if (name.starts_with("fan-in")) return FanIn(u, zero);
    if (name == "tape in e4m3") return Label("mul", {a, p_.Pulse(u, 1000.0)});
    if (name == "tape in f16") return Label("mul", {a, p_.Pulse(u, 1e5)});
    if (name == "broadcast") {
      const int pulse = s_.Total(p_.Positive(u));
      const int absent = s_.Do("sub", {s_.Scalar(1.0), pulse});
      const int scalar = s_.Do("mul", {absent, s_.Total(a)});
      s_.label = "plant";
      const int wide = s_.Spread(scalar);
      return s_.Do("mul", {wide, s_.Spread(s_.Do("mul", {pulse, s_.Scalar(ThreeQuarters())}))});
    }
    if (name == "factors behind one") {
      // 2^-2h, 2^h, 2^h: their product is 1, that of the last two is beyond the largest number.
      const double high = std::ldexp(1.0, p_.top_exponent() / 2 + 2);
      std::vector<double> heights(static_cast<size_t>(p_.n), 1.0);
      heights[0] = 1.0 / (high * high);
      heights[1] = heights[2] = high;
      const int pulse = s_.Spread(s_.Total(p_.Positive(u)));
      const int absent = s_.Do("sub", {Lit(1.0), pulse});
      const int factors =
          s_.Do("add", {s_.Do("mul", {pulse, s_.Array(heights)}), s_.Do("mul", {absent, a})});
      s_.label = "plant";
      return s_.Spread(s_.Product(factors));
    }
    if (name == "cast into the gradient") return Label("mul", {kK, p_.Pulse(u, 1e6)});
    // Two contributions to one gradient; the later one in the reverse is the earlier in the text.
    const int input = name == "gradient of a param" ? kK : kC;
    const int high = p_.Pulse(u, ThreeQuarters());
    const int first = Label("mul", {input, high});
    return s_.Do("add", {first, s_.Do("mul", {input, high})});
  }

  // y = (exp(pulse) - what that is) * high: the cotangent of the exp is g * high.
  int Exp(int u, int zero) {
    const double height = p_.base() == Format::kF16 ? 10.0 : 80.0;
    const int argument = s_.Do("add", {p_.Pulse(u, height), s_.Do("mul", {p_.Positive(u), zero})});
    const int grown = Label("exp", {argument});
    const int without = s_.Do("sub", {grown, p_.Pulse(u, std::exp(height))});
    return s_.Do("mul", {without, p_.Pulse(u, p_.base() == Format::kF16 ? 0x1p5 : 0x1p20)});
  }

  int FanIn(int u, int zero) {
    const int high = p_.Pulse(u, ThreeQuarters());
    if (kind_.name == "fan-in") {
      const int first = Label("mul", {zero, high});
      return s_.Do("add", {first, s_.Do("mul", {zero, high})});
    }
    const int here = s_.Event("here", u, "lt", Lit(0.5));
    if (kind_.name == "fan-in of one masked") {
      const int first = Label("mul", {zero, high});
      const int chosen = s_.Select(here, zero, Lit(0.0));
      return s_.Do("add", {first, s_.Do("mul", {chosen, high})});
    }
    const int absent = Lit(0.0);
    s_.label = "plant";
    const int first = s_.Select(here, zero, absent);
    const int second = s_.Select(here, zero, absent);
    return s_.Do("add", {s_.Do("mul", {first, high}), s_.Do("mul", {second, high})});
  }

  Plot& p_;
  Script& s_;
  const Kind& kind_;
};

std::string PresetFor(Random& random, const std::string& kind) {
  const bool f32 = kind.starts_with("tape") || kind == "cast into the gradient";
  if (f32) return "f32";
  static const std::vector<std::string> any = {"f64",      "f32",       "f32",        "f16_unsafe",
                                               "f16_safe", "bf16_safe", "bf16_unsafe"};
  static const std::vector<std::string> without_f64 = {"f32", "f16_unsafe", "f16_safe",
                                                       "bf16_unsafe"};
  // In f16 large cotangents overflow before the division.
  static const std::vector<std::string> without_f16 = {"f64", "f32", "bf16_safe", "bf16_unsafe"};
  return random.Pick(kind == "exp"                    ? without_f64
                     : kind == "rsqrt of a subnormal" ? without_f16
                                                      : any);
}

Planted ByOperation(Random& random, const Kind& kind, bool per_element_too) {
  Plot plot(random, PresetFor(random, kind.name),
            kind.name == "broadcast"            ? 2
            : kind.name == "factors behind one" ? 3
                                                : 1);
  Planted& planted = plot.planted;
  plot.where = static_cast<Where>(random.Integer(0, kWheres - 1));
  if (!per_element_too && plot.per_element()) plot.where = Where::kWhileFor;
  planted.kind = kind.name;
  planted.operation = kind.operation;
  planted.label = "plant";
  planted.non_finite_class = kind.non_finite_class;
  planted.exact_states = plot.base() != Format::kF64;
  const std::vector<double> scales = {1.0, 8.0, 64.0};
  plot.scale = random.Pick(scales);
  planted.policy.loss_scale = plot.scale;
  if (kind.name == "tape in e4m3") plot.SetRole("tape", Format::kE4m3);
  if (kind.name == "tape in f16") plot.SetRole("tape", Format::kF16);
  if (kind.name == "cast into the gradient") plot.SetRole("gradient", Format::kF16);
  if (kind.operation == "accumulate") {
    plot.SetRole("gradient", plot.base());
  }
  if (kind.name == "broadcast" || kind.name == "factors behind one") {
    std::vector<double>& weight = plot.mine().input[kWeight].back();
    weight.assign(weight.size(), weight[plot.hit()]);
  }
  AdjointPlanter planter(plot, kind);
  const int a = plot.Filler();
  const int z = plot.Sow(a, kZ, [&](int u, int now) { return planter.Plant(u, now); });
  plot.Fire(planted.step);
  if (kind.name == "broadcast" || kind.name == "factors behind one") planted.element = 0;
  plot.Close(a, z);
  return planted;
}

// Cotangents that the caller sends; there is no objective.
Planted BySent(Random& random, int number) {
  Plot plot(random, random.Chance(0.3) ? "f16_unsafe" : "f32", 1);
  Planted& planted = plot.planted;
  Script& s = plot.script;
  const std::vector<double> ones(static_cast<size_t>(plot.n), 1.0);
  for (Sent& sent : planted.sent) {
    sent.final_cotangent = {ones};
    sent.trajectory_cotangent.assign(static_cast<size_t>(planted.steps) + 1, ones);
  }
  s.recipe().sends_final = s.recipe().sends_trajectory = true;
  const int a = plot.Filler();
  // Small, so that what passes on to `a` in every step does not overflow in its sum.
  const int factor = s.Literal(number == 0 ? 4.0 : 0x1p-6);
  if (number == 0) s.label = "plant";
  const int product = s.Do("mul", {a, factor});
  if (number != 0) s.label = "plant";
  const int z = s.Do("add", {kZ, product});
  // What is sent for z[t], t from 1 to T, meets in the addition of step t, or at T in what is sent
  // for the final state, another cotangent; the two together reach the product of step t - 1.
  const int64_t at = random.Integer(1, planted.steps);
  double& final_one = plot.mine().final_cotangent[0][plot.hit()];
  double& one = plot.mine().trajectory_cotangent[static_cast<size_t>(at)][plot.hit()];
  const double sign = random.Chance(0.5) ? 1.0 : -1.0;
  planted.operation = number == 0 ? "mul" : "add";
  planted.step = number == 0 ? at - 1 : at;
  planted.label = number == 0 || at < planted.steps ? "plant" : "";
  planted.non_finite_class = NonFiniteClass::kOverflow;
  if (number == 0) {
    planted.kind = "cotangent sent, times 4";
    one = sign * 0.875 * plot.largest();
  } else if (number == 1) {
    planted.kind = "two cotangents sent";
    final_one = one = sign * 0.75 * plot.largest();
  } else {
    planted.kind = "non-finite cotangent sent";
    planted.finite_inputs = false;
    planted.non_finite_class = NonFiniteClass::kInput;
    one = random.Chance(0.5) ? std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::quiet_NaN();
  }
  s.recipe().next[0] = a;
  s.recipe().next[1] = kX;
  s.recipe().next[2] = z;
  planted.recipe = s.recipe();
  return planted;
}

// Where the objective meets the adjoint, and its own operations.
Planted ByObjective(Random& random, int number) {
  const bool half = number == 2 || number == 3 || number == 5;
  Plot plot(random, number == 5 ? "f16_safe" : half ? "f16_unsafe" : "f32", 1);
  Planted& planted = plot.planted;
  Script& s = plot.script;
  planted.operation = number < 2 ? "div" : "cast";
  planted.non_finite_class =
      number < 2 ? NonFiniteClass::kDivideByZero : NonFiniteClass::kConversion;
  const int64_t end = planted.steps;
  const int a = plot.Filler();
  int z = kZ;
  if (number == 0) {
    planted.kind = "sqrt at 0 in a stage cost";
    planted.label = "plant";
    int zero = a;
    plot.Sow(a, kW, [&](int u, int now) {
      return zero = s.Do("mul", {u, s.Do("add", {s.Literal(0.5), s.Do("abs", {now})})});
    });
    plot.Fire(planted.step);
    s.recipe().exported = zero;
    s.BeginStage();
    s.label = "plant";
    s.recipe().stage_cost = s.Total(s.Do("sqrt", {zero}));
  } else if (number == 1) {
    planted.kind = "sqrt at 0 in the terminal cost";
    planted.label = "plant";
    plot.At(kWeight, end - 1) = 0.0;
    planted.step = end;
    s.BeginTerminal();
    const int zero = s.Do("abs", {s.Do("mul", {kTerminalZ, kWeight})});
    s.label = "plant";
    s.recipe().terminal_cost = s.Total(s.Do("sqrt", {zero}));
  } else if (number == 2) {
    planted.kind = "objective into the adjoint";
    plot.At(kWeight, end - 1) = random.Chance(0.5) ? 65520.0 : -1e6;
    planted.step = end;
  } else if (number == 3) {
    // The last row of weights is the terminal cost's, so the step is not the last.
    planted.kind = "stage cost into the adjoint";
    planted.label = "plant";
    planted.steps = 3;
    for (Sent& sent : planted.sent) {
      for (int input : {kC, kTrigger, kWeight}) sent.input[input].resize(3, sent.input[input][0]);
    }
    planted.step = random.Integer(0, 1);
    plot.At(kWeight, planted.step) = 1e6;
    s.label = "plant";
    z = s.Do("add", {kZ, a});
    s.BeginStage();
    s.recipe().stage_cost = s.Total(s.Do("mul", {kZ, kWeight}));
  } else if (number == 4) {
    planted.kind = "initial state's gradient";
    plot.SetRole("gradient", Format::kF16);
    plot.At(kWeight, end - 1) = 1e6;
    planted.step = 0;
  } else {
    planted.kind = "loss scale beyond the adjoint";
    planted.policy.loss_scale = 65536.0;
    planted.step = end;
    planted.element = 0;
  }
  plot.Close(a, z);
  return planted;
}

}  // namespace

std::vector<Failure> AdjointFailures() {
  std::vector<Failure> failures;
  for (const Kind& kind : Kinds()) failures.push_back({kind.operation, kind.non_finite_class});
  return failures;
}

Planted PlantAdjoint(Random& random, int number) {
  constexpr int kOthers = 9;
  const int all = static_cast<int>(Kinds().size());
  const int which = number % (all + kOthers);
  Planted planted;
  if (which < all) {
    const size_t k = static_cast<size_t>(which);
    planted = ByOperation(random, Kinds()[k], k < kNotPerElement);
  } else if (which < all + 3) {
    planted = BySent(random, which - all);
  } else {
    planted = ByObjective(random, which - all - 3);
  }
  planted.phase = sim::Phase::kAdjoint;
  planted.gradient = true;
  return planted;
}

}  // namespace simgrad::nonfinite
