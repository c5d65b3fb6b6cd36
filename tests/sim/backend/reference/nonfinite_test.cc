// Policies report and stop, and the birth certificate of every class.
#include <cmath>

#include "sim/backend/reference/certificate.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using tests::FinalState;
using tests::Outcome;
using tests::RunProgram;
using tests::Setting;

constexpr double kInf = std::numeric_limits<double>::infinity();

// x <- x * x in f64, with stage cost x: 2^256, 2^512, 2^1024 = Inf at step 2.
Setting Squaring(precision::NonFinite mode) {
  Setting setting;
  setting.policy.preset = "f64";
  setting.policy.nonfinite = mode;
  setting.objective = "sum";
  setting.steps = 5;
  setting.states = {{0x1p256}};
  return setting;
}

void WriteSquaring(Builder& b) {
  const Var x = b.State("x", {});
  b.Event("huge", x, Comparison::kGt, b.Literal(0x1p300));
  const Var next = b.Named(x * x, "next");
  b.SetNext({next});
  b.Export("next", next);
  b.AddObjective(
      "sum", [&] { return next; }, nullptr);
}

TEST(NonFinite, IsReportedAtItsFirstStepAndRunsOn) {
  const Outcome outcome = RunProgram(Squaring(precision::NonFinite::kReport), WriteSquaring);
  EXPECT_EQ(FinalState(outcome)[0], kInf);
  const InstanceHealth& health = outcome.result.health[0];
  EXPECT_FALSE(health.ok);
  EXPECT_FALSE(health.stopped);
  EXPECT_EQ(health.phase, Phase::kForward);
  EXPECT_EQ(health.step, 1);  // 2^512 * 2^512
  EXPECT_EQ(outcome.result.values[0], kInf);
}

TEST(NonFinite, StopKeepsTheStateBeforeTheStepAndTakesNoFurtherCost) {
  const Outcome outcome = RunProgram(Squaring(precision::NonFinite::kStop), WriteSquaring);
  EXPECT_EQ(FinalState(outcome)[0], 0x1p512);
  EXPECT_TRUE(outcome.result.health[0].stopped);
  EXPECT_EQ(outcome.result.health[0].step, 1);
  EXPECT_EQ(outcome.result.values[0], 0x1p512);
  // What was decided in the step counts, nothing after it.
  const auto& events = outcome.seen.diagnostics.events[0];
  EXPECT_EQ(events[1].checks, 1u);
  EXPECT_EQ(events[2].checks, 0u);
  // No cotangent: +0 and not connected.
  EXPECT_EQ(outcome.result.gradients[0].connected, 0);
  EXPECT_EQ(outcome.result.gradients[0].gradient.Get(0), 0.0);
}

TEST(NonFinite, OfAStepIsFoundEvenWhereItVanishes) {
  Setting setting;
  setting.states = {{0.0}};
  const Outcome outcome = RunProgram(setting, [](Builder& b) {
    const Var x = b.State("x", {});
    b.SetNext({b.Literal(1.0) / (b.Literal(1.0) / x)});  // 1 / Inf = 0
  });
  EXPECT_EQ(FinalState(outcome)[0], 0.0);
  EXPECT_FALSE(outcome.result.health[0].ok);
}

BirthCertificate CertificateOf(const Setting& setting, const std::function<void(Builder&)>& write) {
  const Outcome outcome = RunProgram(setting, write);
  EXPECT_EQ(outcome.result.certificates.size(), 1u);
  return outcome.result.certificates.empty() ? BirthCertificate{} : outcome.result.certificates[0];
}

// One state x, x' = map(x).
BirthCertificate CertificateOfMap(double x, const std::string& preset,
                                  const std::function<Var(Builder&, Var)>& map) {
  Setting setting;
  setting.policy = tests::Preset(preset);
  setting.states = {{1.0, x}};
  return CertificateOf(setting, [&](Builder& b) {
    const Var s = b.State("x", {2});
    b.Label("x' = map(x)");
    b.SetNext({b.Named(map(b, s), "mapped")});
  });
}

