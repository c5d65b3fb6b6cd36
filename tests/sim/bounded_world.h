// A world whose states become the larger and the smaller of numbers and a bound, beside what IEEE 754-2019
// says of them.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/backend/executor.h"
#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {

// IEEE 754-2019, 9.6: NaN propagates, -0 < +0.
inline double LargerOf(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::nan("");
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
inline double SmallerOf(double a, double b) { return -LargerOf(-a, -b); }

// Every number of `x` beside the bound, which is one number of the program: the states that hold the larger
// and the smaller, with the bound as the second operand and as the first.
inline std::vector<sim::Tensor> BoundedOn(const std::shared_ptr<sim::Executor>& executor,
                                          const std::vector<double>& x, double bound,
                                          const std::string& preset) {
  const sim::Shape shape = {static_cast<int64_t>(x.size())};
  sim::Builder b("bounded");
  const sim::Var number = b.State("x", shape);
  for (const char* name : {"larger", "smaller", "larger_of_bound", "smaller_of_bound"}) {
    b.State(name, shape);
  }
  const sim::Var literal = b.Literal(bound, shape);
  b.SetNext({number, Max(number, literal), Min(number, literal), Max(literal, number),
             Min(literal, number)});
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = LowerForGradient(*world, PolicyOf({.preset = preset}), "");
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = WorkOf(*std::move(program), 2, 1);
  for (sim::Binding& binding : work.batch.inputs) binding = Shared(x, shape);
  sim::Observer observer;
  auto result = sim::Engine(executor).Execute(std::move(work), observer);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->final_states : std::vector<sim::Tensor>();
}

inline void ExpectBoundsOn(const std::shared_ptr<sim::Executor>& executor) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> x = {0.0,     -0.0, 1.0,      -1.0,      1.5,          -2.0,
                                 0x1p-14, 4.0,  infinity, -infinity, std::nan(""), -4.0};
  for (const std::string preset : {"f32", "f64", "bf16_unsafe"}) {
    for (const double bound : {0.0, -0.0, 1.0, -1.0, infinity, -infinity, 0x1p-14}) {
      const std::vector<sim::Tensor> states = BoundedOn(executor, x, bound, preset);
      ASSERT_EQ(states.size(), 5u);
      for (size_t i = 0; i < 2 * x.size(); ++i) {  // of both instances
        const double number = x[i % x.size()];
        for (size_t state = 1; state < states.size(); ++state) {
          const double expected =
              state % 2 == 1 ? LargerOf(number, bound) : SmallerOf(number, bound);
          const double given = states[state].Get(static_cast<int64_t>(i));
          const bool same = std::isnan(expected) ? std::isnan(given)
                                                 : std::bit_cast<uint64_t>(expected) ==
                                                       std::bit_cast<uint64_t>(given);
          EXPECT_TRUE(same) << preset << ": state " << state << " of " << number << " and " << bound
                            << " is " << given;
        }
      }
    }
  }
}

}  // namespace simgrad::tests
