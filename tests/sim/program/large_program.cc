#include "tests/sim/program/large_program.h"

#include <string>
#include <utility>

#include "sim/program/builder.h"

namespace simgrad::sim::large {
namespace {

using enum OpCode;

int64_t OperationsOf(const Region& region) {
  int64_t operations = 0;
  for (const Op& op : region.ops) {
    ++operations;
    for (const Region& nested : op.regions) operations += OperationsOf(nested);
  }
  return operations;
}

class Writer {
 public:
  Writer(int64_t operations, Step step) : operations_(operations), step_(step), b_("large") {}

  Program Write() {
    const Vars states = {b_.State("bodies", {3}), b_.State("joints", {9, 3}),
                         b_.State("field", {27, 27})};
    const Var k = b_.Param("k", {}, 0.5);
    const Var u = b_.Control("u", {3}, 0.25);
    Vars next = states;
    // Every block is as large as the first; the next states and the objective take fewer than kEnd.
    constexpr int64_t kEnd = 30;
    WriteBlock(next, k, u);
    const int64_t block = OperationsOf(b_.program().step);
    for (int64_t left = operations_ - kEnd - block; left >= block; left -= block) {
      WriteBlock(next, k, u);
    }
    for (size_t i = 0; step_ == Step::kAdvances && i < next.size(); ++i) {
      next[i] = states[i] + 0.125 * next[i];
    }
    b_.SetNext(next);
    b_.AddObjective("cost", nullptr, [&](const Vars& ends, const Vars&) {
      Var sum = b_.Reduce(kSum, ends[0] * ends[0]);
      for (size_t i = 1; i < ends.size(); ++i) sum = sum + b_.Mean(ends[i] * ends[i]);
      return sum;
    });
    return b_.Finish().value();
  }

 private:
  Var Arithmetic(Var x, Var y, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      switch (i % 6) {
        case 0:
          x = b_.Apply(kSin, {x}) + y;
          break;
        case 1:
          x = 0.5 * x - y;
          break;
        case 2:
          x = Max(x, 0.25 * y);
          break;
        case 3:
          x = x * b_.Apply(kTanh, {y});
          break;
        case 4:
          x = x / (b_.Apply(kSoftplus, {y}) + b_.Literal(0.5));
          break;
        default:
          x = b_.Apply(kSqrt, {x * x + b_.Literal(0.125)});
          break;
      }
    }
    return x;
  }

  // A solver: a loop in a loop in a loop, five operations or so at each depth.
  Var Solve(Var x, Var k) {
    const std::string site = "solve" + std::to_string(++sites_);
    return b_.For(2, {x}, [&](Var, const Vars& outer) {
      WhileOptions options;
      options.site = site;
      options.max_iter = 3;
      const auto test = [&](const Vars& carried, const Vars&) {
        const Var residual = b_.Reduce(kSum, b_.Apply(kAbs, {carried[0] - k * outer[0]}));
        return LoopTest{residual, b_.Literal(0.125), std::nullopt, {}};
      };
      const auto body = [&](const Vars& carried, const Vars&, const Vars&) {
        return b_.For(2, carried, [&](Var, const Vars& inner) {
          return Vars{Arithmetic(inner[0], k * outer[0], 3)};
        });
      };
      return b_.While(options, {Arithmetic(outer[0], outer[0], 2)}, {}, test, body).carried;
    })[0];
  }

  // Contact: an event decides which of two forces acts.
  Var Touch(Var x, Var y) {
    const Var touches =
        b_.Event("touch" + std::to_string(++sites_), x, Comparison::kLt, b_.Literal(0.0));
    return Select(touches, Arithmetic(x, y, 3), 0.5 * x);
  }

  void WriteBlock(Vars& values, Var k, Var u) {
    b_.Label("block " + std::to_string(++blocks_));
    Var& bodies = values[0];
    Var& joints = values[1];
    Var& field = values[2];
    bodies = Arithmetic(bodies, u, 12);
    bodies = Touch(Solve(bodies, k), u);
    joints = Arithmetic(joints, b_.Broadcast(bodies, {9, 3}, {1}), 12);
    const Var flat = b_.Reshape(joints, {27});
    const Var turned = b_.Concat({b_.Slice(flat, {9}, {18}), b_.Slice(flat, {0}, {9})}, 0);
    joints = 0.5 * joints + 0.5 * b_.Reshape(b_.Cumsum(turned, 0), {9, 3});
    field = Arithmetic(field, b_.Broadcast(turned, {27, 27}, {0}), 6);
    bodies = bodies + b_.Mean(field) * k;
  }

  const int64_t operations_;
  const Step step_;
  Builder b_;
  int sites_ = 0;
  int blocks_ = 0;
};

}  // namespace

int64_t OperationsOf(const Program& program) {
  int64_t operations = OperationsOf(program.initial) + OperationsOf(program.step);
  for (const Objective& objective : program.objectives) {
    operations += OperationsOf(objective.stage) + OperationsOf(objective.terminal);
  }
  return operations;
}

Program LargeProgram(int64_t operations, Step step) { return Writer(operations, step).Write(); }

}  // namespace simgrad::sim::large
