#include "tests/sim/program/shaped_programs.h"

#include <functional>
#include <string>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/builder.h"

namespace simgrad::sim::shaped {
namespace {

using enum OpCode;

Program Finished(Builder& b) {
  b.AddObjective("cost", nullptr, [](const Vars& states, const Vars&) {
    return states[0].shape().empty() ? states[0] * states[0]
                                     : states[0].builder->Reduce(kSum, states[0] * states[0]);
  });
  absl::StatusOr<Program> program = b.Finish();
  return std::move(program).value();
}

Var Sines(Builder& b, Var x, int count) {
  for (int i = 0; i < count; ++i) x = b.Apply(kSin, {x});
  return x;
}

Var NestedTest(Builder& b, Var x, int depth, int inner, const std::string& name = "loop") {
  WhileOptions options;
  options.site = name + std::to_string(depth);
  options.max_iter = 2;
  options.cap_order = CapOrder::kCapFirst;
  const auto test = [&](const Vars& carried, const Vars&) {
    Var y = Sines(b, carried[0], inner);
    if (depth > 1) y = NestedTest(b, y, depth - 1, inner, name);
    return LoopTest{y, b.Literal(0.5), std::nullopt, {y}};
  };
  const auto body = [&](const Vars& carried, const Vars& exports, const Vars&) {
    return Vars{carried[0] - exports[0]};
  };
  const LoopResult out = b.While(options, {x}, {}, test, body);
  return out.carried[0] + out.exports[0];
}

Vars ShiftedBody(Builder& b, const Vars& carried, Var last) {
  Vars next(carried.begin() + 1, carried.end());
  next.push_back(b.Apply(kSin, {last}));
  return next;
}

Vars NestedShift(Builder& b, Vars values, int depth) {
  return b.For(1, values, [&](Var, const Vars& carried) {
    const Vars inner = depth > 1 ? NestedShift(b, carried, depth - 1) : carried;
    return ShiftedBody(b, inner, inner[0]);
  });
}

Vars Parameters(Builder& b, int count) {
  Vars values;
  const Var k = b.Param("k", {}, 0.5);
  for (int i = 0; i < count; ++i) values.push_back(k);
  return values;
}

}  // namespace

Program NestedTests(int depth, int inner) {
  Builder b("nested_tests");
  const Var x = b.State("x", {});
  b.SetNext({NestedTest(b, x, depth, inner)});
  return Finished(b);
}

Program NestedShifts(int depth, int carried) {
  Builder b("nested_shifts");
  const Var x = b.State("x", {});
  b.Param("unused", {}, 1.0);
  Vars values = Parameters(b, carried);
  values[0] = x;
  b.SetNext({NestedShift(b, values, depth)[0]});
  return Finished(b);
}

Program ShiftedFor(int carried) {
  Builder b("shifted_for");
  const Var x = b.State("x", {});
  Vars values = Parameters(b, carried);
  const Var k = values[0];
  const Vars out = b.For(carried + 1, values, [&](Var, const Vars& inside) {
    return ShiftedBody(b, inside, inside[0] * k);
  });
  b.SetNext({x + out.back()});
  return Finished(b);
}

Program ShiftedWhile(int carried) {
  Builder b("shifted_while");
  const Var x = b.State("x", {});
  WhileOptions options;
  options.site = "loop";
  options.max_iter = carried + 1;
  const auto test = [&](const Vars& inside, const Vars&) {
    return LoopTest{inside[0], b.Literal(-1.0), std::nullopt, {}};
  };
  const auto body = [&](const Vars& inside, const Vars&, const Vars&) {
    return ShiftedBody(b, inside, inside[0]);
  };
  const LoopResult out = b.While(options, Parameters(b, carried), {}, test, body);
  b.SetNext({x + out.carried[0]});
  return Finished(b);
}

Program ShiftedStates(int states) {
  Builder b("shifted_states");
  Vars values;
  for (int i = 0; i < states; ++i) values.push_back(b.State("x" + std::to_string(i), {}));
  b.SetNext(ShiftedBody(b, values, values[0]));
  return Finished(b);
}

Program Exports(int exports) {
  Builder b("exports");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(kSin, {x})});
  for (int i = 0; i < exports; ++i) b.Export("e" + std::to_string(i), x);
  return Finished(b);
}

Program WideConcat(int operands) {
  Builder b("wide_concat");
  const Var x = b.State("x", {1});
  const Var wide = b.Concat(Vars(static_cast<size_t>(operands), x), 0);
  b.SetNext({b.Reshape(b.Reduce(kSum, wide), {1})});
  return Finished(b);
}

Program Chain(OpCode code, int length) {
  Builder b("chain");
  Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 0.5);
  for (int i = 0; i < length; ++i) {
    x = InfoOf(code).operands.most == 1 ? b.Apply(code, {x}) : b.Apply(code, {x, k});
  }
  b.SetNext({x});
  return Finished(b);
}

Program Casts(int length) {
  Builder b("casts");
  Var x = b.State("x", {});
  for (int i = 0; i < length; ++i) {
    RoleScope role(b, i % 2 == 0 ? Role::kSolver : Role::kDynamics);
    x = b.Cast(b.Apply(kSin, {x}), i % 3 == 0 ? Format::kF16 : Format::kBf16);
  }
  b.SetNext({x});
  return Finished(b);
}

