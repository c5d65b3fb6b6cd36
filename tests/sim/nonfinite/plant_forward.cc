// Plants that fail in the forward pass, and what happens to the value afterwards.
#include <cmath>
#include <limits>

#include "tests/sim/nonfinite/planted.h"

namespace simgrad::nonfinite {
namespace {

using sim::NonFiniteClass;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// One operation of two numbers made from u (and, for the first, what else is at hand).
struct Kind {
  std::string name;
  std::string operation;
  NonFiniteClass non_finite_class;
  bool function = false;  // an elementary function, inexact in f64
};

const std::vector<Kind>& Kinds() {
  using enum NonFiniteClass;
  static const auto* const kinds = new std::vector<Kind>{
      {"x / 0", "div", kDivideByZero},
      {"0 / 0", "div", kInvalid},
      {"log 0", "log", kDivideByZero, true},
      {"log of a negative", "log", kInvalid, true},
      {"sqrt of a negative", "sqrt", kInvalid},
      {"log1p -1", "log1p", kDivideByZero, true},
      {"log1p below -1", "log1p", kInvalid, true},
      {"0 to a negative power", "pow", kDivideByZero, true},
      {"root of a negative", "pow", kInvalid, true},
      {"mod 0", "mod", kInvalid},
      {"product", "mul", kOverflow},
      {"square", "mul", kOverflow},
      {"addition", "add", kOverflow},
      {"subtraction", "sub", kOverflow},
      {"fma", "fma", kOverflow},
      {"exp", "exp", kOverflow, true},
      {"expm1", "expm1", kOverflow, true},
      {"quotient", "div", kOverflow},
      {"power", "pow", kOverflow, true},
      {"cast to e4m3", "cast", kConversion},
      {"cast to e5m2", "cast", kConversion},
      {"cast to a narrower format", "cast", kConversion},
      {"integer to real", "convert", kConversion},
      {"Inf - Inf", "mul", kOverflow},
      {"0 * Inf", "add", kOverflow},
      {"rem 0", "rem", kInvalid},
      {"quot by 0", "quot", kDivideByZero},
      {"quot beyond", "quot", kOverflow},
      {"log2 0", "log2", kDivideByZero, true},
      {"log2 of a negative", "log2", kInvalid, true},
      {"rsqrt 0", "rsqrt", kDivideByZero, true},
      {"rsqrt of a negative", "rsqrt", kInvalid, true},
      {"asin above 1", "asin", kInvalid, true},
      {"acos below -1", "acos", kInvalid, true},
      {"exp2", "exp2", kOverflow, true},
      {"sinh", "sinh", kOverflow, true},
      {"cosh", "cosh", kOverflow, true},
      {"tan next to a pole", "tan", kOverflow, true},
      // Of the whole vector, so not in loops per element.
      {"sum", "sum", kOverflow},
      {"Inf - Inf in a sum", "sum", kOverflow},
      {"cumsum", "cumsum", kOverflow},
      {"product of all", "prod", kOverflow},
      {"dot product", "matmul", kOverflow},
      {"norm", "norm2", kOverflow},
      {"scattered sum", "scatter", kOverflow},
      {"cholesky of a negative", "cholesky", kInvalid},
      {"triangle with a zero", "triangular_solve", kDivideByZero},
      {"factors", "lu", kOverflow},
  };
  return *kinds;
}
constexpr size_t kWholeVector = 38;

// Of the whole vector, forward only.
bool IsLinear(const Kind& kind) {
  return kind.operation == "matmul" || kind.operation == "norm2" || kind.operation == "scatter" ||
         kind.operation == "cholesky" || kind.operation == "triangular_solve" ||
         kind.operation == "lu";
}

class ForwardPlanter {
 public:
  ForwardPlanter(Plot& plot, const Kind& kind) : p_(plot), s_(plot.script), kind_(kind) {}

  int Plant(int u, int a) {
    int q = Number(u, a);
    if (kind_.function && p_.base() == Format::kF64) q = s_.Do("floor", {q});
    return Onward(q, u, a);
  }

