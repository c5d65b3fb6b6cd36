// The witness forward: inputs, lines, loops, costs.
#include "tests/sim/nonfinite/witness.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace simgrad::nonfinite {
namespace {

using sim::NonFiniteClass;

constexpr const char* kInputNames[] = {"state.x",     "state.w",    "state.z",
                                       "param.k",     "control.c",  "data.trigger",
                                       "data.weight", "data.limit", "data.limit_all"};

bool Mentions(const std::vector<Line>& lines, int input) {
  const auto has = [&](const std::vector<int>& ids) {
    return std::find(ids.begin(), ids.end(), input) != ids.end();
  };
  return std::any_of(lines.begin(), lines.end(), [&](const Line& line) {
    return has(line.in) || has(line.test_yields) || has(line.body_yields) ||
           Mentions(line.test, input) || Mentions(line.body, input);
  });
}

bool IsUsed(const Recipe& recipe, int input) {
  return Mentions(recipe.step, input) || Mentions(recipe.stage, input) ||
         Mentions(recipe.terminal, input) ||
         std::find(std::begin(recipe.next), std::end(recipe.next), input) != std::end(recipe.next);
}

bool IsLinear(const std::string& what) {
  return what == "matmul" || what == "norm2" || what == "scatter" || what == "cholesky" ||
         what == "triangular_solve" || what == "lu";
}

double ToInteger(double x) {
  if (x != x) return 0.0;
  return std::clamp(std::trunc(x), -2147483648.0, 2147483647.0);
}

}  // namespace

NonFiniteClass ClassOf(const std::string& what, const std::vector<double>& in, double result) {
  if (std::any_of(in.begin(), in.end(), [](double x) { return !std::isfinite(x); })) {
    return NonFiniteClass::kInput;
  }
  if (what == "cast" || what == "tape" || what == "convert") return NonFiniteClass::kConversion;
  const bool sums = what == "sum" || what == "cumsum" || what == "prod" ||
                    what == "exclusive_prod" || what == "matmul" || what == "norm2" ||
                    what == "scatter";
  if (std::isnan(result)) return sums ? NonFiniteClass::kOverflow : NonFiniteClass::kInvalid;
  const bool zero = (what == "div" && in[1] == 0.0) || (what == "log" && in[0] == 0.0) ||
                    (what == "triangular_solve" && in[0] == 0.0) ||
                    (what == "quot" && in[1] == 0.0) || (what == "log2" && in[0] == 0.0) ||
                    (what == "rsqrt" && in[0] == 0.0) || (what == "log1p" && in[0] == -1.0) ||
                    (what == "pow" && in[0] == 0.0);
  return zero ? NonFiniteClass::kDivideByZero : NonFiniteClass::kOverflow;
}

bool Witness::Blocks(const std::string& what) {
  return what == "floor" || what == "round" || what == "sign" || what == "integer" ||
         what == "ceil" || what == "trunc" || what == "quot" || what == "real" || what == "event" ||
         what == "literal";
}

void Witness::Check(const std::string& what, const std::string& label, const std::string& site,
                    Role role, Format format, const Place& place, size_t i, size_t n,
                    std::vector<double> operands, double result) {
  if (!testimony_.ok || std::isfinite(result)) return;
  testimony_.ok = false;
  sim::BirthCertificate& birth = testimony_.birth;
  birth.phase = phase_;
  birth.step = now_;
  birth.operation = what;
  birth.label = label;
  birth.site = site.empty() ? place.loop : site;
  birth.role = role;
  birth.format = format;
  birth.element = place.element * static_cast<int64_t>(n) + static_cast<int64_t>(i);
  birth.iteration = place.iteration;
  birth.non_finite_class = ClassOf(what, operands, result);
  birth.operands = std::move(operands);
  birth.result = result;
}

const std::vector<double>& Witness::Row(int input, int64_t t) const {
  const auto& rows = sent_.input[input];
  const int64_t last = static_cast<int64_t>(rows.size()) - 1;
  return rows[static_cast<size_t>(Varies(input) ? std::min(t, last) : 0)];
}

