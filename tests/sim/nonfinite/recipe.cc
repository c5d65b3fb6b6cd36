#include "tests/sim/nonfinite/recipe.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/builder.h"

namespace simgrad::nonfinite {

Script::Script(int64_t n) {
  recipe_.n = n;
  for (int input = 0; input <= kTerminalZ; ++input) NewValue(input == kLimitAll ? 0 : n);
  stack_.push_back(&recipe_.step);
}

int Script::NewValue(int64_t width, bool integer) {
  recipe_.width.push_back(width);
  recipe_.integer.push_back(integer);
  return static_cast<int>(recipe_.width.size()) - 1;
}

int Script::Push(Line line, int64_t width, bool integer) {
  const int value = NewValue(width, integer);
  line.out = {value};
  line.role = role;
  line.site = site;
  line.label = std::exchange(label, "");
  if (line.label.empty()) line.label = "line " + std::to_string(++lines_);
  stack_.back()->push_back(std::move(line));
  return value;
}

int Script::Do(const std::string& what, std::vector<int> in) {
  int64_t width = 0;
  bool integer = false;
  for (int x : in) {
    width = std::max(width, WidthOf(x));
    integer = recipe_.integer[static_cast<size_t>(x)];
  }
  for (int& x : in) {
    if (WidthOf(x) != width) x = Spread(x);
  }
  return Push({.what = what, .in = std::move(in)}, width, integer);
}

int Script::Literal(double value) {
  return Push({.what = "literal", .literal = {value}}, scalar_ ? 0 : recipe_.n);
}
int Script::Scalar(double value) { return Push({.what = "literal", .literal = {value}}, 0); }
int Script::Array(std::vector<double> values) {
  return Push({.what = "literal", .literal = std::move(values)}, recipe_.n);
}
int Script::Product(int x) { return Push({.what = "product of all", .in = {x}}, 0); }
int Script::Total(int x) { return Push({.what = "total", .in = {x}}, 0); }
int Script::Spread(int x) { return Push({.what = "broadcast", .in = {x}}, recipe_.n); }
int Script::Linear(const std::string& what, std::vector<int> in, int64_t width) {
  return Push({.what = what, .in = std::move(in)}, width);
}
int Script::Part(int x, int64_t start, int64_t count) {
  return Push({.what = "slice", .in = {x}, .start = start}, count);
}
int Script::Cast(int x, Format format, Overflow overflow) {
  return Push({.what = "cast", .in = {x}, .format = format, .overflow = overflow}, WidthOf(x));
}
int Script::Event(const std::string& name, int a, const std::string& order, int b) {
  const Role role_before = std::exchange(role, Role::kEvent);
  const std::string site_before = std::exchange(site, name);
  const int value = Push({.what = "event", .in = {a, b}, .order = order}, WidthOf(a), true);
  role = role_before;
  site = site_before;
  return value;
}
int Script::Select(int condition, int a, int b) {
  return Push({.what = "select", .in = {condition, a, b}}, WidthOf(a));
}
int Script::Integer(int x) { return Push({.what = "integer", .in = {x}}, WidthOf(x), true); }
int Script::Real(int x) { return Push({.what = "real", .in = {x}}, WidthOf(x)); }

std::vector<int> Script::For(
    int64_t count, std::vector<int> carried,
    const std::function<std::vector<int>(int, const std::vector<int>&)>& body) {
  Line loop{.what = "for", .in = carried, .role = role, .site = site, .count = count};
  loop.carried = static_cast<int>(carried.size());
  const int index = NewValue(0, true);
  loop.body_args = {index};
  std::vector<int> args;
  for (int x : carried) args.push_back(NewValue(WidthOf(x)));
  loop.body_args.insert(loop.body_args.end(), args.begin(), args.end());
  stack_.push_back(&loop.body);
  loop.body_yields = body(index, args);
  stack_.pop_back();
  for (int x : carried) loop.out.push_back(NewValue(WidthOf(x)));
  std::vector<int> out = loop.out;
  stack_.back()->push_back(std::move(loop));
  return out;
}

std::vector<int> Script::While(
    const std::string& name, int64_t cap, bool per_element, int limit, std::vector<int> carried,
    std::vector<int> mapped,
    const std::function<std::vector<int>(const std::vector<int>&, const std::vector<int>&)>& body,
    const std::function<int(int, const std::vector<int>&, const std::vector<int>&)>& lhs) {
  Line loop{.what = "while", .role = role, .count = cap, .per_element = per_element};
  loop.order = name;
  loop.site = site;
  loop.carried = static_cast<int>(carried.size());
  if (per_element) mapped.push_back(limit);
  loop.in = carried;
  loop.in.insert(loop.in.end(), mapped.begin(), mapped.end());
  const bool scalar_before = std::exchange(scalar_, scalar_ || per_element);
  const auto args = [&](std::vector<int>& all) {
    std::vector<int> first, rest;
    for (int x : carried) first.push_back(NewValue(per_element ? 0 : WidthOf(x)));
    for (int x : mapped) rest.push_back(NewValue(per_element ? 0 : WidthOf(x)));
    all = first;
    all.insert(all.end(), rest.begin(), rest.end());
    return std::pair(first, rest);
  };
  const auto [test_carried, test_mapped] = args(loop.test_args);
  stack_.push_back(&loop.test);
  const Role role_before = std::exchange(role, Role::kTermination);
  const std::string site_before = std::exchange(site, name);
  // lhs = limit - count, below one half once count reaches the limit.
  const int left = Do("sub", {per_element ? test_mapped.back() : limit, test_carried[0]});
  loop.test_yields = {lhs ? lhs(left, test_carried, test_mapped) : left, Scalar(0.5)};
  role = role_before;
  site = site_before;
  stack_.pop_back();
  const auto [body_carried, body_mapped] = args(loop.body_args);
  stack_.push_back(&loop.body);
  loop.body_yields = body(body_carried, body_mapped);
  stack_.pop_back();
  scalar_ = scalar_before;
  for (int x : carried) loop.out.push_back(NewValue(WidthOf(x)));
  std::vector<int> out = loop.out;
  loop.label = "loop " + name;
  stack_.back()->push_back(std::move(loop));
  return out;
}

void Script::BeginStage() {
  stack_ = {&recipe_.stage};
  role = Role::kObjective;
}

void Script::BeginTerminal() {
  stack_ = {&recipe_.terminal};
  role = Role::kObjective;
}

namespace {

// Recipe values to Builder variables.
class Translator {
 public:
  explicit Translator(const Recipe& recipe) : recipe_(recipe), b_("recipe") {}

