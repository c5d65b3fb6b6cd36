// Margins by element: what the diagnostics say of a site follows from them, on every executor, and
// a run that gives them is the plain one to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "sim/program/lower.h"
#include "sim/program/record_margins.h"
#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using equality::FirstDifference;
using equality::Observe;
using equality::Observed;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The sites whose diagnostics count what margins by element show: not loops that a bool stops,
// which have none, nor those with a test of their entry, which is counted with that of their end.
// `runs` is false within a loop of 0 turns, in which nothing has.
void FindOthers(const Region& region, std::set<std::string>& sites, bool runs = true) {
  for (const Op& op : region.ops) {
    const bool is_other = op.attributes.predicate || op.attributes.has_entry;
    if (!runs || (op.code == OpCode::kWhile && is_other)) sites.insert(op.attributes.site);
    const bool turns = op.code != OpCode::kFor || op.attributes.max_iter > 0;
    for (const Region& nested : op.regions) FindOthers(nested, sites, runs && turns);
  }
}
std::set<std::string> OthersOf(const NumericalProgram& program) {
  std::set<std::string> others;
  FindOthers(program.program.step, others);
  return others;
}
std::vector<std::string> SitesWithMargins(const NumericalProgram& program) {
  const std::set<std::string> others = OthersOf(program);
  std::vector<std::string> sites;
  for (const Site& site : program.sites) {
    if (others.count(site.name) == 0) sites.push_back(site.name);
  }
  return sites;
}

// The same work, with margins; without its gradient, if it has one.
struct Pair {
  Work plain, telling;
  size_t exports;  // of the world
};
absl::StatusOr<Pair> WithMargins(const Program& world, const Work& work,
                                 const std::vector<std::string>& sites) {
  const NumericalProgram& before = *work.batch.program;
  auto plain = Lower(world, before.policy, before.objective, std::nullopt);
  if (!plain.ok()) return plain.status();
  auto telling =
      Lower(world, before.policy, before.objective, std::nullopt, nullptr, {.margins = sites});
  if (!telling.ok()) return telling.status();
  EXPECT_EQ(plain->fingerprint, telling->fingerprint);
  Pair pair{work, work, plain->program.exports.size()};
  for (Work* made : {&pair.plain, &pair.telling}) {
    made->gradient.reset();
    made->batch.cotangents = {};
    made->batch.inputs.resize(plain->program.inputs.size());
  }
  for (size_t i = pair.exports; i < telling->program.exports.size(); ++i) {
    pair.telling.options.record_exports.push_back(static_cast<int32_t>(i));
  }
  pair.plain.batch.program = std::make_shared<const NumericalProgram>(*std::move(plain));
  pair.telling.batch.program = std::make_shared<const NumericalProgram>(*std::move(telling));
  return pair;
}

// [N, T, elements] of a trajectory of f64.
std::vector<double> Numbers(const Tensor& tensor) {
  std::vector<double> numbers(tensor.bytes.size() / sizeof(double));
  if (!numbers.empty()) std::memcpy(numbers.data(), tensor.bytes.data(), tensor.bytes.size());
  return numbers;
}

struct Told {
  uint64_t numbers = 0;                                    // that are not NaN
  double least = std::numeric_limits<double>::infinity();  // magnitude
  bool has_least = false;                                  // what the diagnostics tell is there
};
// Of one step, of all instances.
Told Of(const Tensor& margins, int64_t steps, int64_t step, double least) {
  const std::vector<double> all = Numbers(margins);
  const size_t instances = static_cast<size_t>(margins.shape[0]);
  const size_t each = all.size() / (instances * static_cast<size_t>(steps));
  Told told;
  for (size_t n = 0; n < instances; ++n) {
    for (size_t e = 0; e < each; ++e) {
      const double x = all[(n * static_cast<size_t>(steps) + static_cast<size_t>(step)) * each + e];
      if (std::isnan(x)) continue;
      ++told.numbers;
      told.least = std::min(told.least, std::abs(x));
      told.has_least |= std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(least);
    }
  }
  return told;
}

