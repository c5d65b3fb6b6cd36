// What an adjoint reads of the primal, and where executors look at it.
#include "sim/program/primal_reads.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "sim/program/detect.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using precision::Format;

// A product and a quotient of x and k, each behind an event.
NumericalProgram Lowered(precision::Format tape, precision::Format adjoint) {
  Builder b("reads");
  const Var x = b.State("x", {2});
  const Var k = b.Param("k", {2}, 1.0);
  const Var low = b.Event("low", x, Comparison::kLt, b.Literal(1.0, {2}));
  b.SetNext({Select(low, b.Named(x * x, "square") * k, k / b.Named(x + x, "twice"))});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  const absl::StatusOr<Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  precision::PolicySpec spec{.preset = "f32"};
  spec.roles = {{"tape", {.format = tape}}, {"adjoint", {.format = adjoint}}};
  auto lowered = tests::LowerForGradient(*program, tests::PolicyOf(spec), "end");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return *std::move(lowered);
}

template <class Each>
void EachOp(const Region& region, const Each& each) {
  for (const Op& op : region.ops) {
    each(op);
    for (const Region& nested : op.regions) EachOp(nested, each);
  }
}

TEST(PrimalReads, AreTheTapesAndTheCastsWithoutAMask) {
  const NumericalProgram numerical = Lowered(Format::kF16, Format::kF32);
  const std::vector<bool> reads = PrimalReadsOf(numerical);
  int tapes = 0;
  EachOp(numerical.adjoint->inner, [&](const Op& op) {
    if (op.results.empty() || !numerical.program.IsReal(op.results[0])) return;
    const bool is_tape = op.code == OpCode::kTape;
    EXPECT_EQ(reads[Index(op.results[0])], is_tape) << InfoOf(op.code).name;
    tapes += is_tape ? 1 : 0;
  });
  EXPECT_GE(tapes, 3);
}

// The names of the operations before which tapes are looked at, with the names of these.
std::string LookedAtBefore(const NumericalProgram& numerical, const Detection& looks) {
  std::string text;
  EachOp(numerical.adjoint->inner, [&](const Op& op) {
    const auto found = looks.reads.find(&op);
    if (found == looks.reads.end()) return;
    text += std::string(InfoOf(op.code).name) + ":";
    for (const PrimalRead& read : found->second) text += " " + numerical.program[read.value].name;
    text += "; ";
  });
  return text;
}

TEST(PrimalReads, AreLookedAtBeforeWhatMayHideThem) {
  const NumericalProgram numerical = Lowered(Format::kF16, Format::kF32);
  const Detection looks = LooksOf(numerical, LooksIn::kAll);
  // Operations in f32 read a cast of a tape in f16 under their mask, which shows it.
  EXPECT_EQ(LookedAtBefore(numerical, looks), "");
  int looked_at = 0;
  EachOp(numerical.adjoint->inner, [&](const Op& op) {
    const bool reads_a_tape = op.code == OpCode::kCast && op.attributes.where != ValueId::kNone &&
                              PrimalReadsOf(numerical)[Index(op.operands[0])];
    if (reads_a_tape && looks.look[Index(op.results[0])]) ++looked_at;
  });
  EXPECT_GE(looked_at, 1);
  // A product shows an infinite factor, a quotient hides an infinite divisor.
  const NumericalProgram narrow = Lowered(Format::kF16, Format::kF16);
  EXPECT_EQ(LookedAtBefore(narrow, LooksOf(narrow, LooksIn::kAll)), "div: twice; ");
}

TEST(PrimalReads, ThatCannotOverflowAreNotLookedAt) {
  const NumericalProgram numerical = Lowered(Format::kF32, Format::kF32);
  EXPECT_EQ(LookedAtBefore(numerical, LooksOf(numerical, LooksIn::kAll)), "");
}

TEST(PrimalReads, AreReadByElementWhereTheOperationGoesByElement) {
  Op op;
  for (const auto& [code, by_element] : {std::pair{OpCode::kMul, true},
                                         {OpCode::kSelect, true},
                                         {OpCode::kCast, true},
                                         {OpCode::kMatmul, false},
                                         {OpCode::kSum, false},
                                         {OpCode::kReshape, false},
                                         {OpCode::kFakeQuantize, false}}) {
    op.code = code;
    EXPECT_EQ(ReadsByElement(op), by_element) << InfoOf(code).name;
  }
}

}  // namespace
}  // namespace simgrad::sim