  sim::Program Translate() {
    const sim::Shape n = {recipe_.n};
    vars_[kX] = b_.State("x", n);
    vars_[kW] = b_.State("w", n);
    vars_[kZ] = b_.State("z", n);
    vars_[kK] = b_.Param("k", n);
    vars_[kC] = b_.Control("c", n);
    vars_[kTrigger] = b_.Data("trigger", n);
    vars_[kWeight] = b_.Data("weight", n);
    vars_[kLimit] = b_.Data("limit", n);
    vars_[kLimitAll] = b_.Data("limit_all", {});
    Write(recipe_.step);
    b_.SetNext({vars_[recipe_.next[0]], vars_[recipe_.next[1]], vars_[recipe_.next[2]]});
    if (recipe_.exported >= 0) b_.Export("seen", vars_[recipe_.exported]);
    if (recipe_.stage_cost >= 0 || recipe_.terminal_cost >= 0) WriteObjective();
    absl::StatusOr<sim::Program> program = b_.Finish();
    if (!program.ok()) {
      std::fprintf(stderr, "recipe: %s\n", program.status().ToString().c_str());
      std::abort();
    }
    return *std::move(program);
  }

 private:
  void WriteObjective() {
    std::function<sim::Var()> stage;
    std::function<sim::Var(const sim::Vars&, const sim::Vars&)> terminal;
    if (recipe_.stage_cost >= 0) {
      stage = [&] {
        Write(recipe_.stage);
        return vars_[recipe_.stage_cost];
      };
    }
    if (recipe_.terminal_cost >= 0) {
      terminal = [&](const sim::Vars& states, const sim::Vars&) {
        vars_[kTerminalZ] = states[2];
        Write(recipe_.terminal);
        return vars_[recipe_.terminal_cost];
      };
    }
    b_.AddObjective("cost", stage, terminal);
  }

  sim::Vars Of(const std::vector<int>& ids) {
    sim::Vars found;
    for (int id : ids) found.push_back(vars_.at(id));
    return found;
  }

  void Bind(const std::vector<int>& ids, size_t first, const sim::Vars& vars) {
    for (size_t i = 0; i < vars.size(); ++i) vars_[ids[first + i]] = vars[i];
  }

  sim::Shape ShapeOf(int id) const {
    const int64_t width = recipe_.width[static_cast<size_t>(id)];
    return width == 0 ? sim::Shape{} : sim::Shape{width};
  }

  void Write(const std::vector<Line>& lines) {
    for (const Line& line : lines) {
      const sim::RoleScope role(b_, line.role);
      const sim::SiteScope site(b_, line.site);
      b_.Label(line.label);
      if (line.what == "for") {
        WriteFor(line);
      } else if (line.what == "while") {
        WriteWhile(line);
      } else {
        vars_[line.out[0]] = Simple(line);
      }
    }
    b_.Label("");
  }

