// Programs as messages: what DescribeProgram hands out is what Rollout takes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "precision/policy.h"
#include "server/conversion/program_from_proto.h"
#include "server/conversion/program_to_proto.h"
#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "sim/program/lower.h"
#include "sim/program/verify.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::conversion {
namespace {

std::vector<sim::Program> BuiltInPrograms() {
  std::vector<sim::Program> programs;
  for (const char* contact : {"projection", "penalty", "toi"}) {
    programs.push_back(
        *sim::BuildWorld("bouncing_ball", {{"contact", std::string(contact)}, {"elements", 3.0}}));
  }
  programs.push_back(*sim::BuildWorld(
      "bouncing_ball",
      {{"scope", std::string("element")}, {"elements", 4.0}, {"tol_enter", 1e-3}}));
  programs.push_back(*sim::BuildWorld("boundary_projection", {{"elements", 9.0}}));
  return programs;
}

TEST(ProgramConversion, EveryBuiltInComesBackAsTheSameNumericalProgram) {
  const auto policy = std::get<precision::Policy>(precision::Resolve({.preset = "f16_unsafe"}));
  for (const sim::Program& program : BuiltInPrograms()) {
    const v1::Program message = ProgramToProto(program);
    const auto back = ProgramFromProto(message);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_TRUE(sim::Verify(*back).ok()) << sim::Verify(*back);
    EXPECT_EQ(ProgramToProto(*back).SerializeAsString(), message.SerializeAsString());
    for (const sim::Objective& objective : program.objectives) {
      const auto before = sim::Lower(program, policy, objective.name, std::nullopt);
      const auto after = sim::Lower(*back, policy, objective.name, std::nullopt);
      ASSERT_TRUE(before.ok() && after.ok());
      EXPECT_EQ(before->text, after->text);
      EXPECT_EQ(before->fingerprint, after->fingerprint);
    }
  }
}

// A predicate, a cond with a scan inside, an accepted step and a declared guard.
sim::Program ControlProgram() {
  sim::Builder b("control");
  b.program().level = sim::TestLevel::kDecisions;
  const sim::Var x = b.State("x", {3});
  sim::WhileOptions options;
  options.site = "loop";
  options.max_iter = 4;
  const sim::Var first = b.Reshape(b.Slice(x, {0}, {1}), {});
  const sim::LoopResult loop = b.While(
      options, {first}, {},
      [&](const sim::Vars& now, const sim::Vars&) {
        return sim::LoopPredicate{b.Apply(sim::OpCode::kLt, {now[0], b.Literal(1.0)}), {}};
      },
      [&](const sim::Vars& now, const sim::Vars&, const sim::Vars&) {
        return sim::Vars{0.5 * now[0]};
      });
  const sim::Var high = b.Apply(sim::OpCode::kGt, {first, b.Literal(2.0)});
  b.program().step.ops.back().attributes.site = "high";
  b.program().step.ops.back().attributes.kind = sim::TestKind::kMembership;
  const sim::Var y =
      b.Cond(high, {x},
             {[&](const sim::Vars& args) { return args; },
              [&](const sim::Vars& args) {
                return sim::Vars{b.Scan(3, {}, {args[0]}, true,
                                        [&](sim::Var, const sim::Vars&, const sim::Vars& element) {
                                          return sim::Vars{2.0 * element[0]};
                                        })[0]};
              }})[0];
  b.SetNext({b.Accept("step", loop.carried[0], sim::Comparison::kLe, first, y, x)});
  return *b.Finish();
}

TEST(ProgramConversion, ControlComesBackAsTheSameNumericalProgram) {
  const auto policy = std::get<precision::Policy>(precision::Resolve({.preset = "f32"}));
  const sim::Program program = ControlProgram();
  const v1::Program message = ProgramToProto(program);
  const auto back = ProgramFromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ProgramToProto(*back).SerializeAsString(), message.SerializeAsString());
  const auto before = sim::Lower(program, policy, "", std::nullopt);
  const auto after = sim::Lower(*back, policy, "", std::nullopt);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(before->text, after->text);
  EXPECT_NE(before->text.find("event %"), std::string::npos);
  EXPECT_NE(before->text.find("site=high > kind=membership"), std::string::npos) << before->text;
}

