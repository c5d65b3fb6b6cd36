// What lowering promises: formats by role and site, one rounding of inputs, canonical text.

#include "sim/program/lower.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <variant>

#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "sim/program/print.h"
#include "sim/worlds/worlds.h"

namespace simgrad::sim {
namespace {

precision::Policy Preset(const std::string& preset) {
  precision::PolicySpec spec;
  spec.preset = preset;
  return std::get<precision::Policy>(precision::Resolve(spec));
}

Program Ball(double elements = 9.0) {
  return *BuildWorld("bouncing_ball", {{"elements", elements}, {"clamp", false}});
}

AdjointSpec Everything(const Program& world, const std::string& objective) {
  AdjointSpec spec;
  spec.objective = objective;
  for (const Input& input : world.inputs) spec.wanted.push_back(IsDifferentiable(world, input));
  return spec;
}

template <typename Visit>
void ForEachOp(const Region& region, const Visit& visit) {
  for (const Op& op : region.ops) {
    visit(op);
    for (const Region& nested : op.regions) ForEachOp(nested, visit);
  }
}

TEST(Lower, GivesEveryOperandTheFormatItsOperationComputesIn) {
  for (const std::string& preset : precision::PresetNames()) {
    const Program world = Ball();
    const auto lowered = Lower(world, Preset(preset), "tracking", Everything(world, "tracking"));
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    const Program& program = lowered->program;
    const auto check = [&](const Op& op) {
      const OpClass kind = InfoOf(op.code).op_class;
      const bool moves = op.code == OpCode::kCast || op.code == OpCode::kTape || op.results.empty();
      if (moves || kind != OpClass::kElementwise) return;
      for (ValueId id : op.operands) {
        EXPECT_EQ(program[id].format, program[op.results[0]].format) << InfoOf(op.code).name;
      }
    };
    ForEachOp(program.step, check);
    ForEachOp(lowered->adjoint->inner, check);
    ForEachOp(lowered->adjoint->Last(), check);
  }
}

TEST(Lower, PutsTheTerminationTestIntoItsRoleAndTheSiteOverridesIt) {
  precision::PolicySpec spec;
  spec.preset = "bf16_safe";
  for (const bool by_site : {false, true}) {
    precision::RoleOverride exact;
    exact.format = Format::kF64;
    exact.order = Order::kReversed;
    if (by_site) spec.sites = {{"projection", exact}};
    const auto lowered =
        Lower(Ball(), std::get<precision::Policy>(precision::Resolve(spec)), "", std::nullopt);
    ASSERT_TRUE(lowered.ok());
    int sums = 0;
    ForEachOp(lowered->program.step, [&](const Op& op) {
      if (op.code != OpCode::kSum) return;
      ++sums;
      EXPECT_EQ(lowered->program[op.results[0]].format, by_site ? Format::kF64 : Format::kF32);
      EXPECT_EQ(op.attributes.order, by_site ? Order::kReversed : Order::kPairwise);
    });
    EXPECT_EQ(sums, 1);
  }
}

// docs/numerics.md section 2: a saturating store clamps an infinity, whatever format it comes in.
TEST(Lower, StoresEveryStateThroughOneCastWhereItsRoleSaturates) {
  precision::PolicySpec spec;
  spec.preset = "f32";
  for (const bool saturates : {false, true}) {
    precision::RoleOverride change;
    change.overflow = saturates ? Overflow::kSaturate : Overflow::kIeee;
    spec.roles = {{"state", change}};
    const auto lowered =
        Lower(Ball(), std::get<precision::Policy>(precision::Resolve(spec)), "", std::nullopt);
    ASSERT_TRUE(lowered.ok());
    const Region& step = lowered->program.step;
    int stores = 0;
    ForEachOp(step,
              [&](const Op& op) { stores += op.code == OpCode::kCast && op.role == Role::kState; });
    // The ball itself stores y, which `tracking` reads.
    EXPECT_EQ(stores, saturates ? 2 : 1);
    EXPECT_EQ(step.yields.size(), 2u);
  }
}

TEST(Lower, RoundsALiteralOncePerFormatFromItsExactNumber) {
  Builder b("tenth");
  const Var x = b.State("x", {});
  const Var tenth = b.Literal(0.1);
  const Var in_bf16 = x * tenth;
  RoleScope role(b, Role::kEvent);
  b.Event("low", in_bf16, Comparison::kLt, tenth);
  b.SetNext({in_bf16});
  const auto lowered = Lower(*b.Finish(), Preset("bf16_safe"), "", std::nullopt);
  ASSERT_TRUE(lowered.ok());
  std::set<double> literals;
  ForEachOp(lowered->program.step, [&](const Op& op) {
    if (op.code == OpCode::kLiteral) literals.insert(op.attributes.literal[0]);
  });
  // bf16(0.1) = 0x1.9ap-4, f32(0.1) = 0x1.99999ap-4: not f32(bf16(0.1)).
  EXPECT_EQ(literals, (std::set<double>{0x1.9ap-4, 0x1.99999ap-4}));
}

TEST(Lower, FingerprintChangesWithEveryNumberOfTheProgram) {
  const auto fingerprint = [](const Config& config, const std::string& preset) {
    return Lower(*BuildWorld("boundary_projection", config), Preset(preset), "", std::nullopt)
        ->fingerprint;
  };
  const std::set<std::string> all = {
      fingerprint({}, "f32"),
      fingerprint({{"tol", 0x1.000002p-10}}, "f32"),
      fingerprint({{"tol", 0x1p-10}}, "f32"),
      fingerprint({{"max_iter", 26.0}}, "f32"),
      fingerprint({{"elements", 2.0}}, "f32"),
      fingerprint({}, "f64"),
      fingerprint({}, "bf16_safe"),
      fingerprint({{"scope", std::string("element")}}, "f32"),
  };
  EXPECT_EQ(all.size(), 8u);
  EXPECT_EQ(fingerprint({}, "f32"), fingerprint({}, "f32"));
}

precision::Policy Shuffled(const std::string& role, uint64_t seed) {
  precision::PolicySpec spec;
  precision::RoleOverride change;
  change.order = precision::SumOrder(Order::kShuffled, seed);
  spec.roles.push_back({role, change});
  return std::get<precision::Policy>(precision::Resolve(spec));
}

TEST(Lower, NamesTheSeedOfAShuffledSum) {
  const auto text = [](const precision::Policy& policy) {
    return Lower(Ball(), policy, "", std::nullopt)->text;
  };
  const std::string seven = text(Shuffled("termination", 7));
  EXPECT_NE(seven.find(" order=shuffled(7) "), std::string::npos) << seven;
  EXPECT_EQ(seven, text(Shuffled("termination", 7)));
  EXPECT_NE(seven, text(Shuffled("termination", 8)));
  EXPECT_EQ(text(Preset("f32")).find("shuffled"), std::string::npos);
}

// Sums of one length share a permutation, so that a thousand of them cost one.
TEST(Lower, LimitsThePermutationsOfShuffledSumsAndCountsEachOnce) {
  LoweredLimits limits;
  limits.max_permuted = 9;
  PassBudget enough({}, limits);
  EXPECT_TRUE(Lower(Ball(9), Shuffled("termination", 7), "", std::nullopt, &enough).ok());
  PassBudget few({}, limits);
  const auto refused = Lower(Ball(10), Shuffled("termination", 7), "", std::nullopt, &few);
  EXPECT_TRUE(IsLimit(refused.status())) << refused.status();
  EXPECT_EQ(FieldOf(refused.status()), "policy");
}

TEST(Lower, APermutationOfProductsHasAsManyNumbersAsEachSumHasProducts) {
  Builder b("product");
  const Var x = b.State("x", {3, 10});
  const Var product = b.Do(OpCode::kMatmul, {x, b.Literal(2.0, {10, 4})});
  b.SetNext({b.Broadcast(b.Reduce(OpCode::kReduceMax, product), {3, 10}, {})});
  precision::Policy policy = Preset("f32");
  policy.roles[static_cast<size_t>(Role::kDynamics)].products.order =
      precision::SumOrder(Order::kShuffled, 7);
  const auto lowered = [&](int64_t limit) {
    LoweredLimits limits;
    limits.max_permuted = limit;
    PassBudget budget({}, limits);
    return Lower(b.program(), policy, "", std::nullopt, &budget).status();
  };
  EXPECT_TRUE(lowered(10).ok()) << lowered(10);
  EXPECT_EQ(FieldOf(lowered(9)), "policy");
  policy = Shuffled("dynamics", 7);  // of sums alone: there is none
  EXPECT_TRUE(lowered(9).ok()) << lowered(9);
}

TEST(Lower, TheForwardFingerprintIsThatOfTheSameForwardPassWithAnyAdjoint) {
  const Program world = Ball();
  const precision::Policy policy = Preset("f16_safe");  // has a loss scale
  const auto forward = [&](const std::optional<AdjointSpec>& adjoint, double elements = 9.0) {
    return Lower(Ball(elements), policy, "tracking", adjoint)->forward_fingerprint;
  };
  const AdjointSpec one = Everything(world, "tracking");
  const auto lowered = Lower(world, policy, "tracking", one);
  const NumericalProgram alone = [&] {
    NumericalProgram p = *lowered;
    p.adjoint.reset();
    return p;
  }();
  // A program without its adjoint is printed as the part of its text says.
  EXPECT_EQ(lowered->forward_fingerprint, ForwardFingerprint(PrintParts(alone)));
  EXPECT_EQ(forward(one), lowered->forward_fingerprint);
  EXPECT_NE(forward(one), lowered->fingerprint);
  EXPECT_NE(forward(one, 8.0), forward(one));
}

TEST(Lower, ForwardPassesOfTwoObjectivesAreNeverTakenForEachOther) {
  Builder b("costs");
  const Var x = b.State("x", {});
  b.SetNext({x});
  const auto square = [](const Vars& states, const Vars&) { return states[0] * states[0]; };
  for (const char* name : {"a", "b"}) b.AddObjective(name, nullptr, square);
  const Program world = b.program();
  const auto forward = [&](const std::string& objective) {
    return Lower(world, Preset("f64"), objective, Everything(world, objective))
        ->forward_fingerprint;
  };
  EXPECT_EQ(forward("a"), forward("a"));
  EXPECT_NE(forward("a"), forward("b"));
}

TEST(Lower, FingerprintIsTheSha256OfTheText) {
  // FIPS 180-4, the message "abc".
  EXPECT_EQ(Fingerprint("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Lower, NamesTheFieldOfAnUnknownObjectiveAndSite) {
  EXPECT_EQ(FieldOf(Lower(Ball(), Preset("f32"), "final_speed", std::nullopt).status()),
            "objective");
  precision::PolicySpec spec;
  spec.sites = {{"contact", {}}, {"projektion", {}}};
  const auto lowered =
      Lower(Ball(), std::get<precision::Policy>(precision::Resolve(spec)), "", std::nullopt);
  EXPECT_EQ(FieldOf(lowered.status()), "policy.sites[1].site");
}

TEST(Lower, KnowsWhichInputsItReads) {
  const Program world = Ball();
  const auto used = [&](const std::string& objective, InputKind kind, const std::string& name) {
    return Lower(world, Preset("f32"), objective, std::nullopt)
        ->program.FindInput(kind, name)
        ->used;
  };
  EXPECT_FALSE(used("final_height", InputKind::kData, "y"));
  EXPECT_TRUE(used("tracking", InputKind::kData, "y"));
  EXPECT_TRUE(used("target_height", InputKind::kData, "target"));
  EXPECT_FALSE(used("", InputKind::kParam, "damping"));
  EXPECT_TRUE(used("", InputKind::kParam, "k"));
}

// Whether a world whose step is `code` of its state says `functions 2`.
bool SaysFunctions(OpCode code, const std::string& preset, bool gradient = false) {
  Builder b("one");
  const Var x = b.State("x", {2});
  std::vector<Var> operands(static_cast<size_t>(InfoOf(code).operands.least), x);
  const Var y = b.Apply(code, operands);
  b.SetNext({y});
  b.AddObjective("sum", nullptr, [&](const std::vector<Var>& ends, const std::vector<Var>&) {
    return b.Reduce(OpCode::kSum, ends[0]);
  });
  const Program world = *b.Finish();
  const auto adjoint = gradient ? std::optional(Everything(world, "sum")) : std::nullopt;
  const auto lowered = Lower(world, Preset(preset), gradient ? "sum" : "", adjoint);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return lowered->text.find("\nfunctions 2\n") != std::string::npos;
}

TEST(Print, SaysWhichEditionOfTheFunctionsAProgramMeansWhereThatMatters) {
  for (OpCode code : {OpCode::kLog, OpCode::kLog1p, OpCode::kSin, OpCode::kCos, OpCode::kSigmoid,
                      OpCode::kSoftplus}) {
    EXPECT_TRUE(SaysFunctions(code, "f32")) << InfoOf(code).name;
    EXPECT_FALSE(SaysFunctions(code, "f64")) << InfoOf(code).name;
    EXPECT_FALSE(SaysFunctions(code, "bf16_unsafe")) << InfoOf(code).name;
  }
  for (OpCode code : {OpCode::kExp, OpCode::kExpm1, OpCode::kTanh, OpCode::kPow, OpCode::kSqrt}) {
    EXPECT_FALSE(SaysFunctions(code, "f32")) << InfoOf(code).name;
  }
  EXPECT_TRUE(SaysFunctions(OpCode::kAtan2, "bf16_unsafe"));
  EXPECT_FALSE(SaysFunctions(OpCode::kAtan2, "f32"));
}

TEST(Print, CountsTheFunctionsOfTheAdjointToo) {
  EXPECT_TRUE(SaysFunctions(OpCode::kPow, "f32", true));  // the derivative has a logarithm
  EXPECT_FALSE(SaysFunctions(OpCode::kExp, "f32", true));
}

// Roles that no operation bears, but that change bits.
TEST(Print, SaysHowGradientsAndCostsAreAddedUpWhereThatIsUnusual) {
  const Program world = Ball();
  const auto text_of = [&](const std::string& preset, Role role,
                           const precision::RoleOverride& change) {
    precision::PolicySpec spec;
    spec.preset = preset;
    spec.roles = {{std::string(precision::RoleName(role)), change}};
    const auto policy = std::get<precision::Policy>(precision::Resolve(spec));
    return Lower(world, policy, "tracking", Everything(world, "tracking"))->text;
  };
  const auto holds = [](const std::string& text, const std::string& line) {
    return text.find("\n" + line) != std::string::npos;
  };
  for (const std::string& preset : precision::PresetNames()) {
    const auto lowered = Lower(world, Preset(preset), "tracking", Everything(world, "tracking"));
    EXPECT_FALSE(holds(lowered->text, "gradient ")) << preset;
    EXPECT_FALSE(holds(lowered->text, "sum of costs ")) << preset;
  }
  EXPECT_TRUE(holds(text_of("f32", Role::kGradient, {.format = Format::kBf16}),
                    "gradient bf16 accumulator=f32\n"));
  EXPECT_TRUE(holds(
      text_of("f32", Role::kGradient, {.format = Format::kF16, .overflow = Overflow::kSaturate}),
      "gradient f16 saturate accumulator=f32\n"));
  EXPECT_TRUE(holds(text_of("f64", Role::kGradient, {.accumulator = Format::kF32}),
                    "gradient f64 accumulator=f32\n"));
  EXPECT_TRUE(holds(text_of("f32", Role::kObjective, {.accumulator = Format::kF64}),
                    "sum of costs accumulator=f64\n"));
}

// A name is the caller's text: neither may it end its line nor stand for a site.
TEST(Print, ANameIsNoPartOfTheProgramThatItStandsIn) {
  const auto text_of = [](const std::string& name, const std::string& site) {
    Builder b("names");
    const Var x = b.State("x", {3});
    const SiteScope scope(b, site);
    b.SetNext({b.Broadcast(b.Named(b.Reduce(OpCode::kSum, x), name), {3}, {})});
    return Lower(*b.Finish(), Preset("f32"), "", {})->text;
  };
  EXPECT_NE(text_of("@a", ""), text_of("", "a"));
  EXPECT_EQ(text_of("y\n  %9:f32[] = neg %1", "").find("\n  %9"), std::string::npos);
  EXPECT_NE(text_of("y z|", "").find(" y z|\n"), std::string::npos);
}

// Whatever level names it, a comparison computes in the format that a policy sets at its site.
TEST(Lower, ATestHasTheSettingOfItsSiteAtEveryLevel) {
  for (const char* const set : {"rest", "contact"}) {
    std::set<std::string> found;
    for (const TestLevel level : {TestLevel::kLoops, TestLevel::kDecisions, TestLevel::kAll}) {
      Builder b("levels");
      const Var x = b.State("x", {});
      Var less;
      {
        const SiteScope scope(b, "contact");
        less = b.Do(OpCode::kLt, {x, b.Literal(0.3)}, {.site = "rest"});
      }
      b.SetNext({Select(less, 0.5 * x, x)});
      b.program().level = level;
      precision::Policy policy = Preset("f32");
      policy.sites = {{set, {.format = Format::kBf16}}};
      const auto lowered = Lower(*b.Finish(), policy, "", {});
      ASSERT_TRUE(lowered.ok()) << lowered.status();
      ForEachOp(lowered->program.step, [&](const Op& op) {
        if (op.code != OpCode::kLt && !IsTest(op)) return;
        found.emplace(precision::FormatName(*lowered->program[op.operands[0]].format));
      });
    }
    EXPECT_EQ(found, (std::set<std::string>{set == std::string("rest") ? "bf16" : "f32"})) << set;
  }
}

TEST(Print, WritesNumbersAsPrintfDoes) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<double> numbers = {
      0.0,  -0.0,  1.0,   -1.0, 0.1, 0x1p-1022, 0x1p-1074, -0x1.8p-1030, 0x1.fffffffffffffp+1023,
      kInf, -kInf, 3e-300};
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const auto x = std::bit_cast<double>(random());
    if (x == x) numbers.push_back(x);
  }
  std::string text = "literal";
  for (const double x : numbers) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, " %a", x);
    text += buffer;
  }
  Builder b("numbers");
  const Shape shape = {static_cast<int64_t>(numbers.size())};
  const Var state = b.State("x", shape);
  b.SetNext({state + b.LiteralArray(numbers, shape)});
  const auto program = b.Finish();
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_NE(Print(*program).find(text + "  #"), std::string::npos);
}

TEST(OpTable, NamesAreUniqueAndFindTheirOperation) {
  std::set<std::string_view> names;
  EachOp([&](OpCode code, const OpInfo& info) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(OpFromName(info.name), code);
  });
  EXPECT_EQ(OpFromName("multiply"), std::nullopt);
}

}  // namespace
}  // namespace simgrad::sim