class MarginsByElement : public testing::TestWithParam<bool> {
 protected:
  static std::shared_ptr<Executor> Chosen() {
    if (GetParam()) return MakeCpuExecutor();
    return MakeReferenceExecutor();
  }
};
INSTANTIATE_TEST_SUITE_P(Executors, MarginsByElement, testing::Bool(),
                         [](const auto& made) { return made.param ? "Cpu" : "Reference"; });

TEST_P(MarginsByElement, OfRandomProgramsAreThoseThatTheDiagnosticsCount) {
  const uint64_t cases = (GetParam() ? 60 : 120) / (kSanitized ? 4 : 1);
  uint64_t counted = 0, smallest = 0, in_loops = 0;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE(seed);
    const auto made = equality::MakeCase(seed, {.instances = 3, .steps = 3});
    ASSERT_TRUE(made.ok()) << made.status();
    Work work = made->work;
    work.options.recording = Recording::kInstances;
    const std::vector<std::string> sites = SitesWithMargins(*work.batch.program);
    if (sites.empty()) continue;
    const auto pair = WithMargins(made->world, work, sites);
    ASSERT_TRUE(pair.ok()) << pair.status();
    const auto plain = Observe(Chosen(), pair->plain);
    ASSERT_TRUE(plain.ok()) << plain.status();
    auto telling = Observe(Chosen(), pair->telling);
    ASSERT_TRUE(telling.ok()) << telling.status();
    const size_t first = plain->exports.size();
    std::vector<Tensor> margins(telling->exports.begin() + static_cast<int64_t>(first),
                                telling->exports.end());
    telling->exports.resize(first);
    ASSERT_EQ(FirstDifference(*plain, *telling), std::nullopt);
    // An instance that was stopped counts no more, but has numbers.
    bool stopped = false;
    for (const InstanceHealth& health : plain->result.health) stopped |= health.stopped;
    if (stopped || margins.empty()) continue;

    const NumericalProgram& program = *pair->telling.batch.program;
    const int64_t steps = work.batch.steps;
    std::map<std::string, const Tensor*> by_name;
    for (size_t k = 0; k < margins.size(); ++k) {
      by_name[program.program.exports[pair->exports + k].name] = &margins[k];
    }
    const std::set<std::string> others = OthersOf(*pair->plain.batch.program);
    size_t loop = 0, event = 0;
    for (const Site& site : program.sites) {
      const bool is_loop = site.kind == SiteKind::kTermination;
      const size_t at = is_loop ? loop++ : event++;
      const auto found = by_name.find(MarginExport(site.name));
      if (others.count(site.name) != 0) continue;
      ASSERT_NE(found, by_name.end()) << site.name;
      SCOPED_TRACE(site.name);
      for (int64_t t = 0; t < steps; ++t) {
        SmallestMargin margin;
        uint64_t numbers = 0;
        if (is_loop) {
          const TerminationStep& step = plain->diagnostics.terminations[at][static_cast<size_t>(t)];
          margin = step.margin;
          numbers = step.checks - step.nan_margins;
          in_loops += step.checks;
        } else {
          const EventStep& step = plain->diagnostics.events[at][static_cast<size_t>(t)];
          margin = step.margin;
          numbers = step.checks - step.nan_margins;
        }
        const Told told = Of(*found->second, steps, t, margin.absolute);
        EXPECT_EQ(told.numbers, numbers);
        EXPECT_EQ(told.has_least, margin.any);
        EXPECT_EQ(told.least, margin.any ? std::abs(margin.absolute) : kInfinity);
        counted += numbers;
        smallest += margin.any ? 1 : 0;
      }
    }
  }
  EXPECT_GT(counted, 20 * cases);
  EXPECT_GT(smallest, 2 * cases);
  EXPECT_GT(in_loops, 4 * cases);
}