void Witness::CheckInputs(int64_t t) {
  for (int input = 0; input < kInputs; ++input) {
    if (!IsUsed(recipe_, input) || (t > 0 && !Varies(input))) continue;
    const bool state = input <= kZ;
    const std::vector<double>& row = Row(input, t);
    for (size_t i = 0; i < row.size() && testimony_.ok; ++i) {
      const precision::RoleSetting& setting = Setting(Role::kState);
      const double read = state ? Nearest(setting.format, row[i], setting.overflow) : row[i];
      Check(kInputNames[input], "", "", state ? Role::kState : Role::kDynamics,
            state ? setting.format : Format::kF64, {}, i, row.size(), {row[i]}, read);
      if (testimony_.ok) continue;
      testimony_.birth.phase = sim::Phase::kInput;
      testimony_.birth.non_finite_class =
          std::isfinite(row[i]) ? NonFiniteClass::kConversion : NonFiniteClass::kInput;
    }
  }
}

Witness::Node* Witness::New(Scene& scene, const std::string& what, std::vector<Node*> in,
                            const Place& place) {
  Node& node = *scene.nodes.emplace_back(std::make_unique<Node>());
  node.what = what;
  node.place = place;
  node.in = std::move(in);
  for (const Node* operand : node.in) node.active = node.active || operand->active;
  return &node;
}

// An operand in the format of a role, by a cast where it has another; the cast stands where the
// value is at home and is shared.
std::vector<double> Witness::Bring(Node* x, Role role, const std::string& site,
                                   const std::string& label) {
  const precision::RoleSetting& setting = Setting(role);
  if (x->plain || (x->format == setting.format && !x->exact)) return x->v;
  const auto key = std::pair(static_cast<int>(setting.format), static_cast<int>(role));
  const auto known = x->casts.find(key);
  if (known != x->casts.end()) return known->second;
  std::vector<double> cast;
  for (size_t i = 0; i < x->v.size(); ++i) {
    const bool literal = x->what == "literal";
    cast.push_back(Nearest(setting.format, x->v[i], literal ? Overflow::kIeee : setting.overflow));
    Check(literal ? "literal" : "cast", label, site, role, setting.format, x->place, i, x->v.size(),
          {x->v[i]}, cast[i]);
  }
  return x->casts[key] = cast;
}

// Objectives read what other roles computed, and the states, through casts of their own.
Witness::Node* Witness::IntoObjective(Scene& scene, Node* x, const Line& line, const Place& place) {
  if (x->plain || x->exact || x->role == Role::kObjective) return x;
  Node*& known = scene.in_objective[x];
  if (known != nullptr) return known;
  Node* cast = New(scene, "cast", {x}, place);
  const precision::RoleSetting& setting = Setting(Role::kObjective);
  cast->role = Role::kObjective;
  cast->label = line.label;
  cast->format = setting.format;
  for (size_t i = 0; i < x->v.size(); ++i) {
    cast->v.push_back(Nearest(setting.format, x->v[i], setting.overflow));
    Check("cast", line.label, "", Role::kObjective, setting.format, place, i, x->v.size(),
          {x->v[i]}, cast->v[i]);
  }
  return known = cast;
}

