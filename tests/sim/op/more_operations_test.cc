// An operation added by one file and one line: it is printed, verified, differentiated, carried in
// messages, and drawn by the random worlds of differentiate_test.cc, which this build runs too.
#include <gtest/gtest.h>

#include "server/conversion/program_from_proto.h"
#include "server/conversion/program_to_proto.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "sim/program/print.h"
#include "sim/program/verify.h"
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

}  // namespace
}  // namespace simgrad::sim
