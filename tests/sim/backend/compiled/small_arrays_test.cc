// Which arrays stay in registers, and which loops are written turn by turn for it.

#include "sim/backend/compiled/analysis/small_arrays.h"

#include <gtest/gtest.h>

#include <vector>

namespace simgrad::sim::compiled {
namespace {

using plan::BufferId;
using plan::BufferKind;
using plan::Carrier;
using plan::Code;
using plan::Register;
using plan::Statement;

class SmallArraysTest : public testing::Test {
 protected:
  BufferId Local(int64_t count) {
    return function_.AddBuffer(
        {.kind = BufferKind::kLocal, .carrier = Carrier::kF32, .count = count});
  }
  // buffer[base + register].
  Statement Store(BufferId buffer, Register by, int64_t base = 0) const {
    return {.code = Code::kStore,
            .operands = {x_},
            .buffer = buffer,
            .index = {base, {{by, 1}}, plan::kNoRegister}};
  }
  Statement StoreAt(BufferId buffer, int64_t place) const {
    return {.code = Code::kStore,
            .operands = {x_},
            .buffer = buffer,
            .index = {place, {}, plan::kNoRegister}};
  }
  Statement Each(Register counter, int64_t turns, std::vector<Statement> body) const {
    return {.code = Code::kEach, .result = counter, .number = turns, .body = std::move(body)};
  }
  SmallArrays Find(std::vector<Statement> statements) {
    function_.statements = std::move(statements);
    return FindSmallArrays(function_);
  }

  plan::Function function_;
  const Register x_ = function_.AddRegister(Carrier::kF32);
  const Register k_ = function_.AddRegister(Carrier::kI64);
  const Register j_ = function_.AddRegister(Carrier::kI64);
  const Register place_ = function_.AddRegister(Carrier::kI64);
};

TEST_F(SmallArraysTest, AreThoseOfFewElementsThatLoopsOfFewTurnsRead) {
  const BufferId three = Local(3), five = Local(5);
  const SmallArrays found =
      Find({Each(k_, 3, {Store(three, k_)}), StoreAt(three, 1), Each(j_, 5, {Store(five, j_)})});
  EXPECT_EQ(found.unrolled.size(), 1u);
  EXPECT_TRUE(found.unrolled.count(&function_.statements[0]));
  EXPECT_TRUE(found.named[static_cast<size_t>(three)]);
  EXPECT_FALSE(found.named[static_cast<size_t>(five)]);
}

TEST_F(SmallArraysTest, AreNoneThatALongLoopOrAComputedPlaceReads) {
  const BufferId by_loop = Local(4), by_place = Local(4), summed = Local(4);
  Statement moved = StoreAt(by_place, 0);
  moved.index.moved = place_;
  const Statement sum = {
      .code = Code::kExactSum, .result = x_, .buffer = summed, .stride = 1, .number = 4};
  const SmallArrays found = Find({Each(k_, 9, {Store(by_loop, k_)}), moved, sum});
  EXPECT_TRUE(found.unrolled.empty());
  for (BufferId id : {by_loop, by_place, summed})
    EXPECT_FALSE(found.named[static_cast<size_t>(id)]);
}

TEST_F(SmallArraysTest, LoopsInsideAreWrittenTurnByTurnToo) {
  const BufferId matrix = Local(4);
  Statement store = Store(matrix, j_);
  store.index.terms.push_back({k_, 2});
  const SmallArrays found = Find({Each(k_, 2, {Each(j_, 2, {store})})});
  EXPECT_EQ(found.unrolled.size(), 2u);
  EXPECT_TRUE(found.named[static_cast<size_t>(matrix)]);
}

TEST_F(SmallArraysTest, ALoopWithControlFlowInsideStaysALoop) {
  for (Code code : {Code::kRepeat, Code::kIf, Code::kCommit, Code::kPush}) {
    const SmallArrays found = Find({Each(k_, 2, {{.code = code, .operands = {x_}}})});
    EXPECT_TRUE(found.unrolled.empty()) << static_cast<int>(code);
  }
}

TEST_F(SmallArraysTest, FunctionsThatWouldGrowBeyondWhatIsCompiledWellStayAsTheyAre) {
  const BufferId three = Local(3);
  const std::vector<Statement> some(800, Each(k_, 3, {Store(three, k_)}));  // 1,600; then 4,000
  EXPECT_TRUE(Find(some).unrolled.empty());
  EXPECT_FALSE(FindSmallArrays(function_).named[static_cast<size_t>(three)]);
  const std::vector<Statement> few(400, Each(k_, 3, {Store(three, k_)}));
  EXPECT_EQ(Find(few).unrolled.size(), 400u);
}

}  // namespace
}  // namespace simgrad::sim::compiled
