// Which fields of cotangents a loop over elements takes as a whole.

#include "sim/backend/compiled/analysis/taken_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "sim/plan/make_plan.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "tests/sim/program/shaped_programs.h"

namespace simgrad::sim::compiled {
namespace {

using plan::BufferId;
using plan::BufferKind;
using plan::Carrier;
using plan::Code;
using plan::Register;
using plan::Statement;

constexpr int64_t kArray = 300;

class TakenFieldsTest : public testing::Test {
 protected:
  BufferId Field(Carrier carrier, int32_t number) {
    return function_.AddBuffer(
        {.kind = BufferKind::kField, .carrier = carrier, .count = kElements, .number = number});
  }
  Statement Load(Register result, BufferId buffer, int64_t base = 0) const {
    return {.code = Code::kLoad,
            .result = result,
            .buffer = buffer,
            .index = {base, {{counter_, 1}}, plan::kNoRegister}};
  }
  Statement Store(Register number, BufferId buffer, int64_t base = 0) const {
    Statement s = Load(plan::kNoRegister, buffer, base);
    s.code = Code::kStore;
    s.operands = {number};
    return s;
  }
  Statement Take() const { return {.code = Code::kTake, .operands = {x_, is_there_}}; }
  // The loop in the function; fields that it takes, and `rest_`.
  std::vector<TakenField> Of(std::vector<Statement> body) {
    const Statement each = {.code = Code::kEach,
                            .result = counter_,
                            .number = kElements,
                            .parallel = true,
                            .body = std::move(body)};
    function_.statements = {each};
    return TakenFields(function_).Of(each, rest_);
  }

  static constexpr int64_t kElements = 40;
  plan::Function function_;
  Statement rest_;
  const Register counter_ = function_.AddRegister(Carrier::kI64);
  const Register x_ = function_.AddRegister(Carrier::kF32);
  const Register y_ = function_.AddRegister(Carrier::kF32);
  const Register is_there_ = function_.AddRegister(Carrier::kBool);
  const BufferId values_ = Field(Carrier::kF32, 3);
  const BufferId mask_ = Field(Carrier::kBool, 4);
};

TEST_F(TakenFieldsTest, AreThoseThatItLoadsOrStoresElementByElement) {
  for (bool stores : {false, true}) {
    const auto read = [&](Register r, BufferId b) { return stores ? Store(r, b) : Load(r, b); };
    const auto fields = Of({read(x_, values_), read(is_there_, mask_), Take()});
    ASSERT_EQ(fields.size(), 1u);
    EXPECT_EQ(fields[0].values, values_);
    EXPECT_EQ(fields[0].present, mask_);
    EXPECT_EQ(rest_.body.size(), 2u);
    EXPECT_EQ(rest_.number, kElements);
  }
}

TEST_F(TakenFieldsTest, NeedNoMaskWhereTheyAreAlwaysThere) {
  const Statement always = {.code = Code::kConstant, .result = is_there_, .number = 1};
  const auto fields = Of({always, Load(x_, values_), Take()});
  ASSERT_EQ(fields.size(), 1u);
  EXPECT_EQ(fields[0].present, plan::kNoBuffer);
  const Statement never = {.code = Code::kConstant, .result = is_there_, .number = 0};
  EXPECT_TRUE(Of({never, Load(x_, values_), Take()}).empty());
}

TEST_F(TakenFieldsTest, AreNotThoseOfWhichTheLoopStoresSomethingElse) {
  const Statement mask = Load(is_there_, mask_);
  // The field by another name.
  const BufferId same = Field(Carrier::kF32, 3);
  EXPECT_TRUE(Of({Load(x_, values_), mask, Take(), Store(y_, same)}).empty());
  EXPECT_TRUE(Of({Store(x_, values_), mask, Take(), Store(x_, same, 1)}).empty());
  const Statement inside = {.code = Code::kIf, .operands = {is_there_}, .body = {Store(y_, same)}};
  EXPECT_TRUE(Of({Load(x_, values_), mask, Take(), inside}).empty());
  const BufferId other = Field(Carrier::kF32, 5);
  EXPECT_EQ(Of({Load(x_, values_), mask, Take(), Store(y_, other)}).size(), 1u);
}

TEST_F(TakenFieldsTest, AreWholeFields) {
  const Statement mask = Load(is_there_, mask_);
  EXPECT_TRUE(Of({Load(x_, values_, 1), mask, Take()}).empty());
  function_.buffers[static_cast<size_t>(values_)].count = kElements + 1;
  EXPECT_TRUE(Of({Load(x_, values_), mask, Take()}).empty());
}

TEST_F(TakenFieldsTest, AreOfTheFormatOfTheirMemory) {
  const BufferId wide = Field(Carrier::kF64, 6);
  const Statement mask = Load(is_there_, mask_);
  Statement take = Take();
  EXPECT_TRUE(Of({Load(x_, wide), mask, take}).empty());
  take.format = precision::Format::kF64;
  EXPECT_EQ(Of({Load(x_, wide), mask, take}).size(), 1u);
}

// Both states of a world of arrays; where none is found, bits are right and the time is lost.
TEST(TakenFields, AreFoundInAPlanOfArrays) {
  Builder b("arrays");
  const Var x = b.State("x", {kArray}), v = b.State("v", {kArray});
  const Var next = v - x * b.Literal(0.01);
  b.SetNext({x + next * b.Literal(0.01), next});
  b.AddObjective("cost", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0] * states[0]);
  });
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  precision::PolicySpec spec;
  spec.preset = "f32";
  const auto policy = std::get<precision::Policy>(precision::Resolve(spec));
  const auto program = Lower(*world, policy, "cost", shaped::WantedOf(*world, "cost"));
  ASSERT_TRUE(program.ok()) << program.status();
  const plan::Plan plan = plan::PlacedPlan(*program, {.looks = true, .ranges = true});
  const TakenFields taken(plan.reverse);
  size_t found = 0, left = 0;
  for (const Statement& s : plan.reverse.statements) {
    if (s.code != Code::kEach) continue;
    Statement rest = s;
    found += taken.Of(s, rest).size();
    left += static_cast<size_t>(std::count_if(rest.body.begin(), rest.body.end(),
                                              [](const auto& t) { return t.code == Code::kTake; }));
  }
  EXPECT_EQ(found, 2u);
  EXPECT_EQ(left, 0u);
}

TEST_F(TakenFieldsTest, AreNoneOfComputedNumbers) {
  const Statement made = {
      .code = Code::kCall, .result = x_, .operands = {y_}, .function = "neg_f32"};
  EXPECT_TRUE(Of({made, Load(is_there_, mask_), Take()}).empty());
}

}  // namespace
}  // namespace simgrad::sim::compiled
