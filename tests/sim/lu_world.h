// Factors of matrices that are not square, and their gradients, on an executor beside the reference.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/backend/executor.h"
#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {

// Of each shape one state, which becomes the factors of itself, with pivots of its own and with its
// rows in reverse, beside what each chooses, in a world whose
// pivots are tests.
inline sim::Work LuWork(const std::string& preset) {
  using enum sim::OpCode;
  const std::vector<sim::Shape> shapes = {{3, 5}, {5, 3}, {1, 4}, {4, 1}, {2, 2}, {0, 3}, {3, 0}};
  sim::Builder b("factors");
  b.program().level = sim::TestLevel::kDecisions;
  sim::Vars states, next;
  for (const sim::Shape& shape : shapes) {
    states.push_back(b.State("a" + std::to_string(states.size()), shape));
  }
  for (const sim::Var& a : states) {
    const sim::Var rows = b.Convert(b.Do(kLuPermutation, {a}), sim::ElementType::kReal);
    std::vector<double> reversed;
    for (int64_t i = a.shape()[0]; i > 0; --i) reversed.push_back(static_cast<double>(i - 1));
    const sim::Var given = b.IntegerArray(reversed, {a.shape()[0]});
    const sim::Var behind = b.Convert(b.Do(kLuPermutation, {a, given}), sim::ElementType::kReal);
    next.push_back(b.Do(kLu, {a}) + 0.25 * b.Do(kLu, {a, given}) +
                   0.25 * b.Broadcast(rows + behind, a.shape(), {0}));
  }
  b.SetNext(next);
  b.AddObjective("all", nullptr, [&](const sim::Vars& last, const sim::Vars&) {
    sim::Var total = b.Literal(0.0);
    for (const sim::Var& a : last) total = total + b.Reduce(kSum, a * a);
    return total;
  });
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = LowerForGradient(*world, PolicyOf({.preset = preset}), "all");
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = WorkOf(*std::move(program), 3, 2);
  uint64_t seed = 1;
  for (size_t k = 0; k < shapes.size(); ++k) {
    sim::Shape all = shapes[k];
    all.insert(all.begin(), 3);
    std::vector<double> numbers(static_cast<size_t>(sim::ElementCount(all)));
    for (double& x : numbers) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      x = static_cast<double>(seed >> 40) * 0x1p-22 - 2.0;
    }
    if (k == 1) numbers[0] = numbers[3] = numbers[6] = numbers[9] = numbers[12] = 0.0;
    work.batch.inputs[k] = {Doubles(numbers, all), true, false};
  }
  return work;
}

struct LuSeen : sim::Observer {
  void OnForward(const sim::ForwardChunk& chunk) override { chunks.push_back(chunk.diagnostics); }
  std::vector<sim::StepDiagnostics> chunks;
};

inline void ExpectFactorsOn(const std::shared_ptr<sim::Executor>& executor) {
  for (const std::string preset : {"f64", "f32", "bf16_safe"}) {
    LuSeen seen, right_seen;
    const auto result = sim::Engine(executor).Execute(LuWork(preset), seen);
    const auto right = Execute(LuWork(preset), right_seen);
    ASSERT_TRUE(result.ok() && right.ok()) << result.status() << right.status();
    ASSERT_EQ(result->gradients.size(), right->gradients.size());
    for (size_t k = 0; k < right->final_states.size(); ++k) {
      EXPECT_EQ(result->final_states[k].bytes, right->final_states[k].bytes) << preset << " " << k;
      EXPECT_EQ(result->gradients[k].gradient.bytes, right->gradients[k].gradient.bytes)
          << preset << " " << k;
    }
    EXPECT_EQ(result->path_signatures, right->path_signatures) << preset;
    EXPECT_EQ(seen.chunks, right_seen.chunks) << preset;
    // Something was there to be compared.
    EXPECT_NE(right->gradients[0].gradient.Get(1), 0.0);
    EXPECT_NE(right->gradients[1].gradient.Get(1), 0.0);
  }
}

}  // namespace simgrad::tests