TEST(Certificate, NamesADivisionByZero) {
  const BirthCertificate birth =
      CertificateOfMap(0.0, "f64", [](Builder& b, Var x) { return b.Literal(3.0) / x; });
  EXPECT_EQ(birth.non_finite_class, NonFiniteClass::kDivideByZero);
  EXPECT_EQ(birth.operation, "div");
  EXPECT_EQ(birth.label, "x' = map(x)");
  EXPECT_EQ(birth.value_name, "mapped");
  EXPECT_EQ(birth.role, precision::Role::kDynamics);
  EXPECT_EQ(birth.format, Format::kF64);
  EXPECT_EQ(birth.element, 1);
  EXPECT_EQ(birth.operands, (std::vector<double>{3.0, 0.0}));
  EXPECT_EQ(birth.result, kInf);
}

// Of x = (1, a) the factors of ((x, 1), (1, 3)) with their rows as they stand: 1 / a is the
// multiplier.
TEST(Certificate, CallsAPivotOfZeroAtGivenRowsADivisionByZero) {
  const auto factors = [](Builder& b, Var x) {
    const Var a = b.Concat({b.Slice(x, {1}, {1}), b.Literal(1.0, {2}), b.Literal(3.0, {1})}, 0);
    const Var rows = b.IntegerArray({0, 1}, {2});
    const Var lu = b.Do(OpCode::kLu, {b.Reshape(a, {2, 2}), rows});
    return b.Slice(b.Reshape(lu, {4}), {2}, {2});
  };
  const BirthCertificate birth = CertificateOfMap(0.0, "f64", factors);
  EXPECT_EQ(birth.operation, "lu");
  EXPECT_EQ(birth.non_finite_class, NonFiniteClass::kDivideByZero);
  EXPECT_EQ(birth.element, 2);
  EXPECT_EQ(birth.operands, (std::vector<double>{1.0, 0.0}));
  EXPECT_EQ(birth.result, kInf);
  const BirthCertificate large = CertificateOfMap(0x1p-1040, "f64", factors);
  EXPECT_EQ(large.non_finite_class, NonFiniteClass::kOverflow);
  EXPECT_EQ(large.operands, (std::vector<double>{1.0}));
}

TEST(Certificate, CallsTheLogarithmOfZeroADivisionByZero) {
  const auto log = [](Builder& b, Var x) { return b.Apply(OpCode::kLog, {x}); };
  EXPECT_EQ(CertificateOfMap(0.0, "f64", log).non_finite_class, NonFiniteClass::kDivideByZero);
  EXPECT_EQ(CertificateOfMap(-1.0, "f64", log).non_finite_class, NonFiniteClass::kInvalid);
}

TEST(Certificate, CallsNanFromFiniteOperandsInvalid) {
  EXPECT_EQ(CertificateOfMap(-4.0, "f64", [](Builder&, Var x) { return Sqrt(x); }).operation,
            "sqrt");
  EXPECT_EQ(CertificateOfMap(0.0, "f64", [](Builder&, Var x) { return x / x; }).non_finite_class,
            NonFiniteClass::kInvalid);
}

TEST(Certificate, CallsAnInfinityByMagnitudeOverflow) {
  const BirthCertificate product =
      CertificateOfMap(300.0, "f16_unsafe", [](Builder&, Var x) { return x * x; });
  EXPECT_EQ(product.non_finite_class, NonFiniteClass::kOverflow);
  EXPECT_EQ(product.format, Format::kF16);
  EXPECT_EQ(CertificateOfMap(12.0, "f16_unsafe",
                             [](Builder& b, Var x) { return b.Apply(OpCode::kExp, {x}); })
                .non_finite_class,
            NonFiniteClass::kOverflow);
  const BirthCertificate sum = CertificateOfMap(65504.0, "f16_unsafe", [](Builder& b, Var x) {
    return b.Broadcast(b.Reduce(OpCode::kSum, x + x), {2}, {});
  });
  EXPECT_EQ(sum.operation, "add");
}

