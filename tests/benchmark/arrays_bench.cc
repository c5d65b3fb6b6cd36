// Compiled plans on programs of arrays, in the mapping of choice and with an instance in each lane, in one thread: best of five.
//
// usage: arrays_bench [NAME...]: grid, particles, exp, log, tanh, sin, mixed, large; default: all
//        arrays_bench --text NAME: the plan; NAME.o and NAME_adjoint.o for objdump
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sim/backend/compiled/compiled_executor.h"
#include "sim/backend/compiled/group/group_inputs.h"
#include "sim/backend/compiled/kernels/mapping.h"
#include "sim/plan/make_plan.h"
#include "sim/plan/print.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "sim/text.h"
#include "tests/sim/program/large_program.h"

namespace simgrad::sim {
namespace {

struct Subject {
  std::string name;
  std::function<Program()> world;
  int64_t instances;
  int64_t steps;
  bool has_gradient = true;
  double low = 0.1, high = 1.0;  // of the states sent
  std::string preset = "f32";
};

void Finish(Builder& b, Vars next) {
  b.AddObjective("cost", nullptr, [&b](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0] * states[0]);
  });
  b.SetNext(std::move(next));
}

// Masses on springs to their neighbours, by slices.
Program Grid() {
  constexpr int64_t n = 64;
  Builder b("grid");
  const Var u = b.State("u", {n, n});
  const Var v = b.State("v", {n, n});
  const Var k = b.Param("k", {}, 0.5);
  const auto along = [&](int64_t axis) {
    Shape shape = {n, n};
    shape[static_cast<size_t>(axis)] = n - 1;
    Shape edge = {n, n};
    edge[static_cast<size_t>(axis)] = 1;
    std::vector<int64_t> one = {0, 0};
    one[static_cast<size_t>(axis)] = 1;
    const Var d = b.Slice(u, one, shape) - b.Slice(u, {0, 0}, shape);
    const Var zero = b.Literal(0.0, edge);
    return b.Concat({d, zero}, axis) - b.Concat({zero, d}, axis);
  };
  const Var force = k * (along(0) + along(1)) - 0.1 * (u * u * u);
  const Var next_v = v + 0.01 * force;
  Finish(b, {u + 0.01 * next_v, next_v});
  return *b.Finish();
}

// 16 Lennard-Jones particles, all pairs.
Program Particles() {
  constexpr int64_t n = 16;
  Builder b("particles");
  const Var x = b.State("x", {n, 3});
  const Var v = b.State("v", {n, 3});
  const Var d = b.Broadcast(x, {n, n, 3}, {0, 2}) - b.Broadcast(x, {n, n, 3}, {1, 2});
  std::vector<double> self(n * n, 1.0);
  for (int64_t i = 0; i < n; ++i) self[static_cast<size_t>(i * (n + 1))] = 1e6;
  const Var r2 = b.Reduce(OpCode::kSum, d * d, {2}) + b.LiteralArray(self, {n, n});
  const Var inverse = b.Literal(1.0, {n, n}) / r2;
  const Var s6 = inverse * inverse * inverse;
  const Var f = 24.0 * (inverse * (2.0 * (s6 * s6) - s6));
  const Var force = b.Reduce(OpCode::kSum, b.Broadcast(f, {n, n, 3}, {0, 1}) * d, {1});
  const Var next_v = v + 0.0001 * force;
  Finish(b, {x + 0.0001 * next_v, next_v});
  return *b.Finish();
}

Program Map(OpCode code) {
  Builder b("map");
  const Var x = b.State("x", {4096});
  const Var y = b.Apply(code, {x});
  Finish(b, {b.Literal(0.5, {4096}) + 0.1 * (y * y) / (b.Literal(1.0, {4096}) + y * y)});
  return *b.Finish();
}