Program Captures(int captures) {
  Builder b("captures");
  const Var x = b.State("x", {});
  Vars values;
  for (int i = 0; i < captures; ++i) {
    values.push_back(b.Apply(kSin, {values.empty() ? x : values.back()}));
  }
  const Vars out = b.For(2, {x}, [&](Var, const Vars& carried) {
    Var sum = carried[0];
    for (const Var& value : values) sum = sum + value;
    return Vars{sum};
  });
  b.SetNext({out[0]});
  return Finished(b);
}

Program WideCall(int values) {
  Builder b("wide_call");
  const Var x = b.State("x", {});
  const Vars made = b.Call(
      Vars(static_cast<size_t>(values), x), [](const Vars& args) { return args; },
      [](const Vars&, const Vars&, const Vars& cotangents) { return cotangents; });
  Var sum = x;
  for (const Var& value : made) sum = sum + value;
  b.SetNext({sum});
  return Finished(b);
}

Program WideIntegerCall(int values) {
  Builder b("wide_integer_call");
  const Var x = b.State("x", {});
  const Var n = b.Convert(x, ElementType::kI32);
  const Vars made = b.Call(
      Vars(static_cast<size_t>(values), n), [](const Vars& args) { return args; },
      [](const Vars&, const Vars&, const Vars&) { return Vars{}; });
  Var sum = n;
  for (const Var& value : made) sum = sum + value;
  b.SetNext({Select(b.Apply(kGt, {sum, n}), x, x + x)});
  Program program = Finished(b);
  program.level = TestLevel::kDecisions;
  return program;
}

Program FiniteTests(int tests) {
  Builder b("finite_tests");
  const Var x = b.State("x", {});
  for (int i = 0; i < tests; ++i) b.Apply(kIsFinite, {x});
  b.SetNext({x});
  return Finished(b);
}

Program HaltingChain(int length) {
  Builder b("halting_chain");
  Var x = b.State("x", {});
  const Var next = Sines(b, x, length);
  for (int i = 0; i < length / 4; ++i) {
    x = b.Apply(kSin, {x});
    b.Export("e" + std::to_string(i), x);
  }
  b.Halt("low", b.Event("low", next, Comparison::kLt, b.Literal(-2.0)), true);
  b.SetNext({next});
  return Finished(b);
}

Program LoopsAndEvents(int pairs) {
  Builder b("loops_and_events");
  const Var x = b.State("x", {});
  Var y = x;
  for (int i = 0; i < pairs; ++i) {
    y = NestedTest(b, y, 1, 1, "loop" + std::to_string(i) + "of");
    const Var event =
        b.Event("event" + std::to_string(i), y + b.Literal(0.5), Comparison::kLt, b.Literal(0.25));
    y = b.Apply(kSelect, {event, y, b.Literal(0.5)});
  }
  b.SetNext({y});
  return Finished(b);
}

Program ObjectiveReads(int reads) {
  Builder b("objective_reads");
  const Var x = b.State("x", {});
  Vars values;
  for (int i = 0; i < reads; ++i) {
    values.push_back(b.Apply(kSin, {values.empty() ? x : values.back()}));
  }
  b.SetNext({values.back()});
  Var sum = x;
  {
    RoleScope role(b, Role::kObjective);
    for (const Var& value : values) sum = sum + value;
  }
  b.Export("sum", sum);
  b.AddObjective(
      "stage", [&] { return sum * sum; }, nullptr);
  return Finished(b);
}

Program ManyOfAll(int states, int params, int events, int exports) {
  Builder b("many_of_all");
  Vars x;
  Vars p;
  const auto of = [](const Vars& list, int k) {
    return list[static_cast<size_t>(k) % list.size()];
  };
  for (int k = 0; k < states; ++k) x.push_back(b.State("x" + std::to_string(k), {}));
  for (int k = 0; k < params; ++k) p.push_back(b.Param("p" + std::to_string(k), {}));
  Vars next = x;
  for (int k = 0; k < events; ++k) {
    Var& moved = next[static_cast<size_t>(k) % next.size()];
    const Var above = b.Event("event" + std::to_string(k), moved, Comparison::kGt, of(p, k));
    moved = b.Apply(kSelect, {above, of(p, k + 1) * moved, moved + of(p, k) * of(x, k + 1)});
  }
  for (int k = 0; k < exports; ++k) b.Export("seen" + std::to_string(k), of(next, k) * of(p, k));
  b.SetNext(next);
  b.AddObjective("end", nullptr, [&](const Vars& last, const Vars&) {
    Var sum = b.Literal(0.0);
    for (const Var& state : last) sum = sum + state * state;
    return sum;
  });
  return Finished(b);
}

AdjointSpec WantedOf(const Program& world, const std::string& objective) {
  AdjointSpec spec;
  spec.objective = objective;
  for (const Input& input : world.inputs) {
    spec.wanted.push_back(IsDifferentiable(world, input));
    if (input.kind != InputKind::kState) continue;
    const bool real = world[input.value].type.element == ElementType::kReal;
    spec.final_state.push_back(objective.empty() && real);
  }
  return spec;
}

}  // namespace simgrad::sim::shaped
