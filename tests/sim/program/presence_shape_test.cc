// The paths of presence that are read from small regions.
#include "sim/program/presence_shape.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/program/step_shape.h"

namespace simgrad::sim::presence {
namespace {

std::vector<Out> OutsOf(const RegionShape& shape, int32_t slot) {
  std::vector<Out> outs;
  shape.EachOut(slot, [&](const Out& out) { outs.push_back(out); });
  return outs;
}

TEST(PresenceShape, AResultHandsOnToEachOperandThatTakesACotangent) {
  Builder b("choice");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  b.SetNext({Max(x, y), x * y});
  const tests::StepShape step(b);
  const RegionShape& shape = step.get();
  ASSERT_EQ(shape.entered.size(), 2u);
  const std::vector<Out> of_max = OutsOf(shape, shape.entered[0]);
  const std::vector<Out> of_product = OutsOf(shape, shape.entered[1]);
  ASSERT_EQ(of_max.size(), 2u);
  ASSERT_EQ(of_product.size(), 2u);
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_EQ(of_max[k].to, Out::To::kSlot);
    EXPECT_TRUE(of_max[k].masks);
    EXPECT_FALSE(of_product[k].masks);
    EXPECT_EQ(of_max[k].slot, shape.out[k]);
    EXPECT_EQ(of_product[k].slot, shape.out[k]);
  }
  // The last operation is reversed first.
  ASSERT_EQ(shape.reversed.size(), 2u);
  EXPECT_EQ(shape.reversed[0].second, shape.entered[1]);
  EXPECT_EQ(shape.reversed[1].second, shape.entered[0]);
}

TEST(PresenceShape, NothingPassesAnOperationWithoutADerivative) {
  Builder b("floor");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(OpCode::kFloor, {x})});
  const tests::StepShape step(b);
  const RegionShape& shape = step.get();
  EXPECT_TRUE(OutsOf(shape, shape.entered[0]).empty());
  EXPECT_EQ(shape.out[0], kNoSlot);
}

TEST(PresenceShape, AnOperationThatNothingReadsIsNotReversed) {
  Builder b("unread");
  const Var x = b.State("x", {});
  b.Apply(OpCode::kCos, {x});
  b.SetNext({b.Apply(OpCode::kSin, {x})});
  EXPECT_EQ(tests::StepShape(b).get().reversed.size(), 1u);
}

TEST(PresenceShape, ACaptureHasAnotherSlotBehindItsLoop) {
  Builder b("capture");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  const Vars out = b.For(2, {x}, [&](Var, const Vars& carried) { return Vars{carried[0] * y}; });
  b.SetNext({out[0], y});
  const tests::StepShape step(b);
  const RegionShape& shape = step.get();
  ASSERT_EQ(shape.loops.size(), 1u);
  const LoopShape& loop = shape.loops[0];
  EXPECT_TRUE(loop.written);
  EXPECT_EQ(loop.carried, 1);
  EXPECT_EQ(loop.slots, 2);
  ASSERT_EQ(loop.enter.size(), 2u);
  EXPECT_EQ(loop.enter[0], shape.entered[0]);
  EXPECT_EQ(loop.enter[1], shape.entered[1]);
  EXPECT_EQ(loop.leave, shape.out);
  EXPECT_NE(loop.leave[1], loop.enter[1]);
  const std::vector<Out> outs = OutsOf(shape, loop.enter[1]);
  ASSERT_EQ(outs.size(), 1u);
  EXPECT_EQ(outs[0].to, Out::To::kLoopSlot);
  EXPECT_EQ(outs[0].slot, 1);
}

TEST(PresenceShape, WhatLeavesTheRegionOfALoopGoesToTheLoop) {
  Builder b("nested");
  const Var x = b.State("x", {});
  const Vars out = b.For(
      3, {x}, [&](Var, const Vars& carried) { return Vars{b.Apply(OpCode::kSin, {carried[0]})}; });
  b.SetNext({out[0]});
  const tests::StepShape step(b);
  const RegionShape& shape = step.get();
  const RegionShape& body = *shape.loops[0].body;
  const std::vector<Out> of_sine = OutsOf(body, body.in[0]);
  ASSERT_EQ(of_sine.size(), 1u);
  EXPECT_EQ(of_sine[0].to, Out::To::kSlot);
  const std::vector<Out> of_carried = OutsOf(body, of_sine[0].slot);
  ASSERT_EQ(of_carried.size(), 1u);
  EXPECT_EQ(of_carried[0].to, Out::To::kOwnerSlot);
  EXPECT_EQ(of_carried[0].slot, 0);
  EXPECT_EQ(shape.loops[0].test, nullptr);
}

TEST(PresenceShape, ALoopThatNeverRunsHandsItsSlotsThrough) {
  Builder b("none");
  const Var x = b.State("x", {});
  const Vars out = b.For(0, {x}, [](Var, const Vars& carried) { return carried; });
  b.SetNext({out[0]});
  const tests::StepShape step(b);
  const RegionShape& shape = step.get();
  const std::vector<Out> outs = OutsOf(shape, shape.entered[0]);
  ASSERT_EQ(outs.size(), 1u);
  EXPECT_EQ(outs[0].to, Out::To::kSlot);
  EXPECT_EQ(outs[0].slot, shape.out[0]);
}

TEST(PresenceShape, ALoopIntoWhichNoCotangentCanComeIsNotRead) {
  Builder b("unwritten");
  const Var x = b.State("x", {});
  b.For(2, {x}, [](Var, const Vars& carried) { return carried; });
  b.SetNext({x});
  const tests::StepShape step(b);
  const RegionShape& shape = step.get();
  ASSERT_EQ(shape.loops.size(), 1u);
  EXPECT_FALSE(shape.loops[0].written);
  EXPECT_EQ(shape.loops[0].body, nullptr);
}

}  // namespace
}  // namespace simgrad::sim::presence