double Witness::Linear(const Line& line, const std::vector<std::vector<double>>& in, size_t i,
                       std::vector<double>& at) const {
  const precision::RoleSetting& setting = Setting(line.role);
  const Format format = setting.format;
  const auto compute = [&](const char* what, const std::vector<double>& numbers) {
    return Compute(what, format, numbers);
  };
  const auto append_range = [&](const std::vector<double>& of) {
    at.push_back(*std::min_element(of.begin(), of.end()));
    at.push_back(*std::max_element(of.begin(), of.end()));
  };
  at.clear();
  if (line.what == "cholesky") {
    at = {in[0][i]};
    return in[0][i] > 0.0 ? compute("sqrt", at) : std::numeric_limits<double>::quiet_NaN();
  }
  if (line.what == "triangular_solve") {
    at = {std::abs(in[0][i]), in[1][i]};
    return compute("div", {in[1][i], in[0][i]});
  }
  if (line.what == "scatter") {
    at = {in[0][i]};
    append_range(in[1]);
    return compute("add", {in[0][i], in[1][i]});
  }
  if (line.what == "matmul") {
    const bool fuses = setting.accumulator == Format::kF32 || setting.accumulator == Format::kF64;
    double sum = 0.0;
    for (size_t k = 0; k < in[0].size(); ++k) {
      const double a = in[0][k];
      const double b = in[1][k];
      sum = fuses ? Compute("fma", setting.accumulator, {a, b, sum})
                  : Compute("add", setting.accumulator,
                            {Compute("mul", setting.accumulator, {a, b}), sum});
    }
    append_range(in[0]);
    append_range(in[1]);
    return Nearest(format, sum);
  }
  if (line.what == "norm2") {
    append_range(in[0]);
    const double largest = std::max(std::abs(at[0]), std::abs(at[1]));
    if (largest == 0.0 || !std::isfinite(largest)) return largest;
    const int exponent = std::ilogb(largest);
    std::vector<double> squares;
    for (double x : in[0]) {
      const double scaled = Nearest(format, std::ldexp(x, -exponent));
      squares.push_back(compute("mul", {scaled, scaled}));
    }
    const double root =
        compute("sqrt", {SumOf(squares, setting.order, setting.accumulator, format)});
    return Nearest(format, std::ldexp(root, exponent));
  }
  // lu of [x y; z w]
  std::vector<double> m = in[0];
  at = {m[i]};
  if (std::abs(m[2]) > std::abs(m[0])) m = {m[2], m[3], m[0], m[1]};
  m[2] = m[0] == 0.0 ? 0.0 : compute("div", {m[2], m[0]});
  m[3] = compute("fma", {-m[2], m[1], m[3]});
  return m[i];
}

void Witness::Evaluate(Node& node, const std::vector<std::vector<double>>& in) {
  const Line& line = *node.line;
  const precision::RoleSetting& setting = Setting(line.role);
  const std::string& what = line.what;
  const int64_t declared = recipe_.width[static_cast<size_t>(line.out[0])];
  const size_t n = declared == 0 ? 1 : static_cast<size_t>(declared);
  const auto low_high = [&](size_t count) {
    const auto end = in[0].begin() + static_cast<std::ptrdiff_t>(count);
    return std::vector<double>{*std::min_element(in[0].begin(), end),
                               *std::max_element(in[0].begin(), end)};
  };
  double running = 0.0;
  for (size_t i = 0; i < n; ++i) {
    std::vector<double> at;
    for (const auto& operand : in)
      at.push_back(operand[operand.size() == 1 ? 0 : i % operand.size()]);
    std::string name = what;
    if (what == "literal") {
      node.v.push_back(line.literal[line.literal.size() == 1 ? 0 : i]);
      continue;
    } else if (what == "total") {
      node.v.push_back(SumOf(in[0], setting.order, setting.accumulator, setting.format));
      name = "sum";
      at = low_high(in[0].size());
    } else if (what == "product of all") {
      node.v.push_back(ProductOf(in[0], setting.format));
      name = "prod";
      at = low_high(in[0].size());
    } else if (what == "cumsum") {
      running = Compute("add", setting.accumulator, {running, in[0][i]});
      node.v.push_back(Nearest(setting.format, running));
      at = low_high(i + 1);
    } else if (what == "broadcast") {
      node.v.push_back(in[0][0]);
    } else if (what == "slice") {
      node.v.push_back(in[0][i + static_cast<size_t>(line.start)]);
    } else if (what == "cast") {
      node.v.push_back(Nearest(line.format, at[0], line.overflow));
    } else if (what == "integer") {
      node.v.push_back(ToInteger(at[0]));
    } else if (what == "times seventy thousand") {
      node.v.push_back(at[0] * 70000.0);
    } else if (what == "real") {
      node.v.push_back(Nearest(setting.format, at[0]));
      name = "convert";
    } else if (what == "event") {
      node.v.push_back(line.order == "lt" ? at[0] < at[1] : at[0] > at[1]);
    } else if (what == "select") {
      node.v.push_back(at[0] != 0.0 ? at[1] : at[2]);
    } else if (IsLinear(what)) {
      node.v.push_back(Linear(line, in, i, at));
    } else {
      node.v.push_back(Compute(what, setting.format, at));
    }
    if (!node.plain) {
      Check(name, line.label, line.site, line.role, node.format, node.place, i, n, at, node.v[i]);
    }
  }
}

