// Every operation against values computed by hand.
#include <bit>
#include <cmath>

#include "sim/op/op_info.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using tests::FinalState;
using tests::RunProgram;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Row {
  OpCode code;
  std::vector<double> operands;
  double expected;
  std::string preset = "f64";
};

double Computed(const Row& row) {
  tests::Setting setting;
  setting.policy = tests::Preset(row.preset);
  for (double operand : row.operands) setting.states.push_back({operand});
  return FinalState(RunProgram(setting, [&](Builder& b) {
    Vars operands;
    for (size_t k = 0; k < row.operands.size(); ++k) {
      operands.push_back(b.State("s" + std::to_string(k), {}));
    }
    Vars next = operands;
    next[0] = b.Apply(row.code, operands);
    b.SetNext(next);
  }))[0];
}

TEST(Operation, OfRealsGivesTheRoundedExactResult) {
  using enum OpCode;
  const std::vector<Row> rows = {
      {kAdd, {1.5, 2.25}, 3.75},
      {kAdd, {2048, 1}, 2048, "f16_unsafe"},  // a tie, to even
      {kSub, {1.0, 0x1p-54}, 1.0},            // a quarter of an ulp of the result
      {kMul, {3, -0.5}, -1.5},
      {kMul, {0x1p-14, 0x1p-11}, 0.0, "f16_unsafe"},  // half the smallest subnormal, to even
      {kDiv, {1, 4}, 0.25},
      {kDiv, {1, 3}, 0x1.554p-2, "f16_unsafe"},  // 0.333 in 11 bits
      {kNeg, {0.0}, -0.0},
      {kAbs, {-2.5}, 2.5},
      {kSign, {-3}, -1},
      {kSign, {-0.0}, 0.0},
      {kMin, {0.0, -0.0}, -0.0},
      {kMax, {-0.0, 0.0}, 0.0},
      {kFma, {3, 683.0 / 2048, 0x1p-24}, 1.0009765625, "f16_unsafe"},
      {kSqrt, {2.25}, 1.5},
      {kFloor, {-1.5}, -2},
      {kRound, {2.5}, 2},
      {kRound, {3.5}, 4},
      {kMod, {-1, 3}, 2},
      {kMod, {1, -3}, -2},
      {kExp, {0}, 1},
      {kExp, {11.0859375}, 65248, "f16_unsafe"},  // e^11.0859375 = 65247.1
      {kLog, {1}, 0},
      {kLog1p, {0}, 0},
      {kExpm1, {0}, 0},
      {kSin, {0}, 0},
      {kCos, {0}, 1},
      {kAtan2, {0, 1}, 0},
      {kTanh, {0}, 0},
      {kSigmoid, {0}, 0.5},
      {kSoftplus, {0}, 0x1.62e42fefa39efp-1},  // ln 2
      {kPow, {2, 10}, 1024},
      {kRem, {-7.5, 2}, -1.5},
      {kRem, {7.5, -2}, 1.5},
      {kRem, {-6, 3}, -0.0},
      {kRem, {0x1p60, 3}, 1},  // exact, however far the quotient
      {kRem, {5, std::numeric_limits<double>::infinity()}, 5},
      {kQuot, {-7.5, 2}, -3},
      {kQuot, {7, 2}, 3},
      {kQuot, {-1, 2}, -0.0},
      {kCeil, {-0.5}, -0.0},
      {kCeil, {1.25}, 2},
      {kTrunc, {-1.75}, -1},
      {kTrunc, {1.75}, 1},
      {kNextAfter, {1, 2}, 1 + 0x1p-52},
      {kNextAfter, {1, 0}, 1 - 0x1p-53},
      {kNextAfter, {1, 0}, 1 - 0x1p-11, "f16_unsafe"},
      {kNextAfter, {1, 2}, 1 + 0x1p-7, "bf16_unsafe"},
      {kNextAfter, {0.0, -1}, -0x1p-24, "f16_unsafe"},
      {kNextAfter, {-0x1p-24, 1}, -0.0, "f16_unsafe"},
      {kNextAfter, {0x1p-14, 0}, 0x1.ff8p-15, "f16_unsafe"},  // the largest subnormal number
      {kNextAfter, {3, 3}, 3},
      // Of mpmath, 200 bits, rounded once.
      {kExp2, {0.5}, 0x1.6a09e667f3bcdp+0},
      {kLog2, {10}, 0x1.a934f0979a371p+1},
      {kRsqrt, {2}, 0x1.6a09e667f3bcdp-1},
      {kCbrt, {2}, 0x1.428a2f98d728bp+0},
      {kTan, {1}, 0x1.8eb245cbee3a6p+0},
      {kAsin, {0.5}, 0x1.0c152382d7366p-1},
      {kAcos, {0.5}, 0x1.0c152382d7366p+0},
      {kAtan, {0.5}, 0x1.dac670561bb4fp-2},
      {kSinh, {1}, 0x1.2cd9fc44eb982p+0},
      {kCosh, {1}, 0x1.8b07551d9f550p+0},
      {kErf, {0.5}, 0x1.0a7ef5c18edd2p-1},
      {kErfc, {3}, 0x1.729df6503422ap-16},
      {kExp2, {0.5}, 0x1.6ap+0, "f16_unsafe"},
      {kErfc, {3}, 0x1.72p-16, "bf16_unsafe"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(std::bit_cast<uint64_t>(Computed(row)), std::bit_cast<uint64_t>(row.expected))
        << InfoOf(row.code).name << " gives " << Computed(row);
  }
}

TEST(Operation, MinAndMaxPropagateNan) {
  EXPECT_TRUE(std::isnan(Computed({OpCode::kMax, {kNan, 1}, 0})));
  EXPECT_TRUE(std::isnan(Computed({OpCode::kMin, {1, kNan}, 0})));
}

int64_t ComputedInteger(OpCode code, ElementType type, std::vector<int64_t> operands) {
  tests::Setting setting;
  setting.adjust = [&](Work& work) {
    for (size_t k = 0; k < operands.size(); ++k) {
      Tensor tensor = Tensor::Zeros(DType::kI64, {});
      tensor.SetInt(0, operands[k]);
      work.batch.inputs[k] = {tensor, false, false};
    }
  };
  const tests::Outcome outcome = RunProgram(setting, [&](Builder& b) {
    Vars states;
    for (size_t k = 0; k < operands.size(); ++k) {
      states.push_back(b.State("s" + std::to_string(k), {}, "", type));
    }
    Vars next = states;
    next[0] = b.Apply(code, states);
    b.SetNext(next);
  });
  return outcome.result.final_states[0].GetInt(0);
}

TEST(Operation, OfIntegersWrapsAndDividesTowardMinusInfinity) {
  using enum OpCode;
  constexpr ElementType k32 = ElementType::kI32;
  constexpr ElementType k64 = ElementType::kI64;
  EXPECT_EQ(ComputedInteger(kAdd, k32, {INT32_MAX, 1}), INT32_MIN);
  EXPECT_EQ(ComputedInteger(kAdd, k64, {INT64_MAX, 1}), INT64_MIN);
  EXPECT_EQ(ComputedInteger(kMul, k32, {1 << 20, 1 << 20}), 0);
  EXPECT_EQ(ComputedInteger(kNeg, k64, {INT64_MIN}), INT64_MIN);
  EXPECT_EQ(ComputedInteger(kAbs, k32, {INT32_MIN}), INT32_MIN);
  EXPECT_EQ(ComputedInteger(kDiv, k32, {-7, 2}), -4);
  EXPECT_EQ(ComputedInteger(kDiv, k32, {7, 0}), 0);
  EXPECT_EQ(ComputedInteger(kDiv, k64, {INT64_MIN, -1}), INT64_MIN);
  EXPECT_EQ(ComputedInteger(kMod, k32, {-7, 2}), 1);
  EXPECT_EQ(ComputedInteger(kMod, k32, {7, -2}), -1);
  EXPECT_EQ(ComputedInteger(kMod, k32, {7, 0}), 0);
  EXPECT_EQ(ComputedInteger(kSign, k64, {-9}), -1);
  EXPECT_EQ(ComputedInteger(kQuot, k32, {-7, 2}), -3);
  EXPECT_EQ(ComputedInteger(kQuot, k32, {7, 0}), -1);
  EXPECT_EQ(ComputedInteger(kQuot, k32, {INT32_MIN, -1}), INT32_MIN);
  EXPECT_EQ(ComputedInteger(kRem, k32, {-7, 2}), -1);
  EXPECT_EQ(ComputedInteger(kRem, k64, {7, -2}), 1);
  EXPECT_EQ(ComputedInteger(kRem, k32, {7, 0}), 7);
  EXPECT_EQ(ComputedInteger(kRem, k64, {INT64_MIN, -1}), 0);
}

// One state in, one state of the same size out.
std::vector<double> Mapped(const std::vector<double>& x, const Shape& shape, const Shape& out,
                           const std::function<Var(Builder&, Var)>& map,
                           const std::string& preset = "f64") {
  tests::Setting setting;
  setting.policy = tests::Preset(preset);
  setting.states = {x, std::vector<double>(static_cast<size_t>(ElementCount(out)), 0.0)};
  return FinalState(RunProgram(setting,
                               [&](Builder& b) {
                                 const Var in = b.State("in", shape);
                                 b.State("out", out);
                                 b.SetNext({in, map(b, in)});
                               }),
                    1);
}

using Values = std::vector<double>;

TEST(Operation, ShapesMoveElementsInRowMajorOrder) {
  const Values x = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(Mapped(x, {2, 3}, {3, 2}, [](Builder& b, Var v) { return b.Reshape(v, {3, 2}); }), x);
  EXPECT_EQ(Mapped(x, {2, 3}, {1, 2},
                   [](Builder& b, Var v) {
                     return b.Slice(v, {1, 1}, {1, 2});
                   }),
            (Values{5, 6}));
  EXPECT_EQ(Mapped({7, 8}, {2}, {2, 3},
                   [](Builder& b, Var v) {
                     return b.Broadcast(v, {2, 3}, {0});
                   }),
            (Values{7, 7, 7, 8, 8, 8}));
  EXPECT_EQ(Mapped({7, 8, 9}, {3}, {2, 3},
                   [](Builder& b, Var v) {
                     return b.Broadcast(v, {2, 3}, {1});
                   }),
            (Values{7, 8, 9, 7, 8, 9}));
  EXPECT_EQ(Mapped({1, 2, 3, 4}, {2, 2}, {2, 4},
                   [](Builder& b, Var v) {
                     return b.Concat({v, v}, 1);
                   }),
            (Values{1, 2, 1, 2, 3, 4, 3, 4}));
}

TEST(Operation, ReductionsGoOverTheirAxes) {
  const Values x = {1, 5, 3, 4, 2, 6};
  const auto over = [&](OpCode code, std::vector<int64_t> axes, const Shape& out) {
    return Mapped(x, {2, 3}, out, [&](Builder& b, Var v) { return b.Reduce(code, v, axes); });
  };
  EXPECT_EQ(over(OpCode::kSum, {1}, {2}), (Values{9, 12}));
  EXPECT_EQ(over(OpCode::kSum, {0}, {3}), (Values{5, 7, 9}));
  EXPECT_EQ(over(OpCode::kSum, {0, 1}, {}), (Values{21}));
  EXPECT_EQ(over(OpCode::kReduceMax, {1}, {2}), (Values{5, 6}));
  EXPECT_EQ(over(OpCode::kReduceMin, {0}, {3}), (Values{1, 2, 3}));
  EXPECT_EQ(over(OpCode::kProd, {1}, {2}), (Values{15, 48}));
  EXPECT_EQ(over(OpCode::kProd, {0, 1}, {}), (Values{720}));
}

TEST(Operation, ProductsAreRoundedAfterEachFactorAscending) {
  const auto product = [](const Values& x, const Shape& shape) {
    return Mapped(
        x, shape, {}, [](Builder& b, Var v) { return b.Reduce(OpCode::kProd, v); }, "f16_unsafe");
  };
  EXPECT_EQ(product({256, 256, 0x1p-8}, {3}), (Values{std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(product({0x1p-8, 256, 256}, {3}), (Values{256}));
  EXPECT_EQ(product({}, {0}), (Values{1}));
}

TEST(Operation, IntegersAndBoolsAreReduced) {
  const Values x = {3, -1, 2000000000, 7, 5, 2000000000};
  const auto of_integers = [&](OpCode code) {
    return Mapped(x, {2, 3}, {2}, [&](Builder& b, Var v) {
      const Var n = b.Convert(v, ElementType::kI32);
      return b.Convert(b.Reduce(code, n, {1}), ElementType::kReal);
    });
  };
  EXPECT_EQ(of_integers(OpCode::kSum), (Values{2000000002, 2000000012}));
  EXPECT_EQ(of_integers(OpCode::kReduceMax), (Values{2000000000, 2000000000}));
  EXPECT_EQ(of_integers(OpCode::kReduceMin), (Values{-1, 5}));
  EXPECT_EQ(of_integers(OpCode::kArgmin), (Values{1, 1}));
  EXPECT_EQ(of_integers(OpCode::kProd), (Values{-1705032704, 1280523264}));  // modulo 2^32
  const auto of_bools = [&](OpCode code) {
    return Mapped(x, {2, 3}, {2}, [&](Builder& b, Var v) {
      const Var positive = b.Apply(OpCode::kGt, {v, b.Literal(0.0)});
      return b.Convert(b.Reduce(code, positive, {1}), ElementType::kReal);
    });
  };
  EXPECT_EQ(of_bools(OpCode::kAll), (Values{0, 1}));
  EXPECT_EQ(of_bools(OpCode::kAny), (Values{1, 1}));
}

TEST(Operation, CumulativeSumRoundsEveryPrefixFromEitherEnd) {
  const auto cumsum = [](bool reverse) {
    return Mapped(
        {2048, 1, 1, 2}, {4}, {4}, [=](Builder& b, Var v) { return b.Cumsum(v, 0, reverse); },
        "f16_unsafe");
  };
  EXPECT_EQ(cumsum(false), (Values{2048, 2048, 2048, 2050}));  // 2048 + 1 is a tie, to even
  EXPECT_EQ(cumsum(true), (Values{2052, 4, 3, 2}));
}

TEST(Operation, ArgmaxTakesTheFirstExtremeAndNanAboveAll) {
  const auto argmax = [](const Values& x) {
    return Mapped(x, {3}, {}, [](Builder& b, Var v) {
      return b.Convert(b.Reduce(OpCode::kArgmax, v, {0}), ElementType::kReal);
    });
  };
  EXPECT_EQ(argmax({1, 4, 4}), (Values{1}));
  EXPECT_EQ(argmax({9, kNan, kNan}), (Values{1}));
}

TEST(Operation, ConvertTruncatesAndSaturates) {
  const Values x = {-1.9, 1e10, kNan, 2.0};
  EXPECT_EQ(Mapped(x, {4}, {4},
                   [](Builder& b, Var v) {
                     return b.Convert(b.Convert(v, ElementType::kI32), ElementType::kReal);
                   }),
            (Values{-1, INT32_MAX, 0, 2}));
}

}  // namespace
}  // namespace simgrad::sim
