// What the expansion of a composite is written with.
#include "sim/op/expansion.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/program/builder.h"
#include "sim/program/print.h"
#include "tests/sim/program/large_program.h"

namespace simgrad::sim {
namespace {

// An operation of role event at a site, as if it were a composite of two operands.
class ExpansionWriterTest : public testing::Test {
 protected:
  ExpansionWriterTest() : b_("world") {
    const Var x = b_.State("x", {3});
    op_.role = Role::kEvent;
    op_.site = "there";
    op_.label = "a label";
    op_.operands = {x.id, x.id};
    op_.results = {b_.program().AddValue({ElementType::kReal, {3}})};
  }

  Builder b_;
  Op op_;
  std::vector<Op> out_;
  PassBudget budget_;
};

TEST_F(ExpansionWriterTest, WhatItWritesHasRoleSiteAndLabelOfTheComposite) {
  ExpansionWriter writer(b_.program(), op_, out_, budget_);
  writer.Do(OpCode::kSin, {writer.X(0)});
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].role, Role::kEvent);
  EXPECT_EQ(out_[0].site, "there");
  EXPECT_EQ(out_[0].label, "a label");
  EXPECT_EQ(out_[0].operands, std::vector<ValueId>{op_.operands[0]});
}

TEST_F(ExpansionWriterTest, AResultHasTheTypeOfTheCompositesUnlessItIsGivenOne) {
  ExpansionWriter writer(b_.program(), op_, out_, budget_);
  const Type scalar{ElementType::kReal, {}};
  EXPECT_EQ(writer.TypeOf(writer.Do(OpCode::kSin, {writer.X(0)})), writer.TypeOf(op_.results[0]));
  EXPECT_EQ(writer.TypeOf(writer.Do(OpCode::kSum, {writer.X(0)}, scalar)), scalar);
}

TEST_F(ExpansionWriterTest, TheBudgetCountsTheValuesThatItWrites) {
  ExpansionWriter writer(b_.program(), op_, out_, budget_);
  writer.Do(OpCode::kSin, {writer.X(0)});
  writer.NewValue({ElementType::kReal, {}});
  EXPECT_EQ(budget_.values(), 2);
}

TEST_F(ExpansionWriterTest, AConstantIsALiteralOfOneNumber) {
  ExpansionWriter writer(b_.program(), op_, out_, budget_);
  const ValueId half = writer.Const(0.5);
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].code, OpCode::kLiteral);
  EXPECT_EQ(out_[0].attributes.literal, std::vector<double>{0.5});
  EXPECT_EQ(out_[0].results, std::vector<ValueId>{half});
}

TEST_F(ExpansionWriterTest, TheLastOperationGivesTheResultOfTheComposite) {
  ExpansionWriter writer(b_.program(), op_, out_, budget_);
  writer.Give(OpCode::kMul, {writer.X(0), writer.X(1)});
  EXPECT_EQ(out_.back().results, op_.results);
}

TEST(ExpandComposites, AProgramWithoutCompositesIsWhatItWas) {
  const Program world = large::LargeProgram(500);
  PassBudget budget;
  EXPECT_EQ(Print(ExpandComposites(world, budget)), Print(world));
  EXPECT_EQ(budget.operations(), 0);
}

}  // namespace
}  // namespace simgrad::sim
