#include "tests/server/hostile_programs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/conversion/program_to_proto.h"
#include "sim/program/builder.h"

namespace simgrad::server {
namespace {

using sim::Var;
using sim::Vars;

Vars Shifted(sim::Builder& b, const Vars& values) {
  Vars next(values.begin() + 1, values.end());
  next.push_back(b.Apply(sim::OpCode::kSin, {values[0]}));
  return next;
}

// Loops in loops, `for` and `while` in turn, in bodies and in tests.
Vars Nested(sim::Builder& b, const Vars& values, int64_t depth, uint64_t kinds) {
  if (depth == 0) return Shifted(b, values);
  if ((kinds & 3) < 2) {
    return b.For(1 + static_cast<int64_t>(kinds & 1), values, [&](Var, const Vars& carried) {
      return Shifted(b, Nested(b, carried, depth - 1, kinds >> 2));
    });
  }
  sim::WhileOptions options;
  options.site = "loop" + std::to_string(depth);
  options.max_iter = 2;
  const bool in_test = (kinds & 3) == 3;
  const auto test = [&](const Vars& carried, const Vars&) {
    const Var tested = in_test ? Nested(b, carried, depth - 1, kinds >> 2)[0] : carried[0];
    return sim::LoopTest{tested, b.Literal(0.5), std::nullopt, {tested}};
  };
  const auto body = [&](const Vars& carried, const Vars& exports, const Vars&) {
    Vars next = in_test ? carried : Nested(b, carried, depth - 1, kinds >> 2);
    next = Shifted(b, next);
    next[0] = next[0] - exports[0];
    return next;
  };
  return b.While(options, values, {}, test, body).carried;
}

}  // namespace

v1::Program NestedProgram(Dice& dice, std::string& family) {
  const int64_t depth = dice.Between(1, 9);
  const int64_t carried = dice.OneIn(8) ? dice.Between(10, 40) : dice.Between(1, 9);
  const int64_t region = dice.Below(4);
  const uint64_t kinds = dice.Word();
  family = "nested depth " + std::to_string(depth) + " carried " + std::to_string(carried) +
           " region " + std::to_string(region);
  sim::Builder b("nested");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 0.5);
  const auto loops = [&](const Var& from) {
    Vars values(static_cast<size_t>(carried), k);
    values[0] = from;
    return Nested(b, values, depth, kinds)[0];
  };
  if (region == 1) b.SetInitial([&] { return Vars{loops(x)}; });
  const Var next = region == 0 ? loops(x) : x * k;
  b.SetNext({next});
  b.Export("y", next);
  b.AddObjective(
      "cost", [&] { return region == 2 ? loops(next) : next * k; },
      [&](const Vars& states, const Vars&) { return region == 3 ? loops(states[0]) : states[0]; });
  return conversion::ProgramToProto(b.program());  // whatever limits it breaks
}

