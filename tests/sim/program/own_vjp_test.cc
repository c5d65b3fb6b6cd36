// A call with a vjp of its own: the author's region, written where its body would be reversed.
#include "sim/program/own_vjp.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "sim/op/expansion.h"
#include "sim/op/op_info.h"
#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

const Type kNumber{ElementType::kReal, {}};

// (x y, x + y), whose vjp says sin g0 for x and g1 + y0 for y; y0 is the first result.
class OwnVjpTest : public testing::Test {
 protected:
  explicit OwnVjpTest(Role role = Role::kDynamics) : b_("call") {
    const Var x = b_.State("x", {});
    const Var y = b_.State("y", {});
    RoleScope scope(b_, role);
    const Vars given = b_.Call(
        {x, y},
        [](const Vars& a) {
          return Vars{a[0] * a[1], a[0] + a[1]};
        },
        [&](const Vars&, const Vars& results, const Vars& g) {
          return Vars{b_.Apply(kSin, {g[0]}), g[1] + results[0]};
        });
    b_.SetNext(given);
    b_.Export("out", given[0]);
    x_ = x.id;
    y_ = y.id;
    program_ = ExpandComposites(b_.program(), budget_);
    for (const Op& op : program_.step.ops) {
      if (op.code == kOwnVjp) call_ = op;
    }
    writer_.emplace(program_, std::vector<bool>(program_.values.size(), true), budget_);
    writer_->Open(region_);
    writer_->DefinesPrimal(program_.step);
    for (const Op& op : program_.step.ops) writer_->SetRole(op);
  }

  // By result: a cotangent that is always there, one behind a mask, or none.
  void Enter(Presence first, Presence second) {
    for (size_t k = 0; k < 2; ++k) {
      const Presence presence = k == 0 ? first : second;
      if (presence == Presence::kNever) continue;
      const ValueId value = writer_->AddValue(kNumber);
      const ValueId mask = writer_->AddValue({ElementType::kBool, {}});
      entered_[k] = {value, presence == Presence::kAlways ? Mask::Always() : Mask::At(mask)};
      writer_->SetSlot(call_.results[k], entered_[k]);
    }
    WriteOwnVjp(*writer_, call_);
  }
  // The operation that gives a value of the adjoint; a literal where none does.
  Op MakerOf(ValueId id) const {
    for (const Op& op : region_.ops) {
      if (op.results[0] == id) return op;
    }
    return {};
  }
  bool Has(OpCode code) const {
    for (const Op& op : region_.ops) {
      if (op.code == code) return true;
    }
    return false;
  }

  Builder b_;
  PassBudget budget_;
  Program program_;
  Op call_;
  ValueId x_, y_;
  Region region_;
  Slot entered_[2];
  std::optional<AdjointWriter> writer_;
};

class ObjectiveOwnVjpTest : public OwnVjpTest {
 protected:
  ObjectiveOwnVjpTest() : OwnVjpTest(Role::kObjective) {}
};

TEST_F(OwnVjpTest, TheRegionGivesTheCotangentsAndTheBodyNone) {
  Enter(Presence::kAlways, Presence::kAlways);
  const Slot of_x = writer_->SlotOf(x_);
  const Op sine = MakerOf(of_x.cotangent);
  EXPECT_EQ(of_x.presence(), Presence::kAlways);
  EXPECT_EQ(sine.code, kSin);
  EXPECT_EQ(sine.role, Role::kAdjoint);
  EXPECT_EQ(sine.operands, std::vector<ValueId>{entered_[0].cotangent});
  EXPECT_EQ(sine.attributes.where, ValueId::kNone);
  EXPECT_EQ(MakerOf(writer_->SlotOf(y_).cotangent).code, kAdd);
  EXPECT_FALSE(Has(kMul));
}

TEST_F(ObjectiveOwnVjpTest, ItsOperationsKeepTheRoleOfACallOfTheObjective) {
  Enter(Presence::kAlways, Presence::kAlways);
  EXPECT_EQ(MakerOf(writer_->SlotOf(x_).cotangent).role, Role::kObjective);
}

TEST_F(OwnVjpTest, ResultsAreReadFromTheTapeAsTheBodyGaveThem) {
  Enter(Presence::kAlways, Presence::kAlways);
  const Op sum = MakerOf(writer_->SlotOf(y_).cotangent);
  const Op tape = MakerOf(sum.operands[1]);
  ASSERT_EQ(tape.code, kTape);
  EXPECT_EQ(tape.attributes.primal, call_.operands[2]);
}

TEST_F(OwnVjpTest, WithoutACotangentNothingIsWritten) {
  Enter(Presence::kNever, Presence::kNever);
  EXPECT_TRUE(region_.ops.empty());
  EXPECT_EQ(writer_->SlotOf(x_).presence(), Presence::kNever);
}

TEST_F(OwnVjpTest, AnAbsentCotangentIsNoughtAndAMaskedOneNoughtWhereItIsAbsent) {
  Enter(Presence::kMasked, Presence::kNever);
  const Op sine = MakerOf(writer_->SlotOf(x_).cotangent);
  const Op filled = MakerOf(sine.operands[0]);
  ASSERT_EQ(filled.code, kSelect);
  EXPECT_EQ(filled.operands[0], entered_[0].mask.value);
  EXPECT_EQ(filled.operands[1], entered_[0].cotangent);
  EXPECT_EQ(MakerOf(filled.operands[2]).attributes.literal, std::vector<double>{0.0});
  const Op sum = MakerOf(writer_->SlotOf(y_).cotangent);
  EXPECT_EQ(MakerOf(sum.operands[0]).attributes.literal, std::vector<double>{0.0});
}

TEST_F(OwnVjpTest, WhatTheRegionGivesIsPresentWhereAnyCotangentIs) {
  Enter(Presence::kMasked, Presence::kMasked);
  const Slot of_y = writer_->SlotOf(y_);
  const Op either = MakerOf(of_y.mask.value);
  ASSERT_EQ(either.code, kOr);
  EXPECT_EQ(either.operands,
            (std::vector<ValueId>{entered_[0].mask.value, entered_[1].mask.value}));
  EXPECT_EQ(MakerOf(of_y.cotangent).attributes.where, of_y.mask.value);
}

TEST_F(OwnVjpTest, ACotangentThatIsAlwaysThereMakesAllPresentEverywhere) {
  Enter(Presence::kMasked, Presence::kAlways);
  EXPECT_EQ(writer_->SlotOf(x_).presence(), Presence::kAlways);
}

TEST_F(OwnVjpTest, OnceRemovedItsReadersReadWhatTheBodyGave) {
  NumericalProgram numerical;
  numerical.program = program_;
  numerical.stage_cost = call_.results[1];
  const NumericalProgram removed = RemoveOwnVjps(numerical, budget_);
  for (const Op& op : removed.program.step.ops) EXPECT_NE(op.code, kOwnVjp);
  EXPECT_EQ(removed.program.step.yields,
            (std::vector<ValueId>{call_.operands[2], call_.operands[3]}));
  EXPECT_EQ(removed.program.exports[0].value, call_.operands[2]);
  EXPECT_EQ(removed.stage_cost, call_.operands[3]);
}

}  // namespace
}  // namespace simgrad::sim