TEST(ProgramConversion, CallsDrawsAndHaltsComeBack) {
  sim::Builder b("walk");
  const sim::Var x = b.State("x", {2});
  sim::Attributes shape;
  shape.shape = {2};
  const sim::Var noise = b.Do(sim::OpCode::kNormal, {}, shape);
  const sim::Var y = b.Call(
      {x, noise}, [](const sim::Vars& args) { return sim::Vars{args[0] + args[1]}; },
      [](const sim::Vars&, const sim::Vars&, const sim::Vars& g) {
        return sim::Vars{g[0], 2.0 * g[0]};
      })[0];
  const sim::Var first = b.Reshape(b.Slice(y, {0}, {1}), {});
  b.Halt("far", b.Event("far", first, sim::Comparison::kGt, b.Literal(9.0)), true);
  b.SetNext({y});
  const sim::Program program = *b.Finish();
  const v1::Program message = ProgramToProto(program);
  const auto back = ProgramFromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_TRUE(sim::Verify(*back).ok()) << sim::Verify(*back);
  EXPECT_EQ(ProgramToProto(*back).SerializeAsString(), message.SerializeAsString());
  const auto policy = std::get<precision::Policy>(precision::Resolve({.preset = "f32"}));
  const auto before = sim::Lower(program, policy, "", std::nullopt);
  const auto after = sim::Lower(*back, policy, "", std::nullopt);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(before->text, after->text);
  EXPECT_EQ(after->halts, std::vector<std::string>{"far"});
  EXPECT_NE(after->text.find(" = normal "), std::string::npos) << after->text;
}

struct Spoiled {
  const char* field;
  void (*spoil)(v1::Program&);
};

TEST(ProgramConversion, WhatCannotBeReadIsNamed) {
  const Spoiled cases[] = {
      {"values[0].element",
       [](v1::Program& p) { p.mutable_values(0)->set_element(static_cast<v1::ElementType>(9)); }},
      {"objectives[0].terminal.yields",
       [](v1::Program& p) {
         p.mutable_objectives(0)->mutable_stage()->CopyFrom(p.objectives(0).terminal());
         p.mutable_objectives(0)->mutable_terminal()->clear_yields();
       }},
      {"values[1].shape[0]", [](v1::Program& p) { p.mutable_values(1)->set_shape(0, -1); }},
      {"values[1].shape",
       [](v1::Program& p) { p.mutable_values(1)->set_shape(0, int64_t{1} << 60); }},
      {"inputs[0].kind", [](v1::Program& p) { p.mutable_inputs(0)->clear_kind(); }},
      {"inputs[0].value", [](v1::Program& p) { p.mutable_inputs(0)->set_value(-1); }},
      {"inputs[1].value", [](v1::Program& p) { p.mutable_inputs(1)->set_value(1 << 30); }},
      {"step.ops[0].code", [](v1::Program& p) { p.mutable_step()->mutable_ops(0)->set_code("?"); }},
      {"step.ops[0].role", [](v1::Program& p) { p.mutable_step()->mutable_ops(0)->set_role("?"); }},
      {"step.ops[0].operands[0]",
       [](v1::Program& p) { p.mutable_step()->mutable_ops(0)->add_operands(-7); }},
      {"step.ops[0].results[0]",
       [](v1::Program& p) { p.mutable_step()->mutable_ops(0)->set_results(0, 1 << 20); }},
      {"step.ops[0].comparison",
       [](v1::Program& p) {
         p.mutable_step()->mutable_ops(0)->set_code("event");
         p.mutable_step()->mutable_ops(0)->set_comparison("near");
       }},
      {"step.ops[0].format",
       [](v1::Program& p) {
         p.mutable_step()->mutable_ops(0)->set_code("cast");
         p.mutable_step()->mutable_ops(0)->set_format("f31");
       }},
      {"step.ops[0].overflow",
       [](v1::Program& p) {
         p.mutable_step()->mutable_ops(0)->set_code("cast");
         p.mutable_step()->mutable_ops(0)->set_overflow("wrap");
       }},
      {"step.ops[0].shape",
       [](v1::Program& p) {
         p.mutable_step()->mutable_ops(0)->set_code("reshape");
         p.mutable_step()->mutable_ops(0)->add_shape(int64_t{1} << 40);
         p.mutable_step()->mutable_ops(0)->add_shape(int64_t{1} << 40);
       }},
      {"step.yields[2]", [](v1::Program& p) { p.mutable_step()->add_yields(-1); }},
      {"exports[0].value", [](v1::Program& p) { p.mutable_exports(0)->set_value(-1); }},
      {"objectives[0].terminal.args[0]",
       [](v1::Program& p) {
         p.mutable_objectives(0)->mutable_terminal()->mutable_args()->Set(0, 1 << 30);
       }},
  };
  const sim::Program ball = *sim::BuildWorld("bouncing_ball", {{"elements", 3.0}});
  const v1::Program good = ProgramToProto(ball);
  for (const Spoiled& spoiled : cases) {
    v1::Program message = good;
    if (message.step().ops(0).operands_size() > 0) {
      message.mutable_step()->mutable_ops(0)->clear_operands();
    }
    message.mutable_step()->mutable_ops(0)->clear_shape();
    message.mutable_step()->mutable_ops(0)->clear_dims();
    spoiled.spoil(message);
    const auto program = ProgramFromProto(message);
    ASSERT_FALSE(program.ok()) << spoiled.field;
    EXPECT_EQ(sim::FieldOf(program.status()), spoiled.field) << program.status();
  }
}