 private:
  int Label(const std::string& what, std::vector<int> in) {
    s_.label = "plant";
    return s_.Do(what, std::move(in));
  }
  int Lit(double value) { return s_.Literal(value); }
  double ByFormat(double f16, double f32, double f64) const {
    return p_.base() == Format::kF16 ? f16 : p_.base() == Format::kF64 ? f64 : f32;
  }
  // 2^h with h above half of the largest exponent.
  double Half() const { return std::ldexp(1.0, p_.top_exponent() / 2 + 2); }

  int Number(int u, int a) {
    const std::string& name = kind_.name;
    if (name == "x / 0") return Label("div", {s_.Do("max", {s_.Do("abs", {a}), Lit(0.25)}), u});
    if (name == "0 / 0") return Label("div", {u, u});
    if (name == "log 0") return Label("log", {u});
    if (name == "log of a negative") return Label("log", {s_.Do("sub", {u, Lit(0.5)})});
    if (name == "sqrt of a negative") return Label("sqrt", {s_.Do("sub", {u, Lit(0.5)})});
    if (name == "log1p -1") return Label("log1p", {s_.Do("sub", {u, Lit(1.0)})});
    if (name == "log1p below -1") return Label("log1p", {s_.Do("sub", {u, Lit(1.5)})});
    if (name == "0 to a negative power") return Label("pow", {u, Lit(-1.5)});
    if (name == "root of a negative") {
      return Label("pow", {s_.Do("sub", {u, Lit(0.5)}), Lit(0.5)});
    }
    if (name == "mod 0") return Label("mod", {Lit(5.0), u});
    if (name == "rem 0") return Label("rem", {Lit(5.0), u});
    if (name == "quot by 0") {
      return Label("quot", {s_.Do("max", {s_.Do("abs", {a}), Lit(0.25)}), u});
    }
    if (name == "log2 0") return Label("log2", {u});
    if (name == "log2 of a negative") return Label("log2", {s_.Do("sub", {u, Lit(0.5)})});
    if (name == "rsqrt 0") return Label("rsqrt", {u});
    if (name == "rsqrt of a negative") return Label("rsqrt", {s_.Do("sub", {u, Lit(0.5)})});
    if (name == "asin above 1") return Label("asin", {p_.Pulse(u, 1.5)});
    if (name == "acos below -1") return Label("acos", {p_.Pulse(u, -1.5)});
    // The one number of f16 whose tangent is beyond it.
    if (name == "tan next to a pole") return Label("tan", {p_.Pulse(u, 177.5)});
    return Large(u, a);
  }

  int Large(int u, int a) {
    const std::string& name = kind_.name;
    const double largest = p_.largest();
    const int half = p_.Pulse(u, Half());
    if (name == "product") return Label("mul", {half, Lit(Half())});
    if (name == "square") return Label("mul", {half, half});
    if (name == "fma") return Label("fma", {half, Lit(Half()), a});
    if (name == "Inf - Inf") {
      const int infinite = Label("mul", {half, half});
      return s_.Do("sub", {infinite, s_.Do("abs", {infinite})});
    }
    const int full = p_.Pulse(u, largest);
    if (name == "addition") return Label("add", {full, full});
    if (name == "subtraction") return Label("sub", {full, s_.Do("neg", {full})});
    if (name == "0 * Inf") return s_.Do("mul", {Label("add", {full, full}), Lit(0.0)});
    if (name == "quotient") {
      const int numerator = s_.Do("mul", {full, Lit(0.5)});
      return Label("div", {numerator, s_.Do("max", {u, Lit(0x1p-8)})});
    }
    if (name == "quot beyond") {
      const int numerator = s_.Do("mul", {full, Lit(0.5)});
      return Label("quot", {numerator, s_.Do("max", {u, Lit(0x1p-8)})});
    }
    if (name == "exp2") return Label("exp2", {p_.Pulse(u, ByFormat(17, 130, 1030))});
    if (name == "sinh") return Label("sinh", {p_.Pulse(u, ByFormat(12, 100, 800))});
    if (name == "cosh") return Label("cosh", {p_.Pulse(u, ByFormat(-12, -100, -800))});
    if (name == "exp") return Label("exp", {p_.Pulse(u, ByFormat(12, 100, 800))});
    if (name == "expm1") return Label("expm1", {p_.Pulse(u, ByFormat(12, 100, 800))});
    if (name == "power") return Label("pow", {Lit(2.0), p_.Pulse(u, ByFormat(20, 200, 1200))});
    return Converted(u);
  }

