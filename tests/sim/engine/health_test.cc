// Health and signatures of a run, asked for after every call: they are those of the states that
// stand then, whenever they were asked for before.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#ifdef SIMGRAD_WITH_COMPILED
#include "sim/backend/compiled/compiled_executor.h"
#endif
#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad {
namespace {

using sim::Builder;
using sim::InputKind;
using sim::InstanceHealth;
using sim::Phase;
using sim::Var;
using sim::Vars;
using sim::Work;

// A place where the second instance is born non-finite: the inverse of 0 is infinite, and so is the
// derivative of its root.
struct Birth {
  std::string name;
  std::function<Var(Builder&, Var)> initial, step, terminal;  // empty: nothing is made of x
  std::string call;                                           // that first tells it
  Phase phase = Phase::kForward;
};

Var Root(Builder&, Var x) { return Sqrt(x); }
Var Inverse(Builder& b, Var x) { return b.Literal(1.0) / x; }

std::vector<Birth> Births() {
  return {{"InInitial", Inverse, nullptr, nullptr, "Start", Phase::kForward},
          {"InAStep", nullptr, Inverse, nullptr, "Forward 0", Phase::kForward},
          {"InTheTerminalCost", nullptr, nullptr, Inverse, "Finish", Phase::kForward},
          {"InTheReversedTerminalCost", nullptr, nullptr, Root, "StartAdjoint", Phase::kAdjoint},
          {"InAReversedStep", nullptr, Root, nullptr, "Adjoint 1", Phase::kAdjoint},
          {"InTheReversedInitial", Root, nullptr, nullptr, "FinishAdjoint", Phase::kAdjoint}};
}

Work WorkOf(const Birth& birth) {
  Builder b("births");
  const Var x = b.State("x", {});
  const Var t = b.State("t", {});
  // Each step decides something else.
  b.Event("odd", t, sim::Comparison::kGt, b.Literal(0.5));
  const auto made = [&b](const auto& make, Var from) { return make ? make(b, from) : from; };
  if (birth.initial) b.SetInitial([&]() -> Vars { return {made(birth.initial, x), t}; });
  b.SetNext({made(birth.step, x), b.Literal(1.0) - t});
  b.AddObjective("last", nullptr,
                 [&](const Vars& states, const Vars&) { return made(birth.terminal, states[0]); });
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  precision::PolicySpec f64;
  f64.preset = "f64";
  auto program = tests::LowerForGradient(*world, tests::PolicyOf(f64), "last");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 3, 2);
  work.options.recording = sim::Recording::kSummary;
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles({1, 0, 1}, {3}), true, false});
  tests::Bind(work, InputKind::kState, "t", tests::Shared({1.0}, {}));
  return work;
}

// The words of a run after a call.
struct Told {
  std::string after;
  std::vector<InstanceHealth> health;
  std::vector<uint64_t> signatures;
};

std::vector<Told> ToldBy(sim::Executor& executor, const Work& work) {
  std::vector<Told> told;
  const auto made = executor.Create(work.batch, work.options);
  EXPECT_TRUE(made.ok()) << made.status();
  sim::Run& run = **made;
  const auto tell = [&](const std::string& after, const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << after << ": " << status;
    told.push_back({after, run.Health(), run.PathSignatures()});
  };
  tell("Start", run.Start());
  const auto at_0 = run.SaveState();
  tell("Forward 0", run.Forward(0, 1).status());
  const auto at_1 = run.SaveState();
  tell("Forward 1", run.Forward(1, 1).status());
  const auto back = [&](const std::string& to, const std::shared_ptr<const void>& saved) {
    run.RestoreState(saved);
    tell("back to " + to, absl::OkStatus());
  };
  back("0", at_0);
  tell("Forward both", run.Forward(0, 2).status());
  tell("Finish", run.Finish());
  const auto at_end = run.SaveState();
  back("1", at_1);
  back("the end", at_end);
  sim::WorkMeter meter;
  tell("StartAdjoint",
       run.StartAdjoint(1.0, sim::WeightsOf(work.batch.instance_ids, {}, {}, meter)));
  run.RestoreState(at_1);
  tell("Adjoint 1", run.Adjoint(1, 1).status());
  run.RestoreState(at_0);
  tell("Adjoint 0", run.Adjoint(0, 1).status());
  tell("FinishAdjoint", run.FinishAdjoint());
  return told;
}

class Health : public ::testing::TestWithParam<std::string> {
 protected:
  static std::shared_ptr<sim::Executor> MakeExecutor() {
#ifdef SIMGRAD_WITH_COMPILED
    if (GetParam() == "compiled") {
      return sim::compiled::MakeCompiledExecutor(
          sim::compiled::KernelOptions{.effort = sim::compiled::Effort::kQuick});
    }
#endif
    return sim::MakeReferenceExecutor();
  }
};

TEST_P(Health, IsThatOfTheStatesThatStandAfterEveryCall) {
  for (const Birth& birth : Births()) {
    const std::vector<Told> told = ToldBy(*MakeExecutor(), WorkOf(birth));
    bool born = false;
    for (const Told& now : told) {
      SCOPED_TRACE(birth.name + " after " + now.after);
      ASSERT_EQ(now.health.size(), 3u);
      EXPECT_TRUE(now.health[0].ok && now.health[2].ok);
      born = born || now.after == birth.call;
      // A state from before its birth is finite.
      const bool before =
          birth.phase == Phase::kForward && ((now.after == "back to 0" && birth.call != "Start") ||
                                             (now.after == "back to 1" && birth.call == "Finish"));
      const bool finite = !born || before;
      EXPECT_EQ(now.health[1].ok, finite);
      if (!finite) {
        EXPECT_EQ(now.health[1].phase, birth.phase);
      }
    }
    EXPECT_TRUE(born);
    const auto signature = [&](const std::string& after) {
      for (const Told& now : told) {
        if (now.after == after) return now.signatures[0];
      }
      return uint64_t{0};
    };
    EXPECT_NE(signature("Forward 0"), signature("Start"));
    EXPECT_NE(signature("Forward 1"), signature("Forward 0"));
    EXPECT_EQ(signature("back to 0"), signature("Start"));
    EXPECT_EQ(signature("Forward both"), signature("Forward 1"));
    EXPECT_EQ(signature("back to 1"), signature("Forward 0"));
    EXPECT_EQ(signature("back to the end"), signature("Forward 1"));
  }
}

std::vector<std::string> Executors() {
#ifdef SIMGRAD_WITH_COMPILED
  return {"reference", "compiled"};
#else
  return {"reference"};
#endif
}
INSTANTIATE_TEST_SUITE_P(Executors, Health, ::testing::ValuesIn(Executors()),
                         [](const auto& executor) { return executor.param; });

}  // namespace
}  // namespace simgrad