// The first operation of the step with this code.
v1::Op& OpOf(v1::Program& program, const std::string& code) {
  for (v1::Op& op : *program.mutable_step()->mutable_ops()) {
    if (op.code() == code) return op;
  }
  ADD_FAILURE() << "no " << code;
  return *program.mutable_step()->mutable_ops(0);
}

TEST(ProgramConversion, AnAttributeThatAnOperationDoesNotUseIsRefused) {
  const std::pair<std::string, std::function<void(v1::Op&)>> cases[] = {
      {"literal", [](v1::Op& op) { op.add_literal(1); }},
      {"axes", [](v1::Op& op) { op.add_axes(0); }},
      {"start", [](v1::Op& op) { op.add_start(0); }},
      {"shape", [](v1::Op& op) { op.add_shape(3); }},
      {"dims", [](v1::Op& op) { op.add_dims(0); }},
      {"decision_site", [](v1::Op& op) { op.set_decision_site("x"); }},
      {"comparison", [](v1::Op& op) { op.set_comparison("lt"); }},
      {"max_iter", [](v1::Op& op) { op.set_max_iter(3); }},
      {"cap_first", [](v1::Op& op) { op.set_cap_first(true); }},
      {"has_entry", [](v1::Op& op) { op.set_has_entry(true); }},
      {"elements", [](v1::Op& op) { op.set_elements(3); }},
      {"carried", [](v1::Op& op) { op.set_carried(1); }},
      {"format", [](v1::Op& op) { op.set_format("f32"); }},
      {"overflow", [](v1::Op& op) { op.set_overflow("ieee"); }},
      {"reverse", [](v1::Op& op) { op.set_reverse(true); }},
      {"predicate", [](v1::Op& op) { op.set_predicate(true); }},
      {"scanned", [](v1::Op& op) { op.set_scanned(1); }},
      {"test_kind", [](v1::Op& op) { op.set_test_kind("guard"); }},
  };
  const v1::Program good = ProgramToProto(*sim::BuildWorld("bouncing_ball", {{"elements", 3.0}}));
  for (const auto& [attribute, spoil] : cases) {
    v1::Program message = good;
    spoil(OpOf(message, "mul"));
    const auto program = ProgramFromProto(message);
    ASSERT_FALSE(program.ok()) << attribute;
    EXPECT_THAT(sim::FieldOf(program.status()), ::testing::EndsWith("]." + attribute));
    EXPECT_THAT(program.status().message(), ::testing::HasSubstr("'mul' has no " + attribute));
  }
}

TEST(ProgramConversion, WhatComparesSaysHow) {
  for (const std::string code : {"while", "event"}) {
    v1::Program message = ProgramToProto(*sim::BuildWorld(
        code == "while" ? "boundary_projection" : "bouncing_ball", {{"elements", 3.0}}));
    OpOf(message, code).clear_comparison();
    const auto program = ProgramFromProto(message);
    ASSERT_FALSE(program.ok()) << code;
    EXPECT_THAT(sim::FieldOf(program.status()), ::testing::EndsWith("].comparison"));
    EXPECT_THAT(program.status().message(), ::testing::HasSubstr("one of lt, le, gt, ge, eq, ne"));
  }
}

TEST(ProgramConversion, RegionsNestedWithoutEndAreRefused) {
  v1::Program message;
  v1::Region* region = message.mutable_step();
  for (int depth = 0; depth < 60; ++depth) {
    v1::Op* op = region->add_ops();
    op->set_code("for");
    region = op->add_regions();
  }
  const auto program = ProgramFromProto(message);
  ASSERT_FALSE(program.ok());
  EXPECT_NE(std::string(program.status().message()).find("nest deeper"), std::string::npos);
}