// A test of each kind of place: at the top with a guard, in the body of a loop, as what stops it,
// in a branch, in a scan, and between infinities that are meant.
Program Placed() {
  Builder b("placed");
  const Var x = b.State("x", {2});
  const Var positive = b.Event("positive", x, Comparison::kGt, b.Literal(0.0, {2}));
  b.Event("guarded", x, Comparison::kGt, b.Literal(1.0, {2}), positive);
  const LoopResult halves = b.While(
      {.site = "halves", .max_iter = 3}, {b.Reduce(OpCode::kReduceMax, x)}, {},
      [&](const Vars& c, const Vars&) -> LoopTest {
        return {c[0], b.Literal(0.6), {}, {}};
      },
      [&](const Vars& c, const Vars&, const Vars&) -> Vars {
        const Var inside = b.Event("inside", c[0], Comparison::kGt, b.Literal(2.0));
        return {Select(inside, 0.25 * c[0], 0.5 * c[0])};
      });
  const Var far = b.Event("far", halves.carried[0], Comparison::kGt, b.Literal(0.55));
  const Vars taken = b.Cond(far, {halves.carried[0]},
                            {[&](const Vars& a) -> Vars {
                               const Var low =
                                   b.Event("low", a[0], Comparison::kLt, b.Literal(0.5));
                               return {Select(low, a[0], 2.0 * a[0])};
                             },
                             [&](const Vars& a) -> Vars { return {a[0]}; }});
  const LoopResult entered = b.While(
      {.site = "entered", .max_iter = 2}, {halves.carried[0]}, {},
      [&](const Vars& c, const Vars&) -> LoopTest {
        return {c[0], b.Literal(0.25), b.Literal(0.55), {}};
      },
      [&](const Vars& c, const Vars&, const Vars&) -> Vars { return {0.5 * c[0]}; });
  const Vars unturned =
      b.Scan(0, {entered.carried[0]}, {}, false, [&](Var, const Vars& c, const Vars&) -> Vars {
        const Var never = b.Event("never", c[0], Comparison::kGt, c[0]);
        return {Select(never, c[0], 2.0 * c[0])};
      });
  const double infinity = std::numeric_limits<double>::infinity();
  b.Event("endless", b.Literal(infinity), Comparison::kLt, b.Literal(infinity));
  b.SetNext({x + b.Broadcast(0.0 * (taken[0] + unturned[0]), {2}, {})});
  absl::StatusOr<Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

Work PlacedWork(const Program& world, const std::vector<std::string>& sites,
                const std::vector<double>& x) {
  auto program = Lower(world, tests::PolicyOf({.preset = "f32"}), "", std::nullopt, nullptr,
                       {.margins = sites});
  EXPECT_TRUE(program.ok()) << program.status();
  const auto instances = static_cast<int64_t>(x.size() / 2);
  Work work = tests::WorkOf(*std::move(program), instances, 1);
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles(x, {instances, 2}), true, false});
  for (size_t i = 0; i < sites.size(); ++i) {
    work.options.record_exports.push_back(static_cast<int32_t>(i));
  }
  return work;
}

