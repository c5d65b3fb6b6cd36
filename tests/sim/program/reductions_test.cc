// What reductions are defined on: executors implement nothing else.

#include <gtest/gtest.h>

#include <set>

#include "sim/op/op_info.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim {
namespace {

constexpr OpCode kReductions[] = {
    OpCode::kSum,    OpCode::kReduceMax, OpCode::kReduceMin,     OpCode::kArgmax, OpCode::kArgmin,
    OpCode::kCumsum, OpCode::kProd,      OpCode::kExclusiveProd, OpCode::kAny,    OpCode::kAll};

// Bools are reduced by any and all alone, numbers by the others.
bool Reduces(OpCode code, ElementType element) {
  const bool of_bools = code == OpCode::kAny || code == OpCode::kAll;
  return of_bools == (element == ElementType::kBool);
}

TEST(Reductions, AreOfNumbersAndAnyAndAllOfBooleans) {
  for (const OpCode code : kReductions) {
    for (const ElementType element :
         {ElementType::kReal, ElementType::kI32, ElementType::kI64, ElementType::kBool}) {
      Program program;
      Op op;
      op.code = code;
      op.operands = {program.AddValue({element, {3}})};
      op.attributes.axes = {0};
      EXPECT_EQ(ResultTypes(program, op).ok(), Reduces(code, element))
          << InfoOf(code).name << " of " << ElementTypeName(element);
    }
  }
}

// Asserts of every reduction of a region that it is one of those above.
void Visit(const Program& program, const Region& region, std::set<OpCode>& met) {
  for (const Op& op : region.ops) {
    for (const Region& nested : op.regions) Visit(program, nested, met);
    if (InfoOf(op.code).op_class != OpClass::kReduction) continue;
    met.insert(op.code);
    EXPECT_TRUE(Reduces(op.code, program[op.operands[0]].type.element)) << InfoOf(op.code).name;
  }
}

TEST(Reductions, AreThatInLoweredProgramsAndTheirAdjointsToo) {
  std::set<OpCode> met;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto made = equality::MakeCase(seed);
    ASSERT_TRUE(made.ok()) << made.status();
    const NumericalProgram& numerical = *made->work.batch.program;
    const Program& program = numerical.program;
    Visit(program, program.initial, met);
    Visit(program, program.step, met);
    if (const Region* terminal = TerminalOf(numerical)) Visit(program, *terminal, met);
    if (!numerical.adjoint) continue;
    for (const Region* region : RegionsOf(*numerical.adjoint)) Visit(program, *region, met);
  }
  EXPECT_EQ(met, std::set<OpCode>(std::begin(kReductions), std::end(kReductions)));
}

}  // namespace
}  // namespace simgrad::sim