  int LabelledCast(int x, Format format) {
    s_.label = "plant";
    return s_.Cast(x, format);
  }

  int Converted(int u) {
    const std::string& name = kind_.name;
    if (name == "cast to e4m3") {
      return LabelledCast(p_.Pulse(u, p_.random.Chance(0.5) ? 480.0 : 1000.0), Format::kE4m3);
    }
    if (name == "cast to e5m2") return LabelledCast(p_.Pulse(u, 62464.0), Format::kE5m2);
    if (name == "cast to a narrower format") {
      const bool wide = p_.base() == Format::kF64;
      const Format to = wide ? Format::kF32 : p_.random.Chance(0.5) ? Format::kF16 : Format::kBf16;
      // 3.4e38 is finite in f32, and above 3.39618e38, where bf16 overflows.
      const double height = to == Format::kF32 ? 1e300 : to == Format::kF16 ? 1e5 : 3.4e38;
      return LabelledCast(p_.Pulse(u, height), to);
    }
    if (name == "integer to real") {
      const int whole = s_.Do("times seventy thousand", {s_.Integer(p_.Positive(u))});
      s_.label = "plant";
      return s_.Real(whole);
    }
    return WholeVector(u);
  }

  int Linear(int u) {
    const std::string& name = kind_.name;
    s_.label = "plant";
    if (name == "cholesky of a negative") {
      const int below = s_.Do("sub", {u, Lit(0.5)});
      s_.label = "plant";
      return s_.Linear("cholesky", {below}, p_.n);
    }
    if (name == "triangle with a zero") {
      const int one = Lit(1.0);
      s_.label = "plant";
      return s_.Linear("triangular_solve", {u, one}, p_.n);
    }
    const int full = p_.Pulse(u, p_.largest());
    if (name == "scattered sum") {
      s_.label = "plant";
      return s_.Linear("scatter", {full, full}, p_.n);
    }
    const int all =
        s_.Do("mul", {s_.Spread(s_.Total(p_.Positive(u))),
                      s_.Array(std::vector<double>(static_cast<size_t>(p_.n), p_.largest()))});
    if (name == "dot product") {
      const int ones = Lit(1.0);
      s_.label = "plant";
      return s_.Spread(s_.Linear("matmul", {all, ones}, 0));
    }
    if (name == "norm") {
      s_.label = "plant";
      return s_.Spread(s_.Linear("norm2", {all}, 0));
    }
    // [1 -L; 1 L] where it fails, else zeros.
    std::vector<double> heights(static_cast<size_t>(p_.n), 1.0);
    heights[1] = -p_.largest();
    heights[3] = p_.largest();
    const int terms = s_.Do("mul", {s_.Spread(s_.Total(p_.Positive(u))), s_.Array(heights)});
    const int four = s_.Part(terms, 0, 4);
    s_.label = "plant";
    const int factors = s_.Linear("lu", {four}, 4);
    return s_.Spread(s_.Total(factors));
  }

  int WholeVector(int u) {
    if (IsLinear(kind_)) return Linear(u);
    if (kind_.name == "product of all") return Product(u);
    const int pulse = s_.Spread(s_.Total(p_.Positive(u)));
    std::vector<double> heights(static_cast<size_t>(p_.n), p_.largest());
    if (kind_.name == "Inf - Inf in a sum") heights[2] = heights[3] = -p_.largest();
    const int terms = s_.Do("mul", {pulse, s_.Array(heights)});
    if (kind_.name == "cumsum") return Label("cumsum", {terms});
    s_.label = "plant";
    return s_.Spread(s_.Total(terms));
  }