TEST(Certificate, GivesTheExtremesThatASumRead) {
  Setting setting;
  setting.policy = tests::Preset("f16_unsafe");
  setting.states = {{60000.0, -8.0, 60000.0}};
  const BirthCertificate birth = CertificateOf(setting, [](Builder& b) {
    const Var x = b.State("x", {3});
    b.SetNext({b.Broadcast(b.Reduce(OpCode::kSum, x), {3}, {})});
  });
  EXPECT_EQ(birth.operation, "sum");
  EXPECT_EQ(birth.non_finite_class, NonFiniteClass::kOverflow);
  EXPECT_EQ(birth.operands, (std::vector<double>{-8.0, 60000.0}));  // 60000 rounds to itself
}

TEST(Certificate, CallsANumberBeyondANarrowerFormatConversion) {
  const BirthCertificate birth =
      CertificateOfMap(1.0, "f64", [](Builder& b, Var x) { return b.Cast(1e5 * x, Format::kF16); });
  EXPECT_EQ(birth.non_finite_class, NonFiniteClass::kConversion);
  EXPECT_EQ(birth.operation, "cast");
  EXPECT_EQ(birth.operands, (std::vector<double>{1e5}));
  EXPECT_EQ(birth.element, 0);
}

TEST(Certificate, NamesTheInputThatCameInNonFinite) {
  const BirthCertificate birth =
      CertificateOfMap(kInf, "f64", [](Builder&, Var x) { return x + x; });
  EXPECT_EQ(birth.phase, Phase::kInput);
  EXPECT_EQ(birth.operation, "state.x");
  EXPECT_EQ(birth.non_finite_class, NonFiniteClass::kInput);
  EXPECT_EQ(birth.element, 1);
  const BirthCertificate rounded =
      CertificateOfMap(1e6, "f16_unsafe", [](Builder&, Var x) { return x + x; });
  EXPECT_EQ(rounded.phase, Phase::kInput);
  EXPECT_EQ(rounded.non_finite_class, NonFiniteClass::kConversion);
}

TEST(Certificate, SaysWhichIterationOfWhichLoop) {
  Setting setting;
  setting.states = {{0x1p1000}};
  const BirthCertificate birth = CertificateOf(setting, [](Builder& b) {
    const Var x = b.State("x", {});
    WhileOptions options;
    options.site = "growth";
    options.max_iter = 4;
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& carried, const Vars&) {
          return LoopTest{carried[0], b.Literal(1.0), std::nullopt, {}};
        },
        [](const Vars& carried, const Vars&, const Vars&) { return Vars{0x1p10 * carried[0]}; });
    b.SetNext({loop.carried[0]});
  });
  EXPECT_EQ(birth.site, "growth");
  EXPECT_EQ(birth.iteration, 2);  // 2^1010, 2^1020, then beyond
  EXPECT_EQ(birth.operation, "mul");
}

TEST(Certificate, OfTheAdjointNamesItsStep) {
  Setting setting;
  setting.objective = "last";
  setting.steps = 3;
  setting.states = {{0.0}};
  const BirthCertificate birth = CertificateOf(setting, [](Builder& b) {
    const Var x = b.State("x", {});
    b.SetNext({Sqrt(x)});  // the derivative at 0 is 0.5 / 0
    b.AddObjective("last", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  });
  EXPECT_EQ(birth.phase, Phase::kAdjoint);
  EXPECT_EQ(birth.step, 2);
  EXPECT_EQ(birth.operation, "div");
  EXPECT_EQ(birth.non_finite_class, NonFiniteClass::kDivideByZero);
}

TEST(Certificate, IsTheSameFromACheckpointAndFromTheStart) {
  Setting setting = Squaring(precision::NonFinite::kReport);
  setting.states = {{1.0 + 0x1p-20}};
  setting.steps = 60;
  std::vector<BirthCertificate> births;
  for (int64_t chunk : {1, 7, 60}) {
    setting.adjust = [&](Work& work) { work.chunk_steps = chunk; };
    births.push_back(CertificateOf(setting, WriteSquaring));
  }
  EXPECT_GT(births[0].step, 7);
  for (const BirthCertificate& birth : births) {
    EXPECT_EQ(birth.step, births[0].step);
    EXPECT_EQ(birth.operands, births[0].operands);
    EXPECT_EQ(birth.non_finite_class, NonFiniteClass::kOverflow);
  }
}

}  // namespace
}  // namespace simgrad::sim