v1::Program DoubledProgram(Dice& dice, std::string& family) {
  const int64_t n = dice.Doubling(16);
  const int64_t what = dice.Below(8);
  family = "doubled list " + std::to_string(what) + " to " + std::to_string(n);
  sim::Builder b("doubled");
  Vars states = {b.State("x", {})};
  if (what == 0) {
    for (int64_t i = 1; i < n; ++i) states.push_back(b.State("x" + std::to_string(i), {}));
  }
  const Var k = b.Param("k", {}, 0.5);
  Var next = states[0] * k;
  if (what == 1)
    next =
        b.Reduce(sim::OpCode::kSum, b.Concat(Vars(static_cast<size_t>(n), b.Reshape(k, {1})), 0));
  if (what == 2) {
    for (int64_t i = 0; i < n; ++i) next = next + k;
  }
  if (what == 3) {
    const Vars captured = [&] {
      Vars values;
      for (int64_t i = 0; i < n; ++i) values.push_back(next + k);
      return values;
    }();
    next = b.For(2, {next}, [&](Var, const Vars& carried) {
      Var sum = carried[0];
      for (const Var& value : captured) sum = sum * value;
      return Vars{sum};
    })[0];
  }
  if (what == 4) {
    const Vars values(static_cast<size_t>(n), next);
    next = b.For(1, values, [&](Var, const Vars& carried) { return Shifted(b, carried); })[0];
  }
  if (what == 5) {
    next = next + b.Reduce(sim::OpCode::kSum,
                           b.LiteralArray(std::vector<double>(static_cast<size_t>(n), 0.25), {n}));
  }
  states[0] = next;
  if (what == 0) std::rotate(states.begin(), states.begin() + 1, states.end());
  b.SetNext(states);
  b.Export("y", next);
  if (what == 6) {
    for (int64_t i = 0; i < n; ++i) b.Export("y" + std::to_string(i), k);
  }
  b.AddObjective(
      "cost", [&] { return next; }, nullptr);
  v1::Program program = conversion::ProgramToProto(b.program());
  if (what == 7) {
    const std::string name(static_cast<size_t>(n), 'n');
    program.mutable_step()->mutable_ops(0)->set_label(name);
    program.mutable_inputs(0)->set_description(name);
    if (dice.OneIn(2)) program.mutable_exports(0)->set_name(name);
  }
  return program;
}

v1::Program WideProgram(Dice& dice, std::string& family) {
  const int64_t elements = dice.Doubling(16);
  const int64_t chain = dice.Doubling(8);
  family = "wide " + std::to_string(elements) + " elements, " + std::to_string(chain) + " sines";
  sim::Builder b("wide");
  const Var x = b.State("x", {elements});
  Var next = x;
  const auto sines = [&](Var value) {
    for (int64_t i = 0; i < chain; ++i) value = b.Apply(sim::OpCode::kSin, {value});
    return value;
  };
  next = dice.OneIn(2) ? sines(next) : b.For(1000, {next}, [&](Var, const Vars& carried) {
    return Vars{sines(carried[0])};
  })[0];
  b.SetNext({next});
  b.AddObjective("cost", nullptr,
                 [&](const Vars& states, const Vars&) { return b.Mean(states[0]); });
  return conversion::ProgramToProto(b.program());
}

v1::Program ShapedProgram(Dice& dice, std::string& family) {
  const int64_t power = dice.Power(21);
  const int64_t n = int64_t{1} << power;
  const int64_t rows = dice.OneIn(2) ? 1 : int64_t{1} << dice.Below(power + 1);
  const int64_t what = dice.Below(14);
  const bool sends = dice.OneIn(4);  // the request has so many numbers too
  family = "shaped " + std::to_string(what) + " of " + std::to_string(rows) + " x " +
           std::to_string(n / rows) + (sends ? ", sent" : "");
  sim::Builder b("shaped");
  const sim::Shape shape = {rows, n / rows};
  const int64_t side = int64_t{1} << (power / 2);
  const Var x = b.State("x", sends ? shape : sim::Shape{});
  const Var k = b.Param("k", {}, 0.5);
  const Var wide = sends ? x * k : b.Broadcast(x * k, shape, {});
  const auto square = [&] { return b.Broadcast(k, {side, side}, {}); };
  using enum sim::OpCode;
  Var made = wide;
  if (what == 0) made = b.Reduce(kReduceMax, wide, {1});
  if (what == 1) made = b.Reduce(kReduceMin, wide);
  if (what == 2) made = b.Reduce(kProd, wide, {1});
  if (what == 3) made = b.Reduce(kProd, wide);
  if (what == 4) {
    const Var places = b.Do(kArgsort, {wide}, {.axes = {1}});
    made = wide * b.Convert(places, sim::ElementType::kReal);
  }
  if (what == 5) {
    const Var line = b.Reshape(wide, {n});
    const Var places = b.Do(kArgsort, {line, line}, {.axes = {0}});
    made = b.Do(kGather, {line, places}, {.axes = {0}, .bounds = sim::Bounds::kClip});
  }
  if (what == 6) made = b.Cumsum(wide, dice.Below(2), dice.OneIn(2));
  if (what == 7) made = b.Convert(b.Do(kArgmax, {wide}, {.axes = {1}}), sim::ElementType::kReal);
  if (what == 8) made = b.Do(kMatmul, {square(), square()});
  if (what == 9) made = b.Do(kSolve, {square(), b.Broadcast(k, {side, 1}, {})});
  if (what == 10)
    made = wide * b.LiteralArray(std::vector<double>(static_cast<size_t>(n), 0.1), shape);
  if (what == 11) {
    std::vector<int64_t> places(static_cast<size_t>(n), 0);
    made = b.Do(kTake, {b.Reshape(k, {1})}, {.axes = {0}, .start = places, .shape = {n}});
  }
  if (what == 12) {
    const Var places = b.Iota({n}, 0);
    made = b.Do(kScatter, {b.Reshape(wide, {n}), places, b.Broadcast(k, {n}, {})},
                {.axes = {0}, .bounds = sim::Bounds::kDrop, .combine = sim::Combine::kMul});
  }
  if (what == 13) made = Max(wide, b.Broadcast(k, shape, {}));
  const Var sum = b.Reduce(sim::OpCode::kSum, made);
  b.SetNext({sends ? x + sum : sum});
  b.Export("y", dice.OneIn(8) ? made : sum);
  b.AddObjective("cost", nullptr,
                 [&](const Vars& states, const Vars&) { return b.Mean(states[0]); });
  return conversion::ProgramToProto(b.program());
}