  // Two numbers whose product is beyond the largest, elsewhere the trigger's.
  int Product(int u) {
    const int pulse = s_.Spread(s_.Total(p_.Positive(u)));
    const int factors = s_.Do("add", {s_.Do("mul", {pulse, Lit(Half())}), Lit(1.0)});
    s_.label = "plant";
    return s_.Spread(s_.Product(factors));
  }

  // Where the value goes: on into the state, or where it may vanish.
  int Onward(int q, int u, int a) {
    const bool f64 = p_.base() == Format::kF64;
    switch (p_.random.Integer(0, f64 ? 7 : 10)) {
      case 0:
        return q;
      case 1:
        return s_.Select(s_.Event("not_chosen", u, "gt", Lit(0.5)), q, a);
      case 2:
        return s_.Do("max", {s_.Do("min", {q, Lit(4.0)}), Lit(-4.0)});
      case 3:
        return s_.Select(s_.Event("only_compared", q, "lt", Lit(1.0)), a, Lit(0.25));
      case 4:
        return s_.Do("div", {a, s_.Do("add", {Lit(1.0), s_.Do("abs", {q})})});
      case 5:
        return s_.Cast(q, Format::kE4m3, Overflow::kSaturate);
      case 6:
        return s_.Do("max", {s_.Do("neg", {s_.Do("abs", {q})}), Lit(-1.0)});
      case 7:
        return Dropped(q);
      case 8:
        return s_.Do("tanh", {q});
      case 9:
        return s_.Do("sigmoid", {q});
      default:
        return s_.Do("exp", {s_.Do("neg", {s_.Do("abs", {q})})});
    }
  }

  // Only another element is read.
  int Dropped(int q) {
    if (p_.per_element() || p_.n < 2) return q;
    return s_.Spread(s_.Total(s_.Part(q, p_.hit() == 0 ? 1 : 0, 1)));
  }