TEST(ProgramConversion, TooManyOperationsAreRefused) {
  v1::Program message;
  for (int i = 0; i < 11; ++i) message.mutable_step()->add_ops()->set_code("add");
  sim::ProgramLimits limits;
  limits.max_operations = 10;
  EXPECT_EQ(sim::FieldOf(ProgramFromProto(message, limits).status()), "step.ops");
  limits.max_operations = 11;
  EXPECT_TRUE(ProgramFromProto(message, limits).ok());
}

// x + x, so often, in a step.
v1::Program Additions(int count) {
  sim::Builder b("additions");
  const sim::Var x = b.State("x", {});
  sim::Var y = x;
  for (int i = 0; i < count; ++i) y = y + x;
  b.SetNext({y});
  return ProgramToProto(b.program());
}

// The least of three runs on the processor, of a program on its way from a message to what verification says.
double SecondsToVerify(const v1::Program& message, const std::string& field) {
  double least = 1e9;
  for (int turn = 0; turn < 3; ++turn) {
    timespec start{}, end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    const auto program = ProgramFromProto(message);
    const absl::Status status = program.ok() ? sim::Verify(*program) : program.status();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    EXPECT_EQ(status.ok(), field.empty()) << status;
    EXPECT_EQ(sim::FieldOf(status), field) << status;
    least = std::min(least, static_cast<double>(end.tv_sec - start.tv_sec) +
                                1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec));
  }
  return least;
}

// As many literals of the largest value as a program may have: four of 2^20 numbers, for each the sum of one.
v1::Program Tables() {
  const sim::ProgramLimits limits;
  sim::Builder b("tables");
  sim::Var y = b.State("x", {});
  for (int64_t held = 0; held < limits.max_literal_elements; held += limits.max_elements) {
    std::vector<double> table(static_cast<size_t>(limits.max_elements));
    for (size_t i = 0; i < table.size(); ++i) table[i] = 0.5 + static_cast<double>(i);
    y = y + b.Reduce(sim::OpCode::kSum, b.LiteralArray(std::move(table), {limits.max_elements}));
  }
  b.SetNext({y});
  return ProgramToProto(b.program());
}

// What is over a limit is refused in a fraction of the time that the largest program that passes takes. What is wrong
// at its end costs as much as that program, since all operations are read and verified.
TEST(ProgramLimits, FiftyThousandOperationsPassAndNothingHostileCostsMore) {
  constexpr int kMost = 50'000;
  const double passes = SecondsToVerify(Additions(kMost), "");

  v1::Program ends_wrong = Additions(kMost);
  ends_wrong.mutable_step()->mutable_ops(kMost - 1)->set_operands(1, kMost / 2);
  ends_wrong.mutable_values(kMost / 2)->add_shape(2);
  v1::Program without_end = Additions(kMost);
  without_end.mutable_step()->mutable_ops(kMost - 1)->set_operands(1, 1 << 30);
  v1::Program wide;
  wide = Additions(100);
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 32'000; ++k) wide.mutable_step()->mutable_ops(i)->add_operands(0);
  }
  v1::Program literal = Additions(1);
  for (int k = 0; k <= 1 << 22; ++k) {
    literal.mutable_step()->mutable_ops(0)->add_literal(0.5);
  }
  const v1::Program tables = Tables();
  v1::Program one_more = tables;
  one_more.mutable_step()->mutable_ops(9)->add_literal(0.5);
  struct Hostile {
    const char* name;
    v1::Program program;
    std::string field;
    double most;  // times what passes
  };
  const Hostile rows[] = {
      {"one too many", Additions(kMost + 1), "step.ops", 0.5},
      {"twice too many", Additions(2 * kMost), "step.ops", 0.5},
      {"a shape that does not fit", ends_wrong, "step.ops[24999].results", 3},
      {"a value that is not there", without_end, "step.ops[49999].operands[1]", 3},
      {"long lists", wide, "step.ops[15].operands", 0.5},
      {"a long literal", literal, "step.ops[0].literal", 0.5},
      {"literals up to their limit", tables, "", 1.5},
      {"one number more", one_more, "step.ops[9].literal", 1.5}};
  for (const Hostile& row : rows) {
    EXPECT_LT(SecondsToVerify(row.program, row.field) / passes, row.most) << row.name;
  }
}

}  // namespace
}  // namespace simgrad::server::conversion
