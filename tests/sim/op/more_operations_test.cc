// An operation added by one file and one line: it is printed, verified, differentiated, carried in
// messages, run by every executor, and drawn by the random worlds of differentiate_test.cc, which
// this build runs too.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#ifdef SIMGRAD_WITH_COMPILED
#include "sim/backend/compiled/compiled_executor.h"
#endif
#ifdef SIMGRAD_WITH_HOST_SHIM
#include "sim/backend/cuda/run/cuda_executor.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#endif
#include "server/conversion/program_from_proto.h"
#include "server/conversion/program_to_proto.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "sim/program/print.h"
#include "sim/program/verify.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

Program Bells() {
  Builder b("bells");
  const Var x = b.State("x", {3});
  const Var bell = b.Apply(OpCode::kGaussian, {x});
  b.SetNext({b.Apply(OpCode::kBlend, {x, bell, b.Literal(0.25, {3})})});
  b.AddObjective("last", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *program;
}

TEST(MoreOperations, HaveNamesDocumentsAndTypes) {
  EXPECT_EQ(OpFromName("gaussian"), OpCode::kGaussian);
  EXPECT_EQ(InfoOf(OpCode::kBlend).operands.most, 3);
  Program program = Bells();
  program.values[Index(program.step.ops[0].results[0])].type.shape = {2};
  const absl::Status status = Verify(program);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'gaussian' gives another type"), std::string::npos) << status;
}

TEST(MoreOperations, ArePrintedAndTravel) {
  const Program program = Bells();
  const std::string text = Print(program);
  EXPECT_NE(text.find(" = gaussian %0  # dynamics"), std::string::npos) << text;
  EXPECT_NE(text.find(" = blend %0, %1, %2"), std::string::npos) << text;
  const auto back = server::conversion::ProgramFromProto(
      server::conversion::ProgramToProto(program), ProgramLimits());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(Print(*back), text);
}

TEST(MoreOperations, ACompositeIsRewrittenBeforeAnythingElse) {
  const auto lowered = Lower(Bells(), tests::PolicyOf({.preset = "f64"}), "last", std::nullopt);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_EQ(lowered->text.find("blend"), std::string::npos) << lowered->text;
  EXPECT_NE(lowered->text.find("fma"), std::string::npos) << lowered->text;
}

struct NamedExecutor {
  std::string name;
  std::shared_ptr<Executor> executor;
};

// Each way in which this build compiles a plan.
std::vector<NamedExecutor> Executors() {
  std::vector<NamedExecutor> executors;
#ifdef SIMGRAD_WITH_COMPILED
  for (const auto mapping : {compiled::Mapping::kLanes, compiled::Mapping::kElements}) {
    const compiled::KernelOptions options{.effort = compiled::Effort::kQuick, .mapping = mapping};
    executors.push_back({mapping == compiled::Mapping::kLanes ? "cpu, lanes" : "cpu, elements",
                         compiled::MakeCompiledExecutor(options)});
  }
#endif
#ifdef SIMGRAD_WITH_HOST_SHIM
  for (const auto mapping : {cuda::Mapping::kThreadPerInstance, cuda::Mapping::kBlockPerInstance}) {
    executors.push_back({"cuda, " + std::string(cuda::MappingName(mapping)),
                         MakeCudaExecutor(tests::MakeHostShimDevice(), {.mapping = mapping})});
  }
#endif
  return executors;
}

// Seven instances from -3 to 3, a number of bells each apart.
Work BellsOf(const std::string& preset, const std::string& objective) {
  auto lowered = tests::LowerForGradient(Bells(), tests::PolicyOf({.preset = preset}), objective);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*std::move(lowered), 7, 4);
  std::vector<double> x;
  for (int k = 0; k < 21; ++k) x.push_back(-3.0 + 0.3 * k);
  work.batch.inputs[0] = {tests::Doubles(x, {7, 3}), true, false};
  work.options.record_states = {0};
  return work;
}

TEST(MoreOperations, EveryExecutorGivesTheBitsOfTheReference) {
  for (const NamedExecutor& named : Executors()) {
    for (const std::string preset : {"f64", "bf16_safe"}) {
      for (const std::string objective : {"", "last"}) {
        const Work work = BellsOf(preset, objective);
        const auto expected = equality::Observe(MakeReferenceExecutor(), work);
        ASSERT_TRUE(expected.ok()) << expected.status();
        EXPECT_EQ(expected->result.gradients.empty(), objective.empty());
        const auto actual = equality::Observe(named.executor, work);
        ASSERT_TRUE(actual.ok()) << named.name << ": " << actual.status();
        EXPECT_EQ(equality::FirstDifference(*expected, *actual), std::nullopt)
            << named.name << " " << preset << " " << objective;
      }
    }
  }
}

#ifdef SIMGRAD_WITH_COMPILED
void Count(const Region& region, std::map<OpCode, int>& counts) {
  for (const Op& op : region.ops) {
    ++counts[op.code];
    for (const Region& nested : op.regions) Count(nested, counts);
  }
}

// Random worlds that have one of them, half of them for each mapping.
TEST(MoreOperations, CompiledCodeGivesTheBitsOfTheReferenceInRandomWorlds) {
  constexpr int kWorlds = 24;
  std::map<OpCode, int> drawn;
  int worlds = 0;
  for (uint64_t seed = 1; worlds < kWorlds; ++seed) {
    ASSERT_LT(seed, 2'000u) << "the random worlds do not draw them";
    const auto made = equality::MakeCase(seed);
    ASSERT_TRUE(made.ok()) << made.status();
    std::map<OpCode, int> counts;
    Count(made->world.step, counts);
    if (counts[OpCode::kGaussian] + counts[OpCode::kBlend] == 0) continue;
    ++worlds;
    for (const OpCode code : {OpCode::kGaussian, OpCode::kBlend}) drawn[code] += counts[code];
    const auto expected = equality::Observe(MakeReferenceExecutor(), made->work);
    const auto actual = equality::Observe(Executors()[worlds % 2].executor, made->work);
    ASSERT_EQ(expected.ok(), actual.ok()) << seed << ": " << actual.status();
    if (!expected.ok()) continue;
    EXPECT_EQ(equality::FirstDifference(*expected, *actual), std::nullopt) << seed;
  }
  EXPECT_GE(drawn[OpCode::kGaussian], 8);
  EXPECT_GE(drawn[OpCode::kBlend], 8);
}
#endif

}  // namespace
}  // namespace simgrad::sim