TEST_P(MarginsByElement, HaveTheAxesOfTheirLoopsAndAreNanWhereNothingWasDecided) {
  const std::vector<std::string> sites = {"positive", "guarded", "halves",  "inside",
                                          "far",      "low",     "entered", "endless"};
  const Work work = PlacedWork(Placed(), sites, {-1.0, 4.0, 0.58, 0.25});
  const auto run = Observe(Chosen(), work);
  ASSERT_TRUE(run.ok()) << run.status();
  for (const InstanceHealth& health : run->result.health) EXPECT_TRUE(health.ok);
  EXPECT_TRUE(run->result.certificates.empty());
  const auto f32 = [](float x) { return static_cast<double>(x); };
  const std::map<std::string, std::pair<Shape, std::vector<double>>> expected = {
      {"positive", {{2, 1, 2}, {-1, 4, f32(0.58F), 0.25}}},
      {"guarded", {{2, 1, 2}, {kNan, 3, f32(0.58F) - 1, -0.75}}},
      {"halves",
       {{2, 1, 4},
        {4 - f32(0.6F), 1 - f32(0.6F), 0.5 - f32(0.6F), kNan, f32(0.58F) - f32(0.6F), kNan, kNan,
         kNan}}},
      {"inside", {{2, 1, 3}, {2, -1, kNan, kNan, kNan, kNan}}},
      {"far", {{2, 1}, {0.5 - f32(0.55F), f32(0.58F) - f32(0.55F)}}},
      {"low", {{2, 1}, {0, kNan}}},
      // The first is not entered: 0.5 < 0.55.
      {"entered",
       {{2, 1, 3}, {kNan, kNan, kNan, f32(0.58F) - 0.25, f32(0.29F) - 0.25, f32(0.145F) - 0.25}}},
      {"endless", {{2, 1}, {kNan, kNan}}}};
  const std::vector<Export>& exports = work.batch.program->program.exports;
  ASSERT_EQ(run->exports.size(), exports.size());
  for (const std::string& site : sites) {
    SCOPED_TRACE(site);
    size_t k = 0;
    while (k < exports.size() && exports[k].name != MarginExport(site)) ++k;
    ASSERT_LT(k, exports.size());
    const auto& [shape, numbers] = expected.at(site);
    EXPECT_EQ(run->exports[k].shape, shape);
    const std::vector<double> told = Numbers(run->exports[k]);
    ASSERT_EQ(told.size(), numbers.size());
    for (size_t i = 0; i < told.size(); ++i) {
      if (std::isnan(numbers[i])) {
        EXPECT_TRUE(std::isnan(told[i])) << i << ": " << told[i];
      } else {
        EXPECT_EQ(told[i], numbers[i]) << i;
      }
    }
  }
}

TEST_P(MarginsByElement, OfWideIntegersAreTheirDifferenceRoundedOnce) {
  constexpr int64_t kTop = int64_t{1} << 53;
  const std::vector<int64_t> lhs = {kTop + 1, kTop, -kTop - 1, INT64_MAX};
  const std::vector<int64_t> rhs = {kTop, kTop + 1, -kTop, INT64_MIN};
  const auto count = static_cast<int64_t>(lhs.size());
  Builder b("wide");
  const Var x = b.State("x", {count}, "", ElementType::kI64);
  const Var y = b.State("y", {count}, "", ElementType::kI64);
  b.State("above", {count}, "", ElementType::kBool);
  b.SetNext({x, y, b.Event("above", x, Comparison::kGt, y)});
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  auto program = Lower(*world, tests::PolicyOf({.preset = "f32"}), "", std::nullopt, nullptr,
                       {.margins = {"above"}});
  ASSERT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 1, 1);
  for (size_t k = 0; k < 2; ++k) {
    Tensor tensor = Tensor::Zeros(DType::kI64, {count});
    for (int64_t i = 0; i < count; ++i)
      tensor.SetInt(i, (k == 0 ? lhs : rhs)[static_cast<size_t>(i)]);
    work.batch.inputs[k] = {tensor, false, false};
  }
  work.batch.inputs[2] = tests::Shared(std::vector<double>(lhs.size()), {count});
  work.options.record_exports = {static_cast<int32_t>(work.batch.program->program.exports.size()) -
                                 1};
  const auto run = Observe(Chosen(), work);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(Numbers(run->exports.back()), (std::vector<double>{1, -1, -1, 0x1p64}));
  const SmallestMargin& margin = run->diagnostics.events.at(0).at(0).margin;
  EXPECT_EQ(margin.absolute, -1);  // of the two smallest the negative one
  EXPECT_EQ(margin.ulps, -1);
}