  sim::Var Simple(const Line& line) {
    const sim::Vars in = Of(line.in);
    const sim::Shape shape = ShapeOf(line.out[0]);
    const bool integer = !line.in.empty() && recipe_.integer[static_cast<size_t>(line.out[0])];
    if (line.what == "literal") return b_.LiteralArray(line.literal, shape);
    if (line.what == "total") return b_.Reduce(sim::OpCode::kSum, in[0]);
    if (line.what == "product of all") return b_.Reduce(sim::OpCode::kProd, in[0]);
    if (line.what == "cumsum") return b_.Cumsum(in[0], 0);
    if (line.what == "broadcast") return b_.Broadcast(in[0], shape, {});
    if (line.what == "slice") return b_.Slice(in[0], {line.start}, shape);
    if (line.what == "cast") return b_.Cast(in[0], line.format, line.overflow);
    if (line.what == "integer") return b_.Convert(in[0], sim::ElementType::kI32);
    if (line.what == "real") return b_.Convert(in[0], sim::ElementType::kReal);
    if (line.what == "select") return sim::Select(in[0], in[1], in[2]);
    if (line.what == "event") {
      const auto order = line.order == "lt" ? sim::Comparison::kLt : sim::Comparison::kGt;
      return b_.Event(line.site, in[0], order, in[1]);
    }
    if (line.what == "times seventy thousand" && integer) {
      return in[0] * b_.Integer(70000, sim::ElementType::kI32, shape);
    }
    if (IsLinear(line.what)) return Linear(line, in);
    return b_.Apply(*sim::OpFromName(line.what), in);
  }

  static bool IsLinear(const std::string& what) {
    return what == "matmul" || what == "norm2" || what == "scatter" || what == "cholesky" ||
           what == "triangular_solve" || what == "lu";
  }

  sim::Var Linear(const Line& line, const sim::Vars& in) {
    const sim::OpCode code = *sim::OpFromName(line.what);
    const int64_t n = in[0].shape()[0];
    const auto as = [&](size_t k, sim::Shape shape) { return b_.Reshape(in[k], std::move(shape)); };
    if (line.what == "norm2") return b_.Reduce(code, in[0]);
    if (line.what == "matmul") {
      return b_.Reshape(b_.Do(code, {as(0, {1, n}), as(1, {n, 1})}), {});
    }
    if (line.what == "scatter") {
      sim::Attributes how;
      how.axes = {0};
      how.bounds = sim::Bounds::kDrop;
      how.combine = sim::Combine::kAdd;
      return b_.Do(code, {in[0], b_.Iota({n}, 0), in[1]}, how);
    }
    if (line.what == "lu") return b_.Reshape(b_.Do(code, {as(0, {2, 2})}), {4});
    sim::Vars matrices;
    for (size_t k = 0; k < in.size(); ++k) matrices.push_back(as(k, {n, 1, 1}));
    return b_.Reshape(b_.Do(code, matrices), {n});
  }

  void WriteFor(const Line& line) {
    const sim::Vars out =
        b_.For(line.count, Of(line.in), [&](sim::Var index, const sim::Vars& carried) {
          vars_[line.body_args[0]] = index;
          Bind(line.body_args, 1, carried);
          Write(line.body);
          return Of(line.body_yields);
        });
    Bind(line.out, 0, out);
  }

  void WriteWhile(const Line& line) {
    sim::WhileOptions options;
    options.site = line.order;
    options.max_iter = line.count;
    options.elements = line.per_element ? recipe_.n : 0;
    const sim::Vars in = Of(line.in);
    const sim::Vars carried(in.begin(), in.begin() + line.carried);
    const sim::Vars mapped(in.begin() + line.carried, in.end());
    const size_t c = carried.size();
    const sim::LoopResult result = b_.While(
        options, carried, mapped,
        [&](const sim::Vars& now, const sim::Vars& rest) {
          Bind(line.test_args, 0, now);
          Bind(line.test_args, c, rest);
          Write(line.test);
          return sim::LoopTest{vars_[line.test_yields[0]], vars_[line.test_yields[1]], {}, {}};
        },
        [&](const sim::Vars& now, const sim::Vars&, const sim::Vars& rest) {
          Bind(line.body_args, 0, now);
          Bind(line.body_args, c, rest);
          Write(line.body);
          b_.Label(line.label);
          return Of(line.body_yields);
        });
    Bind(line.out, 0, result.carried);
  }

  const Recipe& recipe_;
  sim::Builder b_;
  std::map<int, sim::Var> vars_;
};

}  // namespace

sim::Program ToProgram(const Recipe& recipe) { return Translator(recipe).Translate(); }

}  // namespace simgrad::nonfinite
