// What an adjoint region is written with: fan-in, reads of the primal, slots, kinks.
#include "sim/program/adjoint_writer.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sim/op/op_info.h"
#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

const Type kNumber{ElementType::kReal, {}};
const Type kBool{ElementType::kBool, {}};

// A step y = sin(x) k with a literal, and the region that reverses it.
class AdjointWriterTest : public testing::Test {
 protected:
  AdjointWriterTest() : b_("world") {
    x_ = b_.State("x", {}).id;
    k_ = b_.Param("k", {}, 1.0).id;
    two_ = b_.Literal(2.0).id;
    y_ = b_.Apply(OpCode::kSin, {{&b_, x_}}).id;
    b_.SetNext({{&b_, y_}});
    const size_t values = b_.program().values.size();
    writer_.emplace(b_.program(), std::vector<bool>(values, true), budget_);
    writer_->Open(region_);
    writer_->DefinesPrimal(b_.program().step);
  }

  Slot Always() { return {writer_->AddValue(kNumber), Mask::Always()}; }
  Slot Masked() {
    const ValueId value = writer_->AddValue(kNumber);
    return {value, Mask::At(writer_->AddValue(kBool))};
  }
  // The operations of the region, by name.
  std::string Written() const {
    std::string names;
    for (const Op& op : region_.ops) names += std::string(InfoOf(op.code).name) + " ";
    return names;
  }

  Builder b_;
  ValueId x_, k_, two_, y_;
  PassBudget budget_;
  Region region_;
  std::optional<AdjointWriter> writer_;
};

TEST_F(AdjointWriterTest, TheFirstContributionIsAssigned) {
  const Slot slot = Masked();
  writer_->Contribute(y_, slot);
  EXPECT_EQ(writer_->SlotOf(y_).cotangent, slot.cotangent);
  EXPECT_EQ(Written(), "");
}

TEST_F(AdjointWriterTest, OfTwoThatAreAlwaysThereTheSumIs) {
  writer_->Contribute(y_, Always());
  writer_->Contribute(y_, Always());
  EXPECT_EQ(Written(), "add ");
  EXPECT_EQ(writer_->SlotOf(y_).presence(), Presence::kAlways);
}

TEST_F(AdjointWriterTest, AMaskedOneIsMergedIntoOneThatIsAlwaysThereWhicheverComesFirst) {
  const Slot always = Always();
  const Slot masked = Masked();
  writer_->Contribute(y_, masked);
  writer_->Contribute(y_, always);
  ASSERT_EQ(Written(), "merge ");
  const std::vector<ValueId> operands = {always.cotangent, masked.cotangent, masked.mask.value};
  EXPECT_EQ(region_.ops[0].operands, operands);
  EXPECT_EQ(writer_->SlotOf(y_).presence(), Presence::kAlways);
}

TEST_F(AdjointWriterTest, OfTwoMaskedOnesTheSumIsWhereEitherIs) {
  writer_->Contribute(y_, Masked());
  writer_->Contribute(y_, Masked());
  ASSERT_EQ(Written(), "or merge2 ");
  const Slot slot = writer_->SlotOf(y_);
  EXPECT_EQ(slot.mask.value, region_.ops[0].results[0]);
  EXPECT_EQ(region_.ops[1].attributes.where, slot.mask.value);
}

TEST_F(AdjointWriterTest, WhatIsNeverThereContributesNothing) {
  writer_->Contribute(y_, {});
  EXPECT_EQ(writer_->SlotOf(y_).presence(), Presence::kNever);
}

TEST_F(AdjointWriterTest, AnInputAccumulatesUnderTheMaskOfItsContribution) {
  const Slot masked = Masked();
  writer_->Contribute(k_, masked);
  ASSERT_EQ(Written(), "accumulate ");
  const Op& op = region_.ops[0];
  EXPECT_EQ(op.role, Role::kGradient);
  EXPECT_EQ(op.attributes.input, 1);
  EXPECT_EQ(op.operands, (std::vector<ValueId>{masked.cotangent, masked.mask.value}));
  EXPECT_EQ(op.attributes.where, masked.mask.value);
}

TEST_F(AdjointWriterTest, APrimalValueIsReadOnce) {
  EXPECT_EQ(writer_->Tape(y_), writer_->Tape(y_));
  ASSERT_EQ(Written(), "tape ");
  EXPECT_EQ(region_.ops[0].attributes.primal, y_);
  EXPECT_EQ(region_.ops[0].role, Role::kTape);
}

TEST_F(AdjointWriterTest, AnInputIsReadAsItIsAndALiteralWrittenAgain) {
  EXPECT_EQ(writer_->Tape(k_), k_);
  const ValueId two = writer_->Tape(two_);
  EXPECT_NE(two, two_);
  ASSERT_EQ(Written(), "literal ");
  EXPECT_EQ(region_.ops[0].attributes.literal, std::vector<double>{2.0});
}

TEST_F(AdjointWriterTest, SlotsAreAllCotangentsAndThenAllMasks) {
  const std::vector<Slot> args = writer_->MakeArgs(
      region_,
      {{kNumber, Presence::kNever}, {kNumber, Presence::kMasked}, {kNumber, Presence::kAlways}});
  const std::vector<ValueId> expected = {ValueId::kNone, args[1].cotangent,  args[2].cotangent,
                                         ValueId::kNone, args[1].mask.value, ValueId::kNone};
  EXPECT_EQ(region_.args, expected);
}

TEST_F(AdjointWriterTest, AYieldIsBroughtToThePresenceThatIsDeclared) {
  const Slot always = Always();
  writer_->Yield(region_, {always, {}}, {Presence::kMasked, Presence::kMasked}, {kNumber, kNumber});
  // A zero for what is absent, and the two masks spelt out.
  ASSERT_EQ(Written(), "literal literal literal ");
  EXPECT_EQ(region_.ops[0].attributes.literal, std::vector<double>{0.0});
  EXPECT_EQ(region_.ops[1].attributes.literal, std::vector<double>{1.0});
  EXPECT_EQ(region_.ops[2].attributes.literal, std::vector<double>{0.0});
  EXPECT_EQ(region_.yields[0], always.cotangent);
}

TEST_F(AdjointWriterTest, AKinkIsAddedOnceBehindItsAnchor) {
  const auto kink = [&] {
    Op op{.code = OpCode::kSign, .operands = {x_}};
    return writer_->Kink(y_, std::move(op), kNumber);
  };
  EXPECT_EQ(kink(), kink());
  Region& step = b_.program().step;
  const size_t before = step.ops.size();
  writer_->InsertKinks(step);
  writer_->InsertKinks(step);
  ASSERT_EQ(step.ops.size(), before + 1);
  EXPECT_EQ(step.ops[before - 1].results[0], y_);
  EXPECT_EQ(step.ops[before].code, OpCode::kSign);
}

}  // namespace
}  // namespace simgrad::sim