void Witness::RunLine(Scene& scene, const Line& line, const Place& place) {
  std::vector<Node*> in;
  std::vector<std::vector<double>> values;
  for (int id : line.in) in.push_back(scene.env[static_cast<size_t>(id)]);
  for (Node*& operand : in) {
    if (line.role == Role::kObjective) operand = IntoObjective(scene, operand, line, place);
    const bool as_it_is = line.what == "cast" || line.what == "integer";
    values.push_back(as_it_is ? operand->v : Bring(operand, line.role, line.site, line.label));
  }
  Node* node = New(scene, line.what, std::move(in), place);
  node->line = &line;
  node->role = line.role;
  node->label = line.label;
  node->read = values;
  node->format = line.what == "cast" ? line.format : Setting(line.role).format;
  node->plain = recipe_.integer[static_cast<size_t>(line.out[0])];
  node->exact = line.what == "literal";
  node->active = node->active && !Blocks(line.what) && !node->plain;
  Evaluate(*node, values);
  scene.env[static_cast<size_t>(line.out[0])] = node;
}

void Witness::Run(Scene& scene, const std::vector<Line>& lines, const Place& place) {
  for (const Line& line : lines) {
    if (line.what == "for") {
      RunFor(scene, line, place);
    } else if (line.what == "while") {
      RunWhile(scene, line, place);
    } else {
      RunLine(scene, line, place);
    }
  }
}

void Witness::Enter(Scene& scene, int64_t t) {
  scene.env.assign(recipe_.width.size(), nullptr);
  for (int input = 0; input < kInputs; ++input) {
    Node* node = New(scene, "input", {}, {});
    scene.env[static_cast<size_t>(input)] = node;
    if (input <= kZ) {
      node->v = states_[static_cast<size_t>(input)];
      node->format = Setting(Role::kState).format;
      node->active = true;
      scene.state[input] = node;
      continue;
    }
    node->v = Row(input, t);
    node->exact = true;
    node->active = input == kK || input == kC;
    node->input = input;
  }
}

void Witness::AddCost(Node& cost) {
  const Format format = Setting(Role::kObjective).format;
  const double before = cost_;
  cost_ = Compute("add", format, {before, cost.v[0]});
  Check("cost", "", "", Role::kObjective, format, {}, 0, 1, {before, cost.v[0]}, cost_);
}

void Witness::Forward(int64_t t) {
  now_ = t;
  if (t > 0) CheckInputs(t);
  Scene& scene = scenes_[static_cast<size_t>(t)];
  Enter(scene, t);
  Run(scene, recipe_.step, {});
  std::vector<std::vector<double>> next;
  for (size_t i = 0; i < 3; ++i) {
    scene.next[i] = scene.env[static_cast<size_t>(recipe_.next[i])];
    next.push_back(Bring(scene.next[i], Role::kState, "", ""));
  }
  Run(scene, recipe_.stage, {});
  if (recipe_.stage_cost >= 0) {
    scene.cost = scene.env[static_cast<size_t>(recipe_.stage_cost)];
    AddCost(*scene.cost);
  }
  const bool stopped = !testimony_.ok && policy_.nonfinite == precision::NonFinite::kStop;
  if (!stopped) states_ = next;
}

void Witness::Finish() {
  now_ = steps_;
  Scene& scene = scenes_.back();
  Enter(scene, steps_);
  if (recipe_.terminal_cost < 0) return;
  scene.env[kTerminalZ] = scene.state[2];
  Run(scene, recipe_.terminal, {});
  scene.cost = scene.env[static_cast<size_t>(recipe_.terminal_cost)];
  AddCost(*scene.cost);
}

Testimony Witness::Testify(bool gradient) {
  const precision::RoleSetting& setting = Setting(Role::kState);
  for (int state = kX; state <= kZ; ++state) {
    std::vector<double>& values = states_.emplace_back();
    for (double x : Row(state, 0)) values.push_back(Nearest(setting.format, x, setting.overflow));
  }
  scenes_ = std::vector<Scene>(static_cast<size_t>(steps_) + 1);
  CheckInputs(0);
  const bool stops = policy_.nonfinite == precision::NonFinite::kStop;
  for (int64_t t = 0; t < steps_ && (testimony_.ok || t == 0 || !stops); ++t) Forward(t);
  if (testimony_.ok || !stops) Finish();
  if (gradient && testimony_.ok) Reverse();
  testimony_.states = states_;
  return testimony_;
}

}  // namespace simgrad::nonfinite