// Operations of all kinds on arrays of 16, each of two of the last 40.
Program Mixed() {
  Builder b("mixed");
  const Shape shape = {16};
  std::mt19937 random(7);
  Vars pool = {b.State("x", shape), b.State("y", shape)};
  const auto pick = [&] {
    const size_t from = pool.size() > 40 ? pool.size() - 40 : 0;
    return pool[from + random() % (pool.size() - from)];
  };
  while (pool.size() < 1200) {
    const Var a = pick();
    const Var c = pick();
    switch (random() % 10) {
      case 0:
        pool.push_back(0.5 * (a + c));
        break;
      case 1:
        pool.push_back(a * c);
        break;
      case 2:
        pool.push_back(Max(a, c) - Min(a, 0.5 * c));
        break;
      case 3:
        pool.push_back(b.Apply(OpCode::kTanh, {a + c}));
        break;
      case 4:
        pool.push_back(b.Apply(OpCode::kExp, {-(a * a)}));
        break;
      case 5:
        pool.push_back(b.Apply(OpCode::kSin, {a - c}));
        break;
      case 6:
        pool.push_back(a / (b.Literal(1.0, shape) + c * c));
        break;
      case 7:
        pool.push_back(
            Select(b.Event(Cat("event", pool.size()), a, Comparison::kLt, c), 0.5 * a, c));
        break;
      case 8:
        pool.push_back(Sqrt(b.Literal(1.0, shape) + a * a) - b.Literal(1.0, shape));
        break;
      default:
        pool.push_back(b.Broadcast(b.Mean(a), shape, {}) - c);
    }
  }
  Finish(b, {b.Apply(OpCode::kTanh, {pool[pool.size() - 1]}),
             b.Apply(OpCode::kTanh, {pool[pool.size() - 2]})});
  return *b.Finish();
}