  Plot& p_;
  Script& s_;
  const Kind& kind_;
};

std::string PresetFor(Random& random, const std::string& kind) {
  if (kind == "integer to real" || kind == "tan next to a pole") return "f16_unsafe";
  if (kind == "cast to a narrower format") return random.Chance(0.7) ? "f32" : "f64";
  if (kind == "Inf - Inf in a sum") return random.Chance(0.5) ? "f32" : "bf16_safe";
  static const std::vector<std::string> presets = {"f64",        "f32",         "f32",
                                                   "f16_unsafe", "bf16_unsafe", "bf16_safe"};
  return random.Pick(presets);
}

Planted ByOperation(Random& random, const Kind& kind, bool whole_vector) {
  const bool four = kind.name == "Inf - Inf in a sum" || kind.name == "factors";
  Plot plot(random, PresetFor(random, kind.name), four ? 4 : whole_vector ? 2 : 1);
  plot.where = static_cast<Where>(random.Integer(0, kWheres - 1));
  if (whole_vector && plot.per_element()) plot.where = Where::kForFor;
  Planted& planted = plot.planted;
  planted.kind = kind.name;
  planted.operation = kind.operation;
  planted.label = "plant";
  planted.non_finite_class = kind.non_finite_class;
  planted.gradient = random.Chance(0.3) && !IsLinear(kind);
  if (random.Chance(0.25)) planted.policy.nonfinite = precision::NonFinite::kStop;
  ForwardPlanter planter(plot, kind);
  const int a = plot.Filler();
  const int sum = plot.script.Do("mul", {kW, plot.script.Literal(0.5)});
  const int out = plot.Sow(a, sum, [&](int u, int now) { return planter.Plant(u, now); });
  plot.Fire(planted.step);
  const bool by_element = kind.operation == "scatter" || kind.operation == "cholesky" ||
                          kind.operation == "triangular_solve";
  if (whole_vector && !by_element) {
    planted.element = kind.name == "cumsum" ? 1 : kind.name == "factors" ? 3 : 0;
  }
  plot.Close(plot.Bounded(out), plot.script.Do("add", {kZ, a}));
  return planted;
}

// A cast that the policy puts between two roles.
Planted ByRole(Random& random, int number) {
  const bool by_test = number % 3 == 1;
  Plot plot(random, "f32", 1);
  Planted& planted = plot.planted;
  Script& s = plot.script;
  planted.operation = "cast";
  planted.label = "plant";
  planted.non_finite_class = NonFiniteClass::kConversion;
  planted.kind = number % 3 == 0 ? "cast into an event"
                 : by_test       ? "cast into a stop test"
                                 : "cast into the state";
  const int a = plot.Filler();
  int x = a;
  if (number % 3 == 0) {
    plot.SetRole("event", Format::kF16);
    plot.where = static_cast<Where>(random.Integer(0, kWheres - 1));
    x = plot.Bounded(plot.Sow(a, kW, [&](int u, int now) {
      const int pulse = plot.Pulse(u, 1e5);
      const int one = s.Literal(1.0);
      s.label = "plant";
      const int small = s.Event("narrow", pulse, "lt", one);
      return s.Select(small, now, s.Literal(0.5));
    }));
  } else if (by_test) {
    plot.SetRole("termination", Format::kF16);
    // The first test reads what the step computed; it is far below the threshold, so the loop
    // stops.
    plot.Sow(a, kW, [&](int u, int) {
      const int pulse = plot.Pulse(u, 1e5);
      x = s.While(
          "narrow", 4, true, kLimit, {s.Literal(0.0), a}, {pulse},
          [&](const std::vector<int>& now, const std::vector<int>&) {
            return std::vector<int>{s.Do("add", {now[0], s.Scalar(1.0)}),
                                    s.Do("mul", {now[1], s.Scalar(0.5)})};
          },
          [&](int left, const std::vector<int>&, const std::vector<int>& mapped) {
            s.label = "plant";
            return s.Do("sub", {left, mapped[0]});
          })[1];
      return x;
    });
  } else {
    plot.SetRole("state", Format::kF16);
    planted.label = "";
    x = plot.Sow(a, kW, [&](int u, int) { return plot.Pulse(u, 1e5); });
  }
  plot.Fire(planted.step);
  plot.Close(x, s.Do("add", {kZ, a}));
  return planted;
}

// A number that is finite as sent, and not in the format of the role that reads it.
Planted ByInputCast(Random& random, int number) {
  Plot plot(random, "f16_unsafe", 1);
  Planted& planted = plot.planted;
  Script& s = plot.script;
  planted.operation = "cast";
  planted.label = "plant";
  planted.non_finite_class = NonFiniteClass::kConversion;
  const bool param = number % 2 == 0;
  planted.kind = param ? "param beyond its role" : "control beyond its role";
  if (param) planted.step = 0;
  s.label = "plant";
  const int product = s.Do("mul", {kX, param ? kK : kC});
  plot.At(param ? kK : kC, planted.step) = random.Chance(0.5) ? 65520.0 : -1e6;
  const int a = plot.Filler();
  plot.Close(plot.Bounded(product), s.Do("add", {kZ, a}));
  return planted;
}

// In an objective.
Planted ByCost(Random& random, int number) {
  Plot plot(random, number % 2 == 0 ? "f32" : "bf16_unsafe", 1);
  Planted& planted = plot.planted;
  Script& s = plot.script;
  planted.non_finite_class = NonFiniteClass::kOverflow;
  const int a = plot.Filler();
  if (number % 3 == 0) {
    // The costs of two steps, each finite.
    planted.kind = "sum of costs";
    planted.operation = "cost";
    planted.element = 0;
    planted.steps = 4;
    for (Sent& sent : planted.sent) {
      for (int input : {kC, kTrigger, kWeight}) sent.input[input].resize(4, sent.input[input][0]);
    }
    planted.step = random.Integer(1, 3);
    plot.mine().input[kWeight][0][0] =
        plot.mine().input[kWeight][static_cast<size_t>(planted.step)][0] =
            0.75 * RangeOf(Format::kF32).largest;
    s.BeginStage();
    s.recipe().stage_cost = s.Total(kWeight);
    s.BeginTerminal();
    s.recipe().terminal_cost = s.Total(kTerminalZ);
  } else {
    const bool terminal = number % 3 == 1;
    planted.kind = terminal ? "terminal cost" : "stage cost";
    planted.operation = "mul";
    planted.label = "plant";
    const int64_t read = terminal ? planted.steps - 1 : planted.step;
    plot.At(kWeight, read) = 0x1p100;
    terminal ? s.BeginTerminal() : s.BeginStage();
    s.label = "plant";
    const int cost = s.Total(s.Do("mul", {kWeight, kWeight}));
    (terminal ? s.recipe().terminal_cost : s.recipe().stage_cost) = cost;
    if (terminal) planted.step = planted.steps;
  }
  s.recipe().next[0] = a;
  s.recipe().next[1] = kX;
  s.recipe().next[2] = kZ;
  planted.recipe = s.recipe();
  return planted;
}

}  // namespace

std::vector<Failure> ForwardFailures() {
  std::vector<Failure> failures;
  for (const Kind& kind : Kinds()) failures.push_back({kind.operation, kind.non_finite_class});
  return failures;
}

Planted PlantForward(Random& random, int number) {
  constexpr int kOthers = 8;
  const int all = static_cast<int>(Kinds().size());
  const int which = number % (all + kOthers);
  if (which < all) {
    return ByOperation(random, Kinds()[static_cast<size_t>(which)],
                       static_cast<size_t>(which) >= kWholeVector);
  }
  if (which < all + 3) return ByRole(random, which - all);
  if (which < all + 5) return ByInputCast(random, which - all - 3);
  return ByCost(random, which - all - 5);
}

Planted PlantInput(Random& random, int number) {
  Plot plot(random, number % 10 == 0 ? "f16_unsafe" : "f32", 1);
  Planted& planted = plot.planted;
  planted.phase = sim::Phase::kInput;
  static const std::vector<std::pair<int, std::string>> inputs = {
      {kX, "state.x"},         {kW, "state.w"},   {kZ, "state.z"},
      {kK, "param.k"},         {kC, "control.c"}, {kTrigger, "data.trigger"},
      {kWeight, "data.weight"}};
  const bool too_large = number % 10 == 0;  // a finite state that its format cannot hold
  const auto& [input, name] =
      inputs[static_cast<size_t>(too_large ? random.Integer(0, 2) : random.Integer(0, 6))];
  const bool varies = input == kC || input == kTrigger || input == kWeight;
  if (!varies) planted.step = 0;
  planted.kind = too_large ? "state beyond its format" : "non-finite input";
  planted.finite_inputs = too_large;
  planted.non_finite_class = too_large ? NonFiniteClass::kConversion : NonFiniteClass::kInput;
  planted.operation = name;
  plot.where = static_cast<Where>(random.Integer(0, kWheres - 1));
  const int a = plot.Filler();
  const int out = plot.Sow(a, kW, [&](int u, int now) { return plot.script.Do("div", {now, u}); });
  const std::vector<double> numbers = {kInf, -kInf, kNaN};
  plot.At(input, varies ? planted.step : 0) = too_large ? 1e5 : random.Pick(numbers);
  planted.iteration = 0;
  planted.gradient = random.Chance(0.3);
  if (random.Chance(0.25)) planted.policy.nonfinite = precision::NonFinite::kStop;
  plot.Close(plot.Bounded(out), plot.script.Do("add", {kZ, a}));
  return planted;
}

}  // namespace simgrad::nonfinite