TEST(Margins, AreRefusedWithTheFieldThatAsksForThem) {
  const auto refused = [](const Program& world, const std::vector<std::string>& sites,
                          const std::optional<AdjointSpec>& adjoint = std::nullopt) {
    return Lower(world, tests::PolicyOf({.preset = "f32"}), adjoint ? adjoint->objective : "",
                 adjoint, nullptr, {.margins = sites})
        .status();
  };
  const Program placed = Placed();
  const absl::Status unknown = refused(placed, {"far", "nowhere"});
  EXPECT_EQ(FieldOf(unknown), "diagnostics.margins[1]");
  EXPECT_NE(unknown.message().find("guarded, halves"), std::string::npos) << unknown;
  EXPECT_EQ(FieldOf(refused(placed, {"far", "far"})), "diagnostics.margins[1]");
  const absl::Status never = refused(placed, {"never"});
  EXPECT_EQ(FieldOf(never), "diagnostics.margins[0]");
  EXPECT_NE(never.message().find("0 turns"), std::string::npos) << never;
  AdjointSpec adjoint;
  adjoint.final_state = {true};
  adjoint.trajectory_state = {false};
  adjoint.wanted = {true};
  EXPECT_EQ(FieldOf(refused(placed, {"far"}, adjoint)), "diagnostics.margins");

  Builder b("often");
  b.program().level = TestLevel::kDecisions;
  const Var x = b.State("x", {});
  const LoopResult formula = b.While(
      {.site = "formula", .max_iter = 1 << 11}, {x}, {},
      [&](const Vars& c, const Vars&) -> LoopPredicate {
        return {b.Apply(OpCode::kLt, {c[0], b.Literal(0.1)}), {}};
      },
      [&](const Vars& c, const Vars&, const Vars&) -> Vars {
        const LoopResult nested = b.While(
            {.site = "nested", .max_iter = 1 << 10}, {c[0]}, {},
            [&](const Vars& d, const Vars&) -> LoopTest {
              return {d[0], 0.4 * c[0], {}, {}};
            },
            [&](const Vars& d, const Vars&, const Vars&) -> Vars { return {0.8 * d[0]}; });
        return {nested.carried[0]};
      });
  b.SetNext({formula.carried[0]});
  const auto often = b.Finish();
  ASSERT_TRUE(often.ok()) << often.status();
  EXPECT_EQ(FieldOf(refused(*often, {"formula"})), "diagnostics.margins[0]");
  EXPECT_TRUE(IsLimit(refused(*often, {"nested"})));
}

TEST(Margins, OfAllSitesTogetherHaveTheElementsOfAProgramAtMost) {
  constexpr int kSites = 17;  // of 2^20 elements each
  Builder b("many");
  const Var x = b.State("x", {1024});
  std::vector<std::string> sites;
  const LoopResult loop = b.While(
      {.site = "loop", .max_iter = 1024}, {x}, {},
      [&](const Vars& c, const Vars&) -> LoopTest {
        return {b.Reduce(OpCode::kReduceMax, c[0]), b.Literal(0.1), {}, {}};
      },
      [&](const Vars& c, const Vars&, const Vars&) -> Vars {
        for (int k = 0; k < kSites; ++k) {
          sites.push_back("site" + std::to_string(k));
          b.Event(sites.back(), c[0], Comparison::kGt, b.Literal(0.1 * k, {1024}));
        }
        return {0.5 * c[0]};
      });
  b.SetNext({loop.carried[0]});
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  const auto told = [&](int count) {
    const std::vector<std::string> some(sites.begin(), sites.begin() + count);
    return Lower(*world, tests::PolicyOf({.preset = "f32"}), "", std::nullopt, nullptr,
                 {.margins = some})
        .status();
  };
  EXPECT_TRUE(told(kSites - 1).ok()) << told(kSites - 1);
  const absl::Status refused = told(kSites);
  EXPECT_TRUE(IsLimit(refused)) << refused;
  EXPECT_EQ(FieldOf(refused), "diagnostics.margins");
}

}  // namespace
}  // namespace simgrad::sim
