// Which looks stand for others.

#include "sim/plan/cover_looks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace simgrad::sim::plan {
namespace {

class CoverLooksTest : public testing::Test {
 protected:
  Register Real() { return function_.AddRegister(Carrier::kF32); }
  static Statement Look(Register r, Register where = kNoRegister) {
    Statement s{.code = Code::kLook, .operands = {r}};
    if (where != kNoRegister) s.operands.push_back(where);
    return s;
  }
  static Statement Call(const std::string& name, Register result, std::vector<Register> operands) {
    return {
        .code = Code::kCall, .result = result, .operands = std::move(operands), .function = name};
  }
  // The registers that are looked at, in order, those of bodies among them.
  static std::vector<Register> LooksIn(const std::vector<Statement>& block) {
    std::vector<Register> looks;
    for (const Statement& s : block) {
      if (s.code == Code::kLook) looks.push_back(s.operands[0]);
      for (Register r : LooksIn(s.body)) looks.push_back(r);
    }
    return looks;
  }
  std::vector<Register> LooksAfter(std::vector<Statement> statements) {
    function_.statements = std::move(statements);
    CoverLooks(function_);
    return LooksIn(function_.statements);
  }

  Function function_;
  const Register a_ = Real(), b_ = Real(), c_ = Real(), sum_ = Real(), last_ = Real();
  const Register where_ = function_.AddRegister(Carrier::kBool);
  const Register other_ = function_.AddRegister(Carrier::kBool);
};

using Registers = std::vector<Register>;

TEST_F(CoverLooksTest, TheLastPartialSumStandsForSummandsAndSums) {
  EXPECT_EQ(LooksAfter({Look(a_), Look(b_), Call("add_f32", sum_, {a_, b_}), Look(sum_), Look(c_),
                        Call("add_f32", last_, {sum_, c_}), Look(last_)}),
            Registers{last_});
  EXPECT_EQ(LooksAfter({Look(a_), Call("mul_bf16", b_, {a_, a_}), Call("neg_bf16", c_, {b_}),
                        Call("widen_f32", sum_, {c_}), Look(sum_)}),
            Registers{sum_});
}

TEST_F(CoverLooksTest, FunctionsThatLoseWhatIsNotFiniteStandForNothing) {
  for (const char* function :
       {"div_f32", "tanh_f32", "min_f32", "max_f32", "quantized_e4m3", "round_f32_e4m3_saturate",
        "round_f32_f16_stochastic_saturate", "select_f32"}) {
    EXPECT_EQ(LooksAfter({Look(a_), Call(function, sum_, {a_, b_}), Look(sum_)}),
              (Registers{a_, sum_}))
        << function;
  }
  for (const char* function : {"round_f32_f16", "round_f32_tf32", "add_wide_bf16", "narrow_f64"}) {
    EXPECT_EQ(LooksAfter({Look(a_), Call(function, sum_, {a_}), Look(sum_)}), Registers{sum_})
        << function;
  }
}

TEST_F(CoverLooksTest, ALookAtAMaskStandsForThoseAtThisMaskAlone) {
  const Statement add = Call("add_f32", sum_, {a_, b_});
  EXPECT_EQ(LooksAfter({Look(a_), Look(b_, where_), add, Look(sum_, where_)}),
            (Registers{a_, sum_}));
  EXPECT_EQ(LooksAfter({Look(a_, other_), Look(b_), add, Look(sum_, where_)}),
            (Registers{a_, b_, sum_}));
  EXPECT_EQ(LooksAfter({Look(a_, where_), Look(b_, other_), add, Look(sum_)}), Registers{sum_});
  // One of them is everywhere.
  EXPECT_EQ(LooksAfter({Look(a_), add, Look(sum_), Look(sum_, where_)}), (Registers{sum_, sum_}));
}

TEST_F(CoverLooksTest, NothingStandsForWhatRanBeforeAnExitOrACommit) {
  const Statement add = Call("add_f32", sum_, {a_, b_});
  for (Code code : {Code::kLeave, Code::kCommit}) {
    const Statement between{.code = code, .operands = {where_}};
    EXPECT_EQ(LooksAfter({Look(a_), add, between, Look(sum_)}), (Registers{a_, sum_}));
  }
}

TEST_F(CoverLooksTest, BlocksStandForThemselvesAlone) {
  const Statement add = Call("add_f32", sum_, {a_, b_});
  for (Code code : {Code::kIf, Code::kEach, Code::kRepeat}) {
    // The block may not run, and it may run where the statements around it do not.
    const Statement inside{.code = code, .operands = {where_}, .body = {Look(b_), add, Look(sum_)}};
    EXPECT_EQ(LooksAfter({Look(a_), inside, Look(c_)}), (Registers{a_, sum_, c_}));
    const Statement before{.code = code, .operands = {where_}, .body = {Look(a_)}};
    EXPECT_EQ(LooksAfter({before, add, Look(sum_)}), (Registers{a_, sum_}));
  }
}

}  // namespace
}  // namespace simgrad::sim::plan