std::vector<Subject> Subjects() {
  return {{"grid", Grid, 1, 500},
          {"particles", Particles, 256, 200, true, -2.0, 2.0},
          {"particles_f64", Particles, 256, 200, true, -2.0, 2.0, "f64"},
          {"exp", [] { return Map(OpCode::kExp); }, 1, 1000, false},
          {"log", [] { return Map(OpCode::kLog); }, 1, 1000, false},
          {"tanh", [] { return Map(OpCode::kTanh); }, 1, 1000, false},
          {"sin", [] { return Map(OpCode::kSin); }, 1, 1000, false},
          {"mixed", Mixed, 512, 4},
          {"large", [] { return large::LargeProgram(2'000); }, 1, 20}};
}

Batch BatchOf(const Subject& subject) {
  const Program world = subject.world();
  precision::PolicySpec spec;
  spec.preset = subject.preset;
  std::optional<AdjointSpec> adjoint;
  if (subject.has_gradient) {
    adjoint.emplace();
    adjoint->objective = "cost";
    for (const Input& input : world.inputs)
      adjoint->wanted.push_back(IsDifferentiable(world, input));
  }
  Batch batch;
  batch.program = std::make_shared<const NumericalProgram>(
      *Lower(world, std::get<precision::Policy>(precision::Resolve(spec)),
             subject.has_gradient ? "cost" : "", adjoint));
  batch.instances = subject.instances;
  batch.steps = subject.steps;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> number(subject.low, subject.high);
  for (int64_t i = 0; i < batch.instances; ++i)
    batch.instance_ids.push_back(static_cast<uint64_t>(i));
  for (const Input& input : batch.program->program.inputs) {
    Binding binding;
    if (input.kind == InputKind::kState) {
      Shape shape = batch.program->program[input.value].type.shape;
      const int64_t count = ElementCount(shape);
      shape.insert(shape.begin(), batch.instances);
      binding = {Tensor::Zeros(DType::kF32, shape), true, false};
      for (int64_t k = 0; k < batch.instances * count; ++k) binding.tensor.Set(k, number(random));
    }
    batch.inputs.push_back(std::move(binding));
  }
  return batch;
}

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

struct Times {
  double compile = 0, forward = 1e9, gradient = 1e9;
  double value = 0;
};

// Ranges of 25 steps are replayed and reversed; making the executor's code is timed apart.
Times TimesOf(Executor& executor, const Batch& batch) {
  constexpr int64_t kRange = 25;
  RunOptions options;
  options.recording = Recording::kNone;
  Times times;
  std::unique_ptr<Run> run;
  times.compile = Seconds([&] {
    auto made = executor.Create(batch, options);
    Check(made.status());
    run = std::move(*made);
  });
  std::vector<std::shared_ptr<const void>> saved;
  for (int turn = 0; turn < 5; ++turn) {
    saved.clear();
    const double forward = Seconds([&] {
      Check(run->Start());
      for (int64_t t = 0; t < batch.steps; t += kRange) {
        saved.push_back(run->SaveState());
        Check(run->Forward(t, std::min(kRange, batch.steps - t)).status());
      }
      Check(run->Finish());
    });
    times.forward = std::min(times.forward, forward);
    if (!batch.program->adjoint) continue;
    const double start = Seconds([&] { Check(run->StartAdjoint(1.0, {})); });
    if (turn == 0) times.compile += start;
    const double backward = Seconds([&] {
      for (int64_t k = static_cast<int64_t>(saved.size()) - 1; k >= 0; --k) {
        run->RestoreState(saved[static_cast<size_t>(k)]);
        Check(run->Adjoint(k * kRange, std::min(kRange, batch.steps - k * kRange)).status());
      }
      Check(run->FinishAdjoint());
    });
    times.gradient = std::min(times.gradient, forward + backward);
  }
  times.value = run->State(0).Get(0);
  return times;
}

void PrintText(const Subject& subject) {
  const Batch batch = BatchOf(subject);
  const plan::Plan plan = plan::PlacedPlan(*batch.program, {});
  std::cout << plan::Print(plan) << "\n";
  compiled::KernelOptions options;
  const int64_t width = compiled::FloatLanes(options.isa);
  options.mapping = ChooseMapping(compiled::CountsOf(plan, width), batch.instances, width);
  for (const auto part : {compiled::Part::kForward, compiled::Part::kAdjoint}) {
    if (part == compiled::Part::kAdjoint && !batch.program->adjoint) continue;
    const auto object = CompileKernel(plan, part, {.inputs = compiled::FormsOf(batch)}, options);
    Check(object.status());
    std::ofstream(Cat(subject.name, part == compiled::Part::kForward ? "" : "_adjoint", ".o"),
                  std::ios::binary)
        << object->bytes;
  }
}

void Measure(const Subject& subject) {
  const Batch batch = BatchOf(subject);
  const auto chosen = compiled::MakeCompiledExecutor(compiled::KernelOptions{});
  const auto lanes =
      compiled::MakeCompiledExecutor(compiled::KernelOptions{.mapping = compiled::Mapping::kLanes});
  const Times b = TimesOf(*chosen, batch);
  const Times c = TimesOf(*lanes, batch);
  const auto row = [&](const char* what, double y, double z) {
    std::printf("%-14s %-9s %9.2f %9.2f   %6.2f\n", subject.name.c_str(), what, 1e3 * y, 1e3 * z,
                z / y);
  };
  row("forward", b.forward, c.forward);
  if (subject.has_gradient) row("gradient", b.gradient, c.gradient);
  row("compile", b.compile, c.compile);
  if (b.value != c.value) std::printf("%s: other bits\n", subject.name.c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace simgrad::sim

int main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  const bool text = !names.empty() && names[0] == "--text";
  if (text) names.erase(names.begin());
  if (!text) std::printf("%-14s %-9s %9s %9s   %6s\n", "", "ms", "chosen", "lanes", "ratio");
  for (const auto& subject : simgrad::sim::Subjects()) {
    if (!names.empty() && std::find(names.begin(), names.end(), subject.name) == names.end())
      continue;
    if (text) {
      simgrad::sim::PrintText(subject);
    } else {
      simgrad::sim::Measure(subject);
    }
  }
}