v1::Program CalledProgram(Dice& dice, std::string& family) {
  const int64_t n = dice.Doubling(15);
  const bool has_vjp = !dice.OneIn(4);
  const int64_t calls = dice.Between(1, 4);
  family = "call of " + std::to_string(n) + (has_vjp ? " with a vjp, " : ", ") +
           std::to_string(calls) + " times";
  sim::Builder b("called");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 0.5);
  Vars values(static_cast<size_t>(n), k);
  values[0] = x;
  const auto body = [&](const Vars& args) { return Shifted(b, args); };
  const auto vjp = [&](const Vars&, const Vars&, const Vars& cotangents) {
    return Shifted(b, cotangents);
  };
  for (int64_t i = 0; i < calls; ++i) {
    values = has_vjp ? b.Call(values, body, vjp) : b.Call(values, body);
  }
  Var next = values.back();
  if (dice.OneIn(2)) {
    for (const Var& value : values) next = next + value;
  }
  b.SetNext({next});
  b.AddObjective("cost", nullptr, [&](const Vars& states, const Vars&) { return states[0]; });
  return conversion::ProgramToProto(b.program());
}

v1::Program DecidingProgram(Dice& dice, std::string& family) {
  const int64_t n = dice.Doubling(14);
  const int64_t what = dice.Below(3);
  family = "decisions of kind " + std::to_string(what) + ", " + std::to_string(n) + " of them";
  sim::Builder b("deciding");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 0.5);
  Var next = x;
  for (int64_t i = 0; i < n; ++i) {
    Var decided;
    if (what == 0) {
      const Var line = b.Broadcast(next, {2}, {});
      decided = b.Do(sim::OpCode::kArgmax, {line}, {.axes = {0}});
    }
    if (what == 1)
      decided = b.Convert(b.Apply(sim::OpCode::kLt, {next, k}), sim::ElementType::kI32);
    if (what == 2) decided = b.Convert(next, sim::ElementType::kI32);
    next = next * k + b.Convert(decided, sim::ElementType::kReal);
  }
  b.SetNext({next});
  b.AddObjective("cost", nullptr, [&](const Vars& states, const Vars&) { return states[0]; });
  return conversion::ProgramToProto(b.program());
}

}  // namespace simgrad::server
